"""Indexers: probabilities, codes and errors against plain loops and the static quantisers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.errors import BadSetting
from callslip.identifiers.balancing import column_potentials, sinkhorn
from callslip.identifiers.product import ProductQuantizer
from callslip.identifiers.residual import ResidualQuantizer
from callslip.methods.asi.indexers import make_indexer, squared_distances

NAMES = ("mlp", "pq", "rq")


def vectors(count=200, dim=24, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(8, dim))
    found = centres[rng.integers(0, 8, count)] + 0.3 * rng.normal(size=(count, dim))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def begun(name, x, **values):
    torch.manual_seed(0)
    indexer = make_indexer(name, x.shape[1], 3, 8, hidden=16, **values)
    indexer.begin(x)
    return indexer


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999), st.integers(2, 30), st.integers(1, 12), st.sampled_from([0.003, 0.05, 1.0]))
def test_potentials_give_the_plan_of_sinkhorn(seed, rows, columns, epsilon):
    scores = -torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for iterations in (1, 4, 40):
        plan = (scores / epsilon + column_potentials(scores / epsilon, iterations)).softmax(dim=1)
        assert torch.allclose(plan, sinkhorn(scores, epsilon, iterations), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_sum_to_one_and_codes_are_the_likeliest_tokens(name):
    x = vectors()
    indexer = begun(name, x).eval()
    p = indexer(torch.from_numpy(x))
    assert p.shape == (200, 3, 8)
    assert torch.allclose(p.sum(dim=2), torch.ones(200, 3), atol=1e-5)
    assert (p.argmax(dim=2) == indexer.codes(torch.from_numpy(x))).float().mean() > 0.999


@pytest.mark.parametrize(("name", "static"), [("pq", ProductQuantizer), ("rq", ResidualQuantizer)])
def test_before_training_a_quantiser_codes_as_the_static_one_does(name, static):
    x = vectors()
    codes = static(3, 8, 0).fit(x)
    indexer = begun(name, x)
    assert np.array_equal(indexer.codes(torch.from_numpy(x)).numpy(), codes)
    made = static(3, 8, 0)
    made.fit(x)
    error = np.square(x - made.decode(codes)).sum(axis=1).mean()
    assert float(indexer.quantisation(torch.from_numpy(x)).detach()) == pytest.approx(float(error), rel=1e-4)


@pytest.mark.parametrize("name", ["pq", "rq"])
def test_in_training_tokens_are_shared_out_over_the_batch(name):
    x = torch.from_numpy(vectors())
    indexer = begun(name, x.numpy(), epsilon=0.3).train()
    assert torch.allclose(indexer(x)[:, 0].sum(dim=0), torch.full((8,), 25.0), atol=0.5)
    with torch.no_grad():
        first = x[:, : indexer.stretches[0]] if name == "pq" else x
        book = indexer.codebooks[:, : indexer.stretches[0]] if name == "pq" else indexer.books[0]
        expected = sinkhorn(-squared_distances(first, book), 0.3, 100)
    assert torch.allclose(indexer(x)[:, 0].double(), expected, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_tokens_lie_where_the_vectors_are(name):
    """Eight clusters and eight tokens: at the first level, vectors of one cluster mostly share a token."""
    x = vectors()
    codes = begun(name, x).eval().codes(torch.from_numpy(x)).numpy()
    assert len(np.unique(codes, axis=0)) >= 8
    near = (x @ x.T) > 0.9
    same = codes[:, :1] == codes[:, 0]
    assert same[near].mean() > 2 * same[~near].mean()


@pytest.mark.parametrize("name", NAMES)
def test_fewer_vectors_than_tokens_are_enough(name):
    x = vectors(5)
    indexer = begun(name, x).eval()
    assert len(np.unique(indexer.codes(torch.from_numpy(x)).numpy(), axis=0)) == 5


def test_gradients_reach_vectors_and_codebooks():
    for name in NAMES:
        x = torch.from_numpy(vectors(20)).requires_grad_()
        indexer = begun(name, x.detach().numpy(), epsilon=0.05).train()
        weights = torch.randn(20, 3, 8, generator=torch.Generator().manual_seed(0))
        (indexer(x) * weights).sum().backward()
        assert x.grad.abs().sum() > 0
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in indexer.parameters())


def test_a_softness_of_nothing_is_refused():
    with pytest.raises(BadSetting, match="epsilon"):
        make_indexer("pq", 8, 2, 4, epsilon=0.0)
