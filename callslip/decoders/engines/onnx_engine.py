"""Decoder steps in ONNX Runtime (extra `onnx`), for float32 on a CPU: one call per step.

ONNX Runtime's matrix products with few rows took half the time of torch's (AVX2, ten rows), and a step of a small T5
has about two hundred operators, whose Python overhead exceeds their computation. The graphs are built from the same
weights that `torch_engine` runs; the tests compare the two.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from callslip.decoders.engines.engine import (
    Affine,
    CrossAttentionWeights,
    DecoderWeights,
    EncoderWeights,
    FeedForwardWeights,
    Norm,
    SelfAttentionWeights,
    padding,
    rows_of,
)


@dataclass
class OnnxState:
    memory: np.ndarray  # the encoded query, from which the first step computes `cross`
    mask: np.ndarray  # [Q, 1, 1, S] or [1, 1, 1, 1]
    cross: dict[str, np.ndarray]  # per layer keys [Q, heads, width, S] and values [Q, heads, S, width]
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
        self.opening, self.beginning = _opening_graph(decoder).session(threads), _first_graph(decoder).session(threads)
        self.opened: tuple[np.ndarray, list[np.ndarray]] | None = None
        self.stepping = _step_graph(decoder).session(threads)
        self.nothing = np.zeros((1, 1, 1, 1), np.float32)
        layers = range(len(decoder.layers))
        self.cross_names = [f"{part}_{layer}" for layer in layers for part in ("keys", "values")]
        self.past_names = [f"past_{layer}" for layer in layers]

    def encode(self, x: Tensor, mask: Tensor) -> Tensor:
        assert self.encoder is not None and self.encoding is not None
        bias = self.encoder.bias(x.shape[1])
        if not bool(mask.all()):
            bias = bias.masked_fill((mask == 0)[:, None, None, :], -torch.inf)
        return torch.from_numpy(self.encoding.run(None, {"x": x.numpy(), "bias": bias.detach().numpy()})[0])

    def read(self, memory: Tensor, mask: Tensor | None) -> OnnxState:
        added = padding(memory, mask)
        return OnnxState(memory.numpy(), self.nothing if added is None else added.numpy(), {}, [])

    def first(self, state: OnnxState, x: Tensor) -> Tensor:
        """The first step, [Q, 1, model], and the keys and values of the memory, in one call. The start token is the
        same for every query, so its self-attention, which does not depend on the query, is cached."""
        begin, opened = x[0].numpy(), self.opened
        if opened is None or not np.array_equal(opened[0], begin):
            self.opened = opened = begin, self.opening.run(None, {"x": begin})
        itself, query, opening = opened[1]
        feed = {"x": itself, "query": query, "memory": state.memory, "mask": state.mask}
        hidden, *kept = self.beginning.run(None, feed)
        state.cross = dict(zip(self.cross_names, kept, strict=False))
        pasts = (opening, *kept[len(self.cross_names) :])
        state.past = [
            past if len(past) == len(x) else np.broadcast_to(past, (len(x), *past.shape[1:])) for past in pasts
        ]
        state.written = 1
        return torch.from_numpy(hidden).view(x.shape)

    def step(self, state: OnnxState, x: Tensor, parents: Tensor | None) -> Tensor:
        if parents is None:
            return self.first(state, x)
        shape, heads, before = x.shape, self.decoder.heads, len(state.past[0])
        feed: dict[str, Any] = {
            "x": x.reshape(-1, shape[2]).numpy(),
            "rows": (rows_of(parents, before) if len(parents) > 1 else parents[0]).numpy(),
            "mask": state.mask,
            "shape": np.array([shape[0], -1, heads, self.decoder.inner // heads], np.int64),
            **state.cross,
        }
        feed.update(zip(self.past_names, state.past, strict=True))
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


def _opening_graph(weights: DecoderWeights) -> Graph:
    """The start token up to the first layer's self-attention: [1, model] -> the output of self-attention; the query of
    its cross-attention; and its key and value."""
    graph = Graph()
    own, cross, _ = weights.layers[0]
    x, now = _attention_to_itself(graph, graph.input("x", [1, len(weights.final.weight)]), own)
    for value in (x, graph.affine(graph.norm(x, cross.norm), cross.query), now):
        graph.output(value)
    return graph


def _first_graph(weights: DecoderWeights) -> Graph:
    """The rest of the first step after `_opening_graph`: the states, then keys and values of the memory for each layer,
    then those of the start token for each layer except the first."""
    graph = Graph()
    heads, inner, model = weights.heads, weights.inner, len(weights.final.weight)
    x, query = graph.input("x", [1, model]), graph.input("query", [1, inner])
    mask, memory = graph.input("mask", [None, 1, 1, None]), _memory(graph, weights)
    shape = graph.constant(np.array([-1, 1, heads, inner // heads], np.int64))
    crossed, kept = [], []
    for layer, (own, cross, feed) in enumerate(weights.layers):
        flat = graph.split(graph.affine(memory, cross.key_value), inner, inner)
        keys, values = (graph.reshape(part, [0, 0, heads, -1]) for part in flat)
        keys = graph.op("Transpose", keys, perm=[0, 2, 3, 1])
        values = graph.op("Transpose", values, perm=[0, 2, 1, 3])
        crossed += [keys, values]
        if layer:
            x, now = _attention_to_itself(graph, x, own)
            kept.append(now)
            query = graph.affine(graph.norm(x, cross.norm), cross.query)
        x = _feed_forward(graph, _attention_to_memory(graph, x, query, cross, keys, values, mask, shape), feed)
    for value in (graph.norm(x, weights.final), *crossed, *kept):
        graph.output(value)
    return graph


def _memory(graph: Graph, weights: DecoderWeights) -> str:
    """The memory of cross-attention, from the encoded query."""
    if weights.memory is None:
        return graph.input("memory", [None, None, weights.layers[0][1].key_value.weight.shape[1]])
    read = graph.input("memory", [None, None, weights.memory.project.weight.shape[1]])
    flat = graph.reshape(graph.affine(read, weights.memory.project), [0, -1, len(weights.memory.norm.weight)])
    return graph.norm(flat, weights.memory.norm)


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
        query = graph.affine(graph.norm(x, cross.norm), cross.query)
        x = _attention_to_memory(graph, x, query, cross, keys, values, mask, shape)
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


def _attention_to_itself(graph: Graph, x: str, weights: SelfAttentionWeights) -> tuple[str, str]:
    """Self-attention of the first token, which attends only to itself; and its key and value, [n, 1, 2 * inner]."""
    inner = len(weights.qkv.weight) // 3
    key_value = Affine(weights.qkv.weight[inner:], None if weights.qkv.bias is None else weights.qkv.bias[inner:])
    now = graph.affine(graph.norm(x, weights.norm), key_value)
    value = graph.split(now, inner, inner)[1]
    return graph.op("Add", graph.affine(value, weights.out), x), graph.reshape(now, [0, 1, -1])


def _attention_to_memory(
    graph: Graph, x: str, flat: str, weights: CrossAttentionWeights, keys: str, values: str, mask: str, shape: str
) -> str:
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


# The graphs are put together with this.

OPSET, IR_VERSION = 20, 9


class Graph:
    """Collects operators; every method returns the name of its output."""

    def __init__(self) -> None:
        import onnx

        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._names: dict[bytes, str] = {}

    def _new(self) -> str:
        return f"n{len(self.nodes)}_{len(self.constants)}"

    def input(self, name: str, shape: list[int | None], kind: str = "float32") -> str:
        self.inputs.append(self._info(name, shape, kind))
        return name

    def output(self, value: str) -> None:
        """Declare a value as an output; outputs keep the order of declaration."""
        self.outputs.append(self._info(value, None, "float32"))

    def _info(self, name: str, shape: list[int | None] | None, kind: str) -> Any:
        proto = self.onnx.TensorProto
        return self.onnx.helper.make_tensor_value_info(name, proto.INT64 if kind == "int64" else proto.FLOAT, shape)

    def constant(self, array: np.ndarray) -> str:
        small = array.tobytes() + str(array.dtype).encode() if array.nbytes < 256 else None
        if small is not None and small in self._names:
            return self._names[small]
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        if small is not None:
            self._names[small] = name
        return name

    def weight(self, tensor: Tensor) -> str:
        return self.constant(tensor.detach().cpu().numpy())

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = self._new()
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def split(self, value: str, *sizes: int, axis: int = -1) -> list[str]:
        names = [f"{self._new()}_{part}" for part in range(len(sizes))]
        lengths = self.constant(np.array(sizes, np.int64))
        self.nodes.append(self.onnx.helper.make_node("Split", [value, lengths], names, axis=axis))
        return names

    def reshape(self, value: str, shape: list[int]) -> str:
        return self.op("Reshape", value, self.constant(np.array(shape, np.int64)))

    def affine(self, x: str, affine: Affine) -> str:
        product = self.op("MatMul", x, self.weight(affine.weight.t().contiguous()))
        return product if affine.bias is None else self.op("Add", product, self.weight(affine.bias))

    def norm(self, x: str, norm: Norm) -> str:
        if norm.kind == "layer":
            biases = [] if norm.bias is None else [self.weight(norm.bias)]
            return self.op("LayerNormalization", x, self.weight(norm.weight), *biases, epsilon=norm.eps)
        return self.op("SimplifiedLayerNormalization", x, self.weight(norm.weight), axis=-1, epsilon=norm.eps)

    def activation(self, x: str, name: str) -> str:
        if name == "relu":
            return self.op("Relu", x)
        return self.op("Gelu", x, approximate="tanh" if name == "gelu_tanh" else "none")

    def session(self, threads: int) -> Any:
        """An inference session for the graph. Thread spinning is off: spinning threads would keep cores from other
        processes."""
        import onnxruntime

        graph = self.onnx.helper.make_graph(self.nodes, "callslip", self.inputs, self.outputs, self.constants)
        opset = [self.onnx.helper.make_opsetid("", OPSET)]
        model = self.onnx.helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
