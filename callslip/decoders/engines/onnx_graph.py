"""A minimal builder of ONNX graphs: operators by name, weights as constants."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from callslip.decoders.engines.weights import Affine, Norm

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
