"""The weights of a decoder (and of T5's encoder), apart from the modules that are trained: what a search engine runs.

T5 and our own code writer give theirs in this form; `steps` runs them in torch, `onnx_steps` in ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Activation = Literal["relu", "gelu", "gelu_tanh"]


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
    """`layer`: mean and variance; `rms`: the root of the mean square alone."""

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
    """The first half of `up`, activated, times the second half."""


@dataclass
class MemoryWeights:
    """Each vector that is read becomes `slots` vectors of the decoder's width, normed."""

    project: Affine
    slots: int
    norm: Norm


@dataclass
class DecoderWeights:
    """Pre-norm layers. Queries of attention are scaled already."""

    layers: list[tuple[SelfAttentionWeights, CrossAttentionWeights, FeedForwardWeights]]
    final: Norm
    heads: int
    bias: Callable[[int], Tensor] | None = None
    """What the newest of n tokens adds to its attention to each of them, [n, heads]; none adds nothing."""
    memory: MemoryWeights | None = None
    """How what is read becomes what cross-attention attends to; none takes it as it is."""

    @property
    def inner(self) -> int:
        """Heads times the width of a head."""
        return len(self.layers[0][0].qkv.weight) // 3


@dataclass
class EncoderWeights:
    """T5's encoder, whose attention is biased by positions."""

    layers: list[tuple[SelfAttentionWeights, FeedForwardWeights]]
    final: Norm
    heads: int
    bias: Callable[[int], Tensor]
    """What positions add to the attention between n tokens, [1, heads, n, n]."""


class State(Protocol):
    """What a decoder has read and written so far. Steps make new tensors, so a fork can go on alone."""

    @property
    def written(self) -> int: ...

    def fork(self) -> Any: ...


class Engine(Protocol):
    """Runs a decoder one token at a time for all beams at once."""

    def encode(self, x: Tensor, mask: Tensor) -> Tensor:
        """Run the encoder, if there is one: embeddings [Q, S, model], mask [Q, S] -> states [Q, S, model]."""

    def read(self, memory: Tensor, mask: Tensor | None) -> Any:
        """Begin with what the beams will attend to: memory [Q, S, what is read]; `mask` [Q, S] is 0 where it is
        padding."""

    def step(self, state: Any, x: Tensor, parents: Tensor | None) -> Tensor:
        """Write one token on each beam: embeddings [Q, beams, model] -> decoder states [Q, beams, model]. `parents`
        [Q, beams] says which earlier beam of its query each one continues."""
