"""Weights of an int8 ONNX graph as float32 arrays under the names that transformers gives them.

ONNX Runtime's dynamic quantisation keeps biases and norms as they were, stores embeddings as `NAME_quantized` beside
their scale and zero point, and stores the matrix of a linear layer under a made-up name: its true name is that of the
node which multiplies by it (`/encoder/layer.0/output/dense/MatMul_quant`). The graph itself is never run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from callslip.errors import CallslipError, IndexCorrupt

QUANTIZED, SCALE, ZERO = "_quantized", "_scale", "_zero_point"
PRODUCTS = ("/MatMul_quant", "/Gemm_MatMul_quant")
"""Endings of the names of nodes that multiply by the matrix of a linear layer."""


def float_weights(path: Path) -> dict[str, np.ndarray]:
    """Every weight of the graph as float32, by name; matrices of linear layers are [outputs, inputs], as in torch."""
    if find_spec("onnx") is None:
        raise CallslipError("reading packaged weights needs the package onnx", "Install it: pip install onnx")
    import onnx
    from onnx import numpy_helper

    try:
        graph = onnx.load(str(path), load_external_data=False).graph  # the file is all there is
    except Exception as error:  # protobuf raises its own errors
        raise IndexCorrupt(path, f"is not an ONNX graph ({type(error).__name__})") from None
    arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    linear = {matrix: name for node in graph.node if (name := _linear_name(node)) for matrix in _matrices(node, arrays)}
    found = {}
    for name, values in arrays.items():
        if name in linear:
            found[linear[name]] = np.ascontiguousarray(_dequantised(path, arrays, name).T)
        elif name.endswith(QUANTIZED):
            found[name.removesuffix(QUANTIZED)] = _dequantised(path, arrays, name)
        elif not name.endswith((SCALE, ZERO)) and "." in name and values.dtype == np.float32:
            found[name] = values
    return found


def _linear_name(node: Any) -> str:
    """The name of the weight that a node multiplies by; empty for other nodes."""
    ending = next((ending for ending in PRODUCTS if node.name.endswith(ending)), None)
    if node.op_type != "MatMulInteger" or ending is None:
        return ""
    return node.name.removesuffix(ending).strip("/").replace("/", ".") + ".weight"


def _matrices(node: Any, arrays: dict[str, np.ndarray]) -> list[str]:
    return [name for name in node.input if name.endswith(QUANTIZED) and name in arrays]


def _dequantised(path: Path, arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    stem = name.removesuffix(QUANTIZED)
    try:
        scale, zero = arrays[stem + SCALE].astype(np.float32), arrays[stem + ZERO].astype(np.float32)
    except KeyError:
        raise IndexCorrupt(path, f"{stem!r} has no scale or zero point") from None
    # One scale for all, or one for each column.
    return (arrays[name].astype(np.float32) - zero) * scale
