"""Decoder steps in torch, on any device: one token for all beams at once, with as few and large products as possible.

Query, key and value are one product; the keys and values of cross-attention are stored once per query and shared by its
beams; the first step has one row per query instead of one per beam.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from callslip.decoders.engines.engine import (
    CrossAttentionWeights,
    DecoderWeights,
    EncoderWeights,
    FeedForwardWeights,
    Norm,
    SelfAttentionWeights,
    padding,
    rows_of,
)
from callslip.decoders.engines.packed import PackedLinear


@dataclass
class TorchState:
    cross: list[tuple[Tensor, Tensor]]  # per layer keys [Q, heads, width, S] and values [Q, heads, S, width]
    mask: Tensor | None  # [Q, 1, 1, S], added to the scores of cross-attention
    past: Tensor | None = None  # [layers, Q * beams, written, 2 * inner]: keys and values of self-attention
    written: int = 0

    def fork(self) -> TorchState:
        return copy(self)


class TorchEngine:
    """See `Engine`."""

    def __init__(self, decoder: DecoderWeights, encoder: EncoderWeights | None = None) -> None:
        self.inner, self.heads, self.bias, self.memory = decoder.inner, decoder.heads, decoder.bias, decoder.memory
        self.final = decoder.final
        self.layers = [
            (_SelfAttention(own, decoder.heads), _CrossAttention(cross, decoder.heads), _FeedForward(feed))
            for own, cross, feed in decoder.layers
        ]
        self.encoder = encoder
        self.encoder_layers: list[tuple[_SelfAttention, _FeedForward]] = []
        if encoder is not None:
            self.encoder_layers = [
                (_SelfAttention(own, encoder.heads), _FeedForward(feed)) for own, feed in encoder.layers
            ]

    def encode(self, x: Tensor, mask: Tensor) -> Tensor:
        assert self.encoder is not None
        bias = self.encoder.bias(x.shape[1])
        if not bool(mask.all()):
            bias = bias.masked_fill((mask == 0)[:, None, None, :], -torch.inf)
        for attention, feed in self.encoder_layers:
            x = attention.all(x, bias)
            x = feed(x.view(-1, x.shape[2])).view_as(x)
        return normed(x, self.encoder.final)

    def read(self, memory: Tensor, mask: Tensor | None) -> TorchState:
        if self.memory is not None:
            flat = functional.linear(memory, self.memory.project.weight, self.memory.project.bias)
            memory = normed(flat.view(len(memory), -1, len(self.memory.norm.weight)), self.memory.norm)
        return TorchState([cross.keys_values(memory) for _, cross, _ in self.layers], padding(memory, mask))

    def step(self, state: TorchState, x: Tensor, parents: Tensor | None) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, shape[2])
        past = x.new_empty((len(self.layers), len(x), state.written + 1, 2 * self.inner))
        if parents is not None and state.past is not None:
            past[:, :, :-1] = state.past.index_select(1, rows_of(parents, state.past.shape[1]))
        bias = None if self.bias is None else self.bias(state.written + 1)
        for (attention, cross, feed), kept, memory in zip(self.layers, past, state.cross, strict=True):
            x = feed(cross(attention.step(x, kept, bias), memory, state.mask))
        state.past, state.written = past, state.written + 1
        return normed(x, self.final).view(shape)


class _SelfAttention:
    def __init__(self, weights: SelfAttentionWeights, heads: int) -> None:
        self.norm, self.heads = partial(normed, norm=weights.norm), heads
        self.qkv, self.out = PackedLinear(weights.qkv), PackedLinear(weights.out)

    def step(self, x: Tensor, kept: Tensor, bias: Tensor | None) -> Tensor:
        """One row per beam, x [n, model]. `kept` [n, written + 1, 2 * inner] is the key-value cache of each beam, whose
        last entry is filled in here; bias [written + 1, heads]."""
        query, now = self.qkv(self.norm(x)).split([kept.shape[2] // 2, kept.shape[2]], dim=1)
        kept[:, -1] = now
        keys, values = kept.unflatten(2, (2, self.heads, -1)).unbind(2)  # [n, written + 1, heads, width]
        if kept.shape[1] == 1:
            mixed = values[:, 0]  # a single token attends only to itself
        else:
            weights = (query.unflatten(1, (1, self.heads, -1)) * keys).sum(-1)
            if bias is not None:
                weights += bias
            mixed = (weights.softmax(1).unsqueeze(-1) * values).sum(1)
        return self.out.added(mixed.reshape(len(x), -1), x)

    def all(self, x: Tensor, bias: Tensor) -> Tensor:
        """Encoder self-attention: all tokens x [Q, S, model] attend to each other."""
        size, length, model = x.shape
        rows = x.view(-1, model)
        packed = self.qkv(self.norm(rows)).view(size, length, 3, self.heads, -1)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        return self.out.added(mixed.transpose(1, 2).reshape(len(rows), -1), rows).view_as(x)


class _CrossAttention:
    def __init__(self, weights: CrossAttentionWeights, heads: int) -> None:
        self.norm, self.heads = partial(normed, norm=weights.norm), heads
        self.query, self.out = PackedLinear(weights.query), PackedLinear(weights.out)
        self.key_value = PackedLinear(weights.key_value)

    def keys_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        size, length, model = states.shape
        both = self.key_value(states.reshape(-1, model)).view(size, length, 2, self.heads, -1)
        return both[:, :, 0].permute(0, 2, 3, 1).contiguous(), both[:, :, 1].transpose(1, 2).contiguous()

    def __call__(self, x: Tensor, cross: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Cross-attention, x [Q * beams, model]; the beams of a query share its memory."""
        keys, values = cross
        query = self.query(self.norm(x)).view(len(keys), -1, self.heads, keys.shape[2]).transpose(1, 2)
        scores = query @ keys
        if mask is not None:
            scores += mask
        return self.out.added((scores.softmax(-1) @ values).transpose(1, 2).reshape(len(x), -1), x)


class _FeedForward:
    def __init__(self, weights: FeedForwardWeights) -> None:
        self.norm, self.gated, self.activation = partial(normed, norm=weights.norm), weights.gated, weights.activation
        self.up, self.down = PackedLinear(weights.up), PackedLinear(weights.down)

    def __call__(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, linear = self.up(self.norm(x)).chunk(2, dim=-1)
            return self.down.added(activated(gate, self.activation) * linear, x)
        return self.down.added(self.up(self.norm(x), self.activation), x)


def normed(x: Tensor, norm: Norm) -> Tensor:
    if norm.kind == "layer":
        return functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)
    return x * torch.rsqrt(torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(norm.eps)).unsqueeze_(-1) * norm.weight


def activated(x: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return functional.relu(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")
