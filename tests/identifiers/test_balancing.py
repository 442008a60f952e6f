"""Sinkhorn against POT, and the balanced assignment against the loop over all pairs."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import identifiers as naive

from callslip.errors import BadSetting
from callslip.identifiers import balanced_assignment, sinkhorn


@pytest.mark.parametrize(("rows", "columns"), [(12, 4), (5, 9), (8, 8), (1, 3)])
@pytest.mark.parametrize("epsilon", [1.0, 0.2])
def test_sinkhorn_equals_pot(rows, columns, epsilon):
    scores = np.random.default_rng(0).normal(size=(rows, columns))
    plan = sinkhorn(torch.tensor(scores), epsilon, 2000).numpy()
    other = ot.sinkhorn(
        np.ones(rows), np.full(columns, rows / columns), -scores, reg=epsilon, numItermax=5000, stopThr=1e-12
    )
    assert np.allclose(plan, other, atol=1e-8)


def test_sinkhorn_equals_the_plain_scaling_loop():
    scores = np.random.default_rng(1).normal(size=(6, 3))
    plain = np.exp(scores / 0.5)
    for _ in range(7):
        plain = plain / plain.sum(axis=0) * 6 / 3
        plain = plain / plain.sum(axis=1, keepdims=True)
    assert np.allclose(sinkhorn(torch.tensor(scores), 0.5, 7).numpy(), plain)


def test_sinkhorn_with_the_papers_epsilon_neither_overflows_nor_leaves_the_margins():
    scores = torch.tensor(np.random.default_rng(0).normal(size=(64, 8)) * 5, dtype=torch.float32)
    plan = sinkhorn(scores, epsilon=0.003, iterations=100)
    assert plan.dtype == torch.float64 and torch.isfinite(plan).all()
    assert torch.allclose(plan.sum(dim=1), torch.ones(64, dtype=torch.float64), atol=1e-12)
    soft = sinkhorn(scores, epsilon=5.0, iterations=200)
    assert torch.allclose(soft.sum(dim=0), torch.full((8,), 8.0, dtype=torch.float64), atol=1e-9)


def test_sinkhorn_passes_gradients():
    scores = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: sinkhorn(s, 1.0, 5), scores)


@pytest.mark.parametrize("arguments", [{"epsilon": 0.0}, {"iterations": 0}])
def test_sinkhorn_refuses_nonsense(arguments):
    with pytest.raises(BadSetting):
        sinkhorn(torch.ones(2, 2), **arguments)
    with pytest.raises(BadSetting):
        sinkhorn(torch.ones(2, 2, 2))


# few different values, so that ties are common
matrices = st.integers(1, 5).flatmap(
    lambda k: st.lists(
        st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9]), min_size=k, max_size=k), min_size=1, max_size=20
    )
)


@settings(max_examples=300)
@given(matrices, st.integers(0, 4))
def test_balanced_assignment_equals_the_loop_over_all_pairs(p, slack):
    least = -(-len(p) // len(p[0]))
    assert balanced_assignment(np.array(p)).tolist() == naive.balanced_assignment(p)
    assert balanced_assignment(p, least + slack).tolist() == naive.balanced_assignment(p, least + slack)


def test_balanced_assignment_of_many():
    p = torch.softmax(torch.randn(500, 16, generator=torch.Generator().manual_seed(0)) * 3, dim=1)
    tokens = balanced_assignment(p.requires_grad_())
    assert tokens.tolist() == naive.balanced_assignment(p.detach().double().tolist())
    assert np.bincount(tokens).max() == 32


def test_balanced_assignment_refuses_nonsense():
    for p, capacity in ((np.ones((5, 2)), 2), (np.ones(5), None), (np.full((2, 2), np.nan), None)):
        with pytest.raises(BadSetting):
            balanced_assignment(p, capacity)
    assert balanced_assignment(np.zeros((0, 3))).tolist() == []
