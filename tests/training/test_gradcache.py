"""GradCache: gradients are those of one big batch, dropout included, and no chunk's graph is kept."""

from __future__ import annotations

import pytest
import torch
from small_t5 import save_small_t5
from torch import nn
from torch.nn import functional

from callslip.decoders.t5 import T5CodeWriter
from callslip.decoders.tuned import TunedWriter
from callslip.decoders.writer import CodeWriter
from callslip.methods.asi.equations import bottleneck
from callslip.methods.genret.equations import reconstruction
from callslip.methods.tied_atomic.equations import contrastive
from callslip.training.gradcache import in_chunks

TEXTS = ["lift of wing", "heat", "flow of air over wing", "speed", "air", "lift and heat", "wing speed"]


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 8)).train()


def gradients(model: nn.Module, loss, *encoded) -> list[torch.Tensor]:
    model.zero_grad()
    loss(*encoded).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def in_batch(query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
    """A softmax over the documents of the batch."""
    return functional.cross_entropy(query @ document.t() / 0.5, torch.arange(len(query)))


LOSSES = {
    "softmax": in_batch,
    "tied-atomic": lambda q, d: contrastive(q, d, d[:, None].flip(0), 0.5, None),
    "genret": lambda q, d: reconstruction(d, q, torch.ones(len(d), len(d), dtype=torch.bool)),
    "asi": lambda q, d: bottleneck(functional.normalize(q, dim=1), functional.normalize(d, dim=1), 0.3, 0.5, None),
}


@pytest.mark.parametrize("size", [1, 4, 7, 30])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_those_of_one_big_batch(loss, size):
    model, x, y = network(), torch.randn(22, 6), torch.randn(22, 6)
    whole = gradients(model, LOSSES[loss], model(x), model(y))
    cached = gradients(model, LOSSES[loss], in_chunks(model, x, size), in_chunks(model, y, size))
    assert len(whole) == len(cached) == 4
    for one, other in zip(cached, whole, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [3, 8])
def test_dropout_is_the_same_in_both_passes(size):
    """Against the same chunks with their graphs kept, which draw the same masks; and the RNG goes on from there."""
    model, x, y = network(0.4), torch.randn(22, 6), torch.randn(22, 6)

    def kept(values):
        return torch.cat([model(values[start : start + size]) for start in range(0, 22, size)])

    torch.manual_seed(3)
    whole, after = gradients(model, in_batch, kept(x), kept(y)), torch.rand(3)
    torch.manual_seed(3)
    cached = gradients(model, in_batch, in_chunks(model, x, size), in_chunks(model, y, size))
    assert torch.equal(torch.rand(3), after)
    for one, other in zip(cached, whole, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    torch.manual_seed(4)
    other = gradients(model, in_batch, in_chunks(model, x, size), in_chunks(model, y, size))
    assert not torch.allclose(other[0], cached[0], atol=1e-3)


def test_several_inputs_and_outputs_and_other_uses_of_the_parameters():
    """As for an encoder that gives a mean and a variance, one of which nothing asks for."""
    model, x, scale = network(), torch.randn(10, 6), torch.rand(10, 1)

    def encode(values, by):
        states = model(values) * by
        return states[:, :4], states[:, 4:], states.detach()

    def loss(mean, variance, fixed):
        return in_batch(mean, mean) + (model[3].weight ** 2).sum() + (mean * fixed[:, :4]).sum()

    whole, cached = gradients(model, loss, *encode(x, scale)), gradients(model, loss, *in_chunks(encode, (x, scale), 4))
    for one, other in zip(cached, whole, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="different lengths"):
        in_chunks(encode, (x, scale[:3]), 4)


def test_no_graph_is_kept_between_the_passes():
    """Only one chunk at a time has a graph: none in the forward pass, one in the backward pass."""
    model, x, seen = network(), torch.randn(12, 6), []

    def encode(values):
        found = model(values)
        seen.append((len(values), found.requires_grad))
        return found

    states = in_chunks(encode, x, 5)
    assert seen == [(5, False), (5, False), (2, False)] and states.requires_grad
    in_batch(states, states).backward()
    assert seen[3:] == [(5, True), (5, True), (2, True)]
    seen.clear()
    with torch.no_grad():
        in_chunks(encode, x, 5)
    in_chunks(encode, x, None)
    in_chunks(encode, x, 12)
    assert seen == [(12, False), (12, True), (12, True)]


def test_it_fits_a_tuned_encoder_and_a_t5(tmp_path):
    torch.manual_seed(0)
    tuned = TunedWriter("minilm", CodeWriter(384, [4, 4], width=32, heads=2), "top").eval()
    words = sorted({word for text in TEXTS for word in text.split()})
    t5 = T5CodeWriter.from_pretrained(save_small_t5(tmp_path / "t5", words), [4, 4]).eval()
    prefix = torch.tensor([[1], [0], [3], [2], [1], [0], [2]])

    def hidden(tokens, codes):
        return t5.hidden(tokens, codes)[:, -1]

    for model, encode, more in ((tuned, tuned.memory, ()), (t5, hidden, (prefix,))):
        inputs = (model.batch(model.tokenize(TEXTS)), *more)
        whole = gradients(model, in_batch, *[encode(*inputs)] * 2)
        cached = gradients(model, in_batch, *[in_chunks(encode, inputs, 3)] * 2)
        assert whole
        for one, other in zip(cached, whole, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
