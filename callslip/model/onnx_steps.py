"""The same decoder steps in ONNX Runtime (extra `onnx`), for float32 on a CPU: one call a step.

Its matrix products with few rows took half the time of torch's here (AVX2, ten rows), and a step of a small T5 is some
two hundred operators, each of which costs Python more than it computes. The graphs are written from the same weights
that `steps` runs; the tests compare the two.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from callslip.model.graphs import Graph
from callslip.model.steps import padding, rows_of
from callslip.model.weights import (
    CrossAttentionWeights,
    DecoderWeights,
    EncoderWeights,
    FeedForwardWeights,
    SelfAttentionWeights,
)


@dataclass
class OnnxState:
    cross: dict[str, np.ndarray]  # per layer keys [Q, heads, width, S] and values [Q, heads, S, width]
    mask: np.ndarray  # [Q, 1, 1, S] or [1, 1, 1, 1]
    past: list[np.ndarray]  # per layer [Q * beams, written, 2 * inner]
    written: int = 0

    def fork(self) -> OnnxState:
        return copy(self)


class OnnxEngine:
    """See `Engine`."""

    def __init__(self, decoder: DecoderWeights, encoder: EncoderWeights | None = None, threads: int = 0) -> None:
        threads = threads or torch.get_num_threads()
        self.decoder, self.encoder = decoder, encoder
        self.encoding = _encoder_graph(encoder).session(threads) if encoder else None
        self.reading = _read_graph(decoder).session(threads)
        self.stepping = _step_graph(decoder).session(threads)
        self.nothing = np.zeros((1, 1, 1, 1), np.float32)

    def encode(self, x: Tensor, mask: Tensor) -> Tensor:
        assert self.encoder is not None and self.encoding is not None
        bias = self.encoder.bias(x.shape[1])
        if not bool(mask.all()):
            bias = bias.masked_fill((mask == 0)[:, None, None, :], -torch.inf)
        return torch.from_numpy(self.encoding.run(None, {"x": x.numpy(), "bias": bias.detach().numpy()})[0])

    def read(self, memory: Tensor, mask: Tensor | None) -> OnnxState:
        values = self.reading.run(None, {"memory": memory.numpy()})
        names = [f"{part}_{layer}" for layer in range(len(self.decoder.layers)) for part in ("keys", "values")]
        added = padding(memory, mask)
        empty = np.zeros((len(memory), 0, 2 * self.decoder.inner), np.float32)
        return OnnxState(
            dict(zip(names, values, strict=True)),
            self.nothing if added is None else added.numpy(),
            [empty] * len(self.decoder.layers),
        )

    def step(self, state: OnnxState, x: Tensor, parents: Tensor | None) -> Tensor:
        shape, heads, before = x.shape, self.decoder.heads, len(state.past[0])
        feed: dict[str, Any] = {
            "x": x.reshape(-1, shape[2]).numpy(),
            "rows": np.arange(before) if parents is None else rows_of(parents, before).numpy(),
            "mask": state.mask,
            "shape": np.array([shape[0], -1, heads, self.decoder.inner // heads], np.int64),
            **state.cross,
        }
        feed.update((f"past_{layer}", past) for layer, past in enumerate(state.past))
        if self.decoder.bias is not None:
            feed["bias"] = self.decoder.bias(state.written + 1).t()[:, None].contiguous().detach().numpy()
        hidden, *past = self.stepping.run(None, feed)
        state.past, state.written = past, state.written + 1
        return torch.from_numpy(hidden).view(shape)


def _encoder_graph(weights: EncoderWeights) -> Graph:
    graph = Graph()
    x = graph.input("x", [None, None, len(weights.final.weight)])
    bias = graph.input("bias", [None, weights.heads, None, None])
    for own, feed in weights.layers:
        inner = len(own.qkv.weight) // 3
        q, k, v = graph.split(_qkv(graph, x, own), inner, inner, inner)
        heads = [0, 0, weights.heads, -1]
        query = graph.op("Transpose", graph.reshape(q, heads), perm=[0, 2, 1, 3])
        keys = graph.op("Transpose", graph.reshape(k, heads), perm=[0, 2, 3, 1])
        values = graph.op("Transpose", graph.reshape(v, heads), perm=[0, 2, 1, 3])
        mixed = graph.op("Transpose", _attention(graph, query, keys, values, bias), perm=[0, 2, 1, 3])
        x = graph.op("Add", graph.affine(graph.reshape(mixed, [0, 0, -1]), own.out), x)
        x = _feed_forward(graph, x, feed)
    graph.output(graph.norm(x, weights.final))
    return graph


def _read_graph(weights: DecoderWeights) -> Graph:
    graph = Graph()
    if weights.memory is None:
        memory = graph.input("memory", [None, None, weights.layers[0][1].key_value.weight.shape[1]])
    else:
        read = graph.input("memory", [None, None, weights.memory.project.weight.shape[1]])
        flat = graph.reshape(graph.affine(read, weights.memory.project), [0, -1, len(weights.memory.norm.weight)])
        memory = graph.norm(flat, weights.memory.norm)
    for _, cross, _ in weights.layers:
        keys, values = graph.split(graph.affine(memory, cross.key_value), weights.inner, weights.inner)
        heads = [0, 0, weights.heads, -1]
        graph.output(graph.op("Transpose", graph.reshape(keys, heads), perm=[0, 2, 3, 1]))
        graph.output(graph.op("Transpose", graph.reshape(values, heads), perm=[0, 2, 1, 3]))
    return graph


def _step_graph(weights: DecoderWeights) -> Graph:
    graph = Graph()
    heads, inner = weights.heads, weights.inner
    x = graph.input("x", [None, len(weights.final.weight)])
    rows = graph.input("rows", [None], "int64")
    bias = graph.input("bias", [heads, 1, None]) if weights.bias is not None else None
    mask, shape = graph.input("mask", [None, 1, 1, None]), graph.input("shape", [4], "int64")
    kept = []
    for layer, (own, cross, feed) in enumerate(weights.layers):
        past = graph.input(f"past_{layer}", [None, None, 2 * inner])
        keys = graph.input(f"keys_{layer}", [None, heads, inner // heads, None])
        values = graph.input(f"values_{layer}", [None, heads, None, inner // heads])
        x, now = _self_attention(graph, x, own, past, rows, bias, heads)
        x = _cross_attention(graph, x, cross, keys, values, mask, shape)
        x = _feed_forward(graph, x, feed)
        kept.append(now)
    for value in (graph.norm(x, weights.final), *kept):
        graph.output(value)
    return graph


def _qkv(graph: Graph, x: str, weights: SelfAttentionWeights) -> str:
    return graph.affine(graph.norm(x, weights.norm), weights.qkv)


def _self_attention(
    graph: Graph, x: str, weights: SelfAttentionWeights, past: str, rows: str, bias: str | None, heads: int
) -> tuple[str, str]:
    inner = len(weights.qkv.weight) // 3
    query, now = graph.split(_qkv(graph, x, weights), inner, 2 * inner)
    now = graph.reshape(now, [0, 1, -1])
    kept = graph.op("Concat", graph.op("Gather", past, rows, axis=0), now, axis=1)  # [n, written, 2 * inner]
    keys, values = graph.split(graph.reshape(kept, [0, 0, 2 * heads, -1]), heads, heads, axis=2)
    mixed = _attention(
        graph,
        graph.reshape(query, [0, heads, 1, -1]),
        graph.op("Transpose", keys, perm=[0, 2, 3, 1]),
        graph.op("Transpose", values, perm=[0, 2, 1, 3]),
        bias,
    )
    return graph.op("Add", graph.affine(graph.reshape(mixed, [0, -1]), weights.out), x), kept


def _cross_attention(
    graph: Graph, x: str, weights: CrossAttentionWeights, keys: str, values: str, mask: str, shape: str
) -> str:
    flat = graph.affine(graph.norm(x, weights.norm), weights.query)
    query = graph.op("Transpose", graph.op("Reshape", flat, shape), perm=[0, 2, 1, 3])  # [Q, heads, beams, width]
    mixed = graph.op("Transpose", _attention(graph, query, keys, values, mask), perm=[0, 2, 1, 3])
    inner = len(weights.query.weight)
    return graph.op("Add", graph.affine(graph.reshape(mixed, [-1, inner]), weights.out), x)


def _attention(graph: Graph, query: str, keys: str, values: str, bias: str | None) -> str:
    scores = graph.op("MatMul", query, keys)
    if bias is not None:
        scores = graph.op("Add", scores, bias)
    return graph.op("MatMul", graph.op("Softmax", scores, axis=-1), values)


def _feed_forward(graph: Graph, x: str, weights: FeedForwardWeights) -> str:
    high = graph.affine(graph.norm(x, weights.norm), weights.up)
    if weights.gated:
        half = len(weights.up.weight) // 2
        gate, linear = graph.split(high, half, half)
        high = graph.op("Mul", graph.activation(gate, weights.activation), linear)
    else:
        high = graph.activation(high, weights.activation)
    return graph.op("Add", graph.affine(high, weights.down), x)
