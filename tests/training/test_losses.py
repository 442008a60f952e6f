"""Loss terms against naive loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.histories import softmax_loss

from callslip.training.losses import code_cross_entropy, sampled_softmax


def naive(logits, code) -> float:
    total = 0.0
    for row in range(len(code)):
        for level in range(code.shape[1]):
            scores = [float(v) for v in logits[level][row]]
            token = int(code[row, level])
            normaliser = math.log(sum(math.exp(v) for v in scores))
            total -= scores[token] - normaliser  # token -1 is the last output: END
            if token == -1:
                break
    return total / len(code)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_code_cross_entropy(batch, length, width, with_end, seed):
    rng = torch.Generator().manual_seed(seed)
    outputs = width + with_end
    logits = [torch.randn(batch, outputs, generator=rng) for _ in range(length)]
    code = torch.randint(0, width, (batch, length), generator=rng)
    if with_end:
        for row in range(batch):
            stop = int(torch.randint(1, length + 1, (1,), generator=rng))
            code[row, stop:] = -1
    assert float(code_cross_entropy(logits, code)) == pytest.approx(naive(logits, code), abs=1e-5)
    # One tensor [B, L, outputs] is the same, also where B = L and the axes could be confused.
    together = torch.stack(logits, dim=1)
    assert float(code_cross_entropy(together, code)) == pytest.approx(naive(logits, code), abs=1e-5)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="do not fit"):
        code_cross_entropy([torch.zeros(2, 3)], torch.zeros(2, 2, dtype=torch.long))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 5), st.integers(0, 99))
def test_sampled_softmax(batch, negatives, seed):
    rng = torch.Generator().manual_seed(seed)
    positive, negative = torch.randn(batch, generator=rng), torch.randn(batch, negatives, generator=rng)
    same = torch.rand(batch, negatives, generator=rng) < 0.3
    expected = softmax_loss(positive.tolist(), negative.tolist(), same.tolist())
    assert float(sampled_softmax(positive, negative, same)) == pytest.approx(expected, abs=1e-5)
    none = softmax_loss(positive.tolist(), negative.tolist(), torch.zeros_like(same).tolist())
    assert float(sampled_softmax(positive, negative)) == pytest.approx(none, abs=1e-5)


def test_the_shapes_of_scores_are_checked():
    with pytest.raises(ValueError, match="shapes"):
        sampled_softmax(torch.zeros(2), torch.zeros(3, 4))
    with pytest.raises(ValueError, match="mask"):
        sampled_softmax(torch.zeros(2), torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.bool))


def test_logits_of_another_shape_are_refused():
    code = torch.zeros(3, 3, dtype=torch.long)
    for wrong in (torch.zeros(3, 3), torch.zeros(2, 3, 5), [torch.zeros(3, 5)] * 2, [torch.zeros(3, 1, 5)] * 3):
        with pytest.raises(ValueError, match="logits"):
            code_cross_entropy(wrong, code)
