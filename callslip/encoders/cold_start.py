"""The first queries of a process, without torch.

Importing torch and transformers takes seconds, and the BERT of one short query a few milliseconds. So a process that
only asks a question, such as `callslip search`, computes it in NumPy from the same weights. Everything else runs in
torch, as does a process that goes on asking.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from callslip.encoders.encoder import TorchRunner

FIRST = 16
"""Batches that are computed in NumPy; a process that encodes more is worth the import of torch."""
SHORT = 64
"""Maximum number of tokens of a short batch, padding included."""

_erf = np.frompyfunc(math.erf, 1, 1)


def suits(folder: Path | None, pooling: str, modules: tuple[Any, ...]) -> bool:
    """Whether the checkpoint is a BERT as NumPy computes it, with nothing after its pooling."""
    if folder is None or modules or pooling not in ("mean", "cls") or not (folder / "model.safetensors").is_file():
        return False
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return (
        config.get("model_type") == "bert"
        and config.get("hidden_act", "gelu") == "gelu"
        and config.get("position_embedding_type", "absolute") == "absolute"
        and set(_tensors(config)) <= _saved(folder)
    )


def _tensors(config: dict[str, Any]) -> Iterator[str]:
    """The names of the weights that are needed."""
    yield from (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))
    parts = ["embeddings.LayerNorm"]
    for number in range(int(config["num_hidden_layers"])):
        inner = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
        outer = ("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")
        parts += [f"encoder.layer.{number}.{part}" for part in (*inner, *outer)]
    yield from (f"{part}.{kind}" for part in parts for kind in ("weight", "bias"))


def _saved(folder: Path) -> set[str]:
    """The names of the weights in the checkpoint; none if it is damaged, which torch's loader reports in full."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / "model.safetensors", framework="numpy") as file:
            return {name.removeprefix("bert.") for name in file.keys()}  # noqa: SIM118, it is no dict
    except (OSError, SafetensorError):
        return set()


class ColdStart:
    """A runner that loads torch's when it is needed: for long batches, and after the first short ones."""

    precision = "fp32"
    batch_tokens = 2048

    def __init__(self, folder: Path, pooling: str, load: Callable[[], TorchRunner]) -> None:
        self.folder, self.pooling, self.load = folder, pooling, load
        self._runner: TorchRunner | None = None
        self._bert: NumpyBert | None = None
        self._asked = 0

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        self._asked += 1
        if self._runner is None and ids.size <= SHORT and self._asked <= FIRST and "torch" not in sys.modules:
            if self._bert is None:
                self._bert = NumpyBert(self.folder)
            return pooled(self._bert(ids, mask), mask, self.pooling)
        return self.in_torch()(ids, mask)

    def with_states(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.in_torch().with_states(ids, mask)

    @property
    def model(self) -> Any:
        """The model in torch."""
        return self.in_torch().model

    def in_torch(self) -> TorchRunner:
        """The runner in torch, loaded when it is first asked for."""
        if self._runner is None:
            self._runner = self.load()
            self.batch_tokens, self._bert = self._runner.batch_tokens, None
        return self._runner


def pooled(states: np.ndarray, mask: np.ndarray, pooling: str) -> np.ndarray:
    """One vector per row of `states` [b, t, d]: the first token's, or the mean over the tokens of the mask."""
    if pooling == "cls":
        return states[:, 0]
    weights = mask[:, :, None].astype(states.dtype)
    return (states * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1.0)


class NumpyBert:
    """The states of a BERT's last layer (Devlin et al., 2019), in float32."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.layers, self.heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        self.epsilon = float(config.get("layer_norm_eps", 1e-12))
        weights = load_file(folder / "model.safetensors")
        self.weights = {name.removeprefix("bert."): value.astype(np.float32) for name, value in weights.items()}

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        w = self.weights
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x + w["embeddings.position_embeddings.weight"][: ids.shape[1]], "embeddings.LayerNorm")
        away = np.where(mask[:, None, None, :] > 0, np.float32(0), np.finfo(np.float32).min)
        for number in range(self.layers):
            layer = f"encoder.layer.{number}"
            x = self.norm(x + self.attention(x, away, f"{layer}.attention"), f"{layer}.attention.output.LayerNorm")
            inner = gelu(self.linear(x, f"{layer}.intermediate.dense"))
            x = self.norm(x + self.linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        return x

    def attention(self, x: np.ndarray, away: np.ndarray, name: str) -> np.ndarray:
        batch, length, dim = x.shape

        def heads(part: str) -> np.ndarray:
            split = self.linear(x, f"{name}.self.{part}").reshape(batch, length, self.heads, dim // self.heads)
            return split.transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").swapaxes(2, 3) / np.float32(math.sqrt(dim // self.heads)) + away
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        seen = scores / scores.sum(axis=-1, keepdims=True) @ heads("value")
        return self.linear(seen.transpose(0, 2, 1, 3).reshape(batch, length, dim), f"{name}.output.dense")

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * np.float32(0.5) * (1 + np.asarray(_erf(x / np.float32(math.sqrt(2))), np.float32))
