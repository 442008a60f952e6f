"""An encoder as an int8 graph on ONNX Runtime: fast to start, since it needs no torch, and slightly less accurate.

The first vector takes 0.7 s of CPU time instead of 6 s. Throughput on a processor without VNNI is only about 10%
higher than torch's, and the one-time export takes about 25 s of CPU time.

The graph is exported once from the torch model, with weights quantised to int8 (activations are quantised at run time),
and cached in the cache folder, next to its SHA-256, under a name that hashes everything it depends on.

Design choices, by measurement (all-MiniLM-L6-v2, 40 abstracts and 40 claims of SciFact):
- scales per output channel (mean cosine to fp32 0.993, against 0.945 with one scale per matrix);
- outliers smoothed into the weights first (`smoothing.py`; 0.998 against 0.997, and for granite 0.997 against 0.986);
- 7-bit weights: processors without VNNI add two products in 16 bits, which saturates with 8-bit weights;
- matrices with fewer outputs than inputs (the second of the feed-forward block) stay in float: their inputs come
  straight from the activation function, and have outliers that cost more than all other matrices together;
- one text at a time: activation scales are computed over the whole batch, so in a batch a text's vector would depend
  on the other texts and on padding. On few cores this is no slower.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from callslip.encoders.pretrained import Checkpoint
from callslip.errors import CallslipError, MissingExtra
from callslip.runtime import durable
from callslip.runtime.process import cache_folder

RECIPE = "int8-1"
"""Version of the export, part of the file name and of the encoder's fingerprint; change it if the vectors change."""
OUTPUTS = ("vectors", "states")
"""What the graph gives: the vector of each text, and the states of its tokens. What is not asked for costs nothing."""

GPU_NODES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Linux device files of GPUs that torch might use: NVIDIA, AMD, and WSL."""


class ExportFailed(CallslipError):
    """The model cannot be exported to a graph; it still runs in torch."""


def suits(device: Any) -> bool:
    """Whether "auto" should use the graph: extra installed, cache enabled, and no GPU present or requested."""
    wanted = ("onnxruntime", "onnx", "onnxscript")
    if str(device or "cpu") != "cpu" or cache_folder() is None or any(find_spec(name) is None for name in wanted):
        return False
    if device is not None or (sys.platform == "linux" and not any(Path(node).exists() for node in GPU_NODES)):
        return True  # decided without importing torch, which would dominate the start-up time of a search
    from callslip.runtime.device import best_device

    return best_device().type == "cpu"


class OnnxRunner:
    """Runs the graph, one text at a time."""

    precision = RECIPE
    batch_tokens = 1

    def __init__(self, graph: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # see callslip.runtime.process
        options.enable_mem_pattern = False  # memory patterns are cached per shape, and every text has its own shape
        self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.concatenate([found[0] for found in self._run(ids, mask, OUTPUTS[:1])])

    def with_states(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = self._run(ids, mask, OUTPUTS)
        states = np.zeros((*ids.shape, found[0][1].shape[-1]), np.float32)
        for row, (_, own) in zip(states, found, strict=True):
            row[: own.shape[1]] = own[0]
        return np.concatenate([vector for vector, _ in found]), states

    def _run(self, ids: np.ndarray, mask: np.ndarray, outputs: Sequence[str]) -> list[Any]:
        """The outputs of each text."""
        return [
            self.session.run(outputs, {"input_ids": one[None, :length], "attention_mask": kept[None, :length]})
            for one, kept, length in zip(ids, mask, mask.sum(axis=1))
        ]


def threads() -> int:
    """As many threads as torch would use: its own setting if imported, OMP_NUM_THREADS, or the available cores."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    stated = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if stated.isdecimal() and int(stated) > 0:
        return int(stated)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_runner(checkpoint: Checkpoint) -> OnnxRunner:
    """The checkpoint's graph, from the cache folder or exported now."""
    if find_spec("onnxruntime") is None:
        raise MissingExtra("running an encoder in int8", "onnx")
    folder = cache_folder()
    if folder is None:
        return OnnxRunner(export(checkpoint))
    described = f"{checkpoint.weights} {checkpoint.pooling} {RECIPE} {' '.join(OUTPUTS)}"
    key = hashlib.sha256(described.encode()).hexdigest()[:32]
    graph = read_graph(folder / "onnx", key)
    if graph is None:
        graph = export(checkpoint)
        keep_graph(folder / "onnx", key, graph)
    return OnnxRunner(graph)


def read_graph(folder: Path, key: str) -> bytes | None:
    """The cached graph, or None if it is missing or corrupt."""
    try:
        note = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
        graph = (folder / Path(note["file"]).name).read_bytes()
        return graph if hashlib.sha256(graph).hexdigest() == note["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_graph(folder: Path, key: str, graph: bytes) -> None:
    """Atomically write the graph, then the note that names it. A full or read-only disk only causes a warning."""
    digest = hashlib.sha256(graph).hexdigest()
    # The file name includes the content's hash, so that two concurrent exports never mix their files.
    name = f"{key}-{digest[:12]}.onnx"
    note = json.dumps({"file": name, "sha256": digest, "recipe": RECIPE}, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        durable.replace(folder / name, graph)
        durable.replace(folder / f"{key}.json", note.encode())
    except OSError as error:
        warnings.warn(f"{folder}: the exported encoder could not be cached ({error})", stacklevel=2)


def export(checkpoint: Checkpoint) -> bytes:
    """The checkpoint as an int8 graph: input_ids and attention_mask, int64 [b, t], to pooled vectors [b, dim] and
    states [b, t, d]."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise MissingExtra("exporting an encoder to int8", "onnx") from None
    with tempfile.TemporaryDirectory() as folder, _quietly():
        plain, small = Path(folder) / "plain.onnx", Path(folder) / "int8.onnx"
        try:
            _export_plain(checkpoint, plain)
            _quantise(plain, small)
        except CallslipError:
            raise
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ExportFailed(
                f"the encoder {checkpoint.name!r} could not be exported ({first})", "Use backend='torch'."
            ) from error
        return small.read_bytes()


def _export_plain(checkpoint: Checkpoint, path: Path) -> None:
    import torch

    from callslip.encoders.pooling import PooledModel, WithStates
    from callslip.encoders.smoothing import smooth

    smoothed = smooth(checkpoint.load_model(), checkpoint.tokenizer)
    model = WithStates(PooledModel(smoothed, checkpoint.pooling, checkpoint.load_modules()))
    ids = torch.full((2, 7), 5, dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    batch, length = (
        torch.export.Dim("batch", min=1, max=4096),
        torch.export.Dim("length", min=1, max=checkpoint.longest),
    )
    with torch.inference_mode():
        program = torch.onnx.export(
            model,
            (ids, mask),
            dynamo=True,
            verbose=False,
            input_names=["input_ids", "attention_mask"],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: length}),
        )
    assert program is not None
    program.save(str(path), external_data=False)


def _quantise(plain: Path, small: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(plain),
        str(small),
        op_types_to_quantize=["MatMul"],
        nodes_to_exclude=list(narrowing_products(onnx.load(str(plain)))),
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
    )


def narrowing_products(graph: Any) -> Iterator[str]:
    """Names of the matrix products whose constant matrix has fewer columns than rows."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.graph.initializer}
    for node in graph.graph.node:
        shape = shapes.get(node.input[1], ()) if node.op_type == "MatMul" else ()
        if len(shape) == 2 and shape[0] > shape[1]:
            yield node.name


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the warnings and root-logger messages of the exporter and the quantiser."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
