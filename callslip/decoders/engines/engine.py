"""Search engines: the weights that they run, what they do with them, and the choice between torch and ONNX Runtime.

T5 and our own code writer export their weights in one form, independent of the modules that are trained;
`torch_engine` runs it in torch, `onnx_engine` in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor, nn

Activation = Literal["relu", "gelu", "gelu_tanh"]
EngineName = Literal["auto", "onnx", "torch"]
LARGEST = 1_800_000_000
"""Maximum size of the weights of an ONNX graph in bytes."""


@dataclass
class Affine:
    """x W^T + b, weight [outputs, inputs]."""

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def joined(cls, *linears: Any) -> Affine:
        """Several linear modules that read the same input, as one."""
        biases = [linear.bias for linear in linears]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        return cls(weight, None if biases[0] is None else torch.cat([bias.detach() for bias in biases]))


@dataclass
class Norm:
    """`layer`: layer norm; `rms`: RMS norm, without the mean."""

    kind: Literal["layer", "rms"]
    weight: Tensor
    bias: Tensor | None
    eps: float


@dataclass
class SelfAttentionWeights:
    norm: Norm
    qkv: Affine
    out: Affine


@dataclass
class CrossAttentionWeights:
    norm: Norm
    query: Affine
    key_value: Affine
    out: Affine


@dataclass
class FeedForwardWeights:
    norm: Norm
    up: Affine
    down: Affine
    activation: Activation
    gated: bool = False
    """Gated: the activation of the first half of `up`, times the second half."""


@dataclass
class MemoryWeights:
    """Projects each input vector to `slots` normalised vectors of the decoder's width."""

    project: Affine
    slots: int
    norm: Norm


@dataclass
class DecoderWeights:
    """Pre-norm layers. The attention scale is folded into the query projections."""

    layers: list[tuple[SelfAttentionWeights, CrossAttentionWeights, FeedForwardWeights]]
    final: Norm
    heads: int
    bias: Callable[[int], Tensor] | None = None
    """Attention bias of the newest of n tokens towards each of them, [n, heads]; None for no bias."""
    memory: MemoryWeights | None = None
    """Projection of the input to the memory of cross-attention; None uses the input itself."""

    @property
    def inner(self) -> int:
        """Number of heads times head width."""
        return len(self.layers[0][0].qkv.weight) // 3


@dataclass
class EncoderWeights:
    """T5's encoder, with relative position bias."""

    layers: list[tuple[SelfAttentionWeights, FeedForwardWeights]]
    final: Norm
    heads: int
    bias: Callable[[int], Tensor]
    """Position bias of the attention between n tokens, [1, heads, n, n]."""


class State(Protocol):
    """The memory and key-value cache of a decoder. Steps create new tensors, so that a fork is independent."""

    @property
    def written(self) -> int: ...

    def fork(self) -> Any: ...


class Engine(Protocol):
    """Runs a decoder one token at a time for all beams at once."""

    def encode(self, x: Tensor, mask: Tensor) -> Tensor:
        """Run the encoder, if there is one: embeddings [Q, S, model], mask [Q, S] -> states [Q, S, model]."""

    def read(self, memory: Tensor, mask: Tensor | None) -> Any:
        """Start from the memory that the beams attend to, [Q, S, input_dim]; `mask` [Q, S] is 0 for padding."""

    def step(self, state: Any, x: Tensor, parents: Tensor | None) -> Tensor:
        """Append one token to each beam: embeddings [Q, beams, model] -> decoder states [Q, beams, model]. `parents`
        [Q, beams] is the earlier beam of the same query that each beam continues."""


def padding(memory: Tensor, mask: Tensor | None) -> Tensor | None:
    """The padding mask as an additive attention bias, [Q, 1, 1, S]; None if nothing is padded."""
    if mask is None or bool(mask.all()):
        return None
    zeros = torch.zeros(mask.shape, dtype=memory.dtype, device=memory.device)
    return zeros.masked_fill_(mask == 0, -torch.inf)[:, None, None, :]


def rows_of(parents: Tensor, before: int) -> Tensor:
    """Convert beam indices within each query, [Q, beams], to flat row indices, with `before` beams per query."""
    each = before // len(parents)
    return (parents + torch.arange(0, before, each, device=parents.device)[:, None]).view(-1)


def engine_for(decoder: DecoderWeights, encoder: EncoderWeights | None = None, name: EngineName = "auto") -> Engine:
    """`auto` uses ONNX Runtime, if installed, for float32 on a CPU, and torch otherwise."""
    example = decoder.final.weight
    size = sum(
        affine.weight.numel() * 4
        for own, cross, feed in decoder.layers
        for affine in (own.qkv, own.out, cross.query, cross.key_value, cross.out, feed.up, feed.down)
    )
    fits = example.device.type == "cpu" and example.dtype == torch.float32 and size < LARGEST
    if name == "onnx" or (name == "auto" and fits and find_spec("onnxruntime") and find_spec("onnx")):
        from callslip.decoders.engines.onnx_engine import OnnxEngine

        return OnnxEngine(decoder, encoder)
    from callslip.decoders.engines.torch_engine import TorchEngine

    return TorchEngine(decoder, encoder)


class Searched(nn.Module):
    """A model with a search engine, which is rebuilt whenever the weights may have changed."""

    _engine: Engine | None = None

    def train(self, mode: bool = True) -> Self:
        self._engine = None
        return super().train(mode)

    def load_state_dict(self, *arguments: Any, **more: Any) -> Any:
        self._engine = None
        return super().load_state_dict(*arguments, **more)

    def _apply(self, *arguments: Any, **more: Any) -> Self:
        self._engine = None  # the model moves to another device or dtype
        return super()._apply(*arguments, **more)
