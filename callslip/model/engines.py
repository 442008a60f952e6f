"""Which engine runs a decoder while searching."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import torch

from callslip.model.weights import DecoderWeights, EncoderWeights, Engine

EngineName = Literal["auto", "onnx", "torch"]
LARGEST = 1_800_000_000
"""Bytes of weights that fit into one ONNX graph."""


def engine_for(decoder: DecoderWeights, encoder: EncoderWeights | None = None, name: EngineName = "auto") -> Engine:
    """`auto` takes ONNX Runtime for float32 on a CPU where it is installed, and torch for all else."""
    example = decoder.final.weight
    size = sum(
        affine.weight.numel() * 4
        for own, cross, feed in decoder.layers
        for affine in (own.qkv, own.out, cross.query, cross.key_value, cross.out, feed.up, feed.down)
    )
    fits = example.device.type == "cpu" and example.dtype == torch.float32 and size < LARGEST
    if name == "onnx" or (name == "auto" and fits and find_spec("onnxruntime") and find_spec("onnx")):
        from callslip.model.onnx_steps import OnnxEngine

        return OnnxEngine(decoder, encoder)
    from callslip.model.steps import TorchEngine

    return TorchEngine(decoder, encoder)
