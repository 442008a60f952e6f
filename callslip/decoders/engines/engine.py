"""The choice of the engine that runs a decoder in search."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal, Self

import torch
from torch import nn

from callslip.decoders.engines.weights import DecoderWeights, EncoderWeights, Engine

EngineName = Literal["auto", "onnx", "torch"]
LARGEST = 1_800_000_000
"""Maximum size of the weights of an ONNX graph in bytes."""


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
