"""Prepacked weights for matrix products with few rows, as in beam search.

A plain product packs the weights at every call. On a CPU, torch's oneDNN can keep them packed, which saves about a
sixth of the time with ten rows. The operators are internal to torch, so they are tested before use, with a plain
product as fallback. Packing copies the weights.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from callslip.decoders.engines.engine import Affine


class PackedLinear:
    """x -> x W^T + b, for inference."""

    def __init__(self, affine: Affine) -> None:
        weight = affine.weight.detach()
        self.bias = None if affine.bias is None else affine.bias.detach()
        self.packs = weight.device.type == "cpu" and weight.dtype == torch.float32 and onednn_packs()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 64) if self.packs else weight

    def __call__(self, x: Tensor, activation: str = "none") -> Tensor:
        """`activation` is none, relu, gelu or gelu_tanh."""
        if self.packs:
            return _pointwise(x, self.weight, self.bias, activation)
        return _plain(x, self.weight, self.bias, activation)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + x W^T + b."""
        if self.packs:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return functional.linear(x, self.weight, self.bias) + residual


def _pointwise(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    name, _, how = activation.partition("_")
    if name == "gelu":
        how = how or "none"
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], how)


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    y = functional.linear(x, weight, bias)
    if activation == "relu":
        return y.relu_()
    if activation.startswith("gelu"):
        return functional.gelu(y, approximate=activation.partition("_")[2] or "none")
    return y


@cache
def onednn_packs() -> bool:
    """Whether this build of torch supports prepacked weights, tested by comparing their products with plain ones."""
    if not torch.backends.mkldnn.is_available():
        return False
    weight, x = torch.linspace(-1, 1, 48).view(6, 8), torch.linspace(-2, 2, 24).view(3, 8)
    bias = weight[:, 0].contiguous()
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
        pairs = [
            (_pointwise(x, packed, bias, activation), _plain(x, weight, bias, activation))
            for activation in ("none", "relu", "gelu", "gelu_tanh")
        ]
        added = x[:, :6].contiguous()
        pairs.append(
            (
                torch.ops.mkldnn._linear_pointwise.binary(x, added, packed, bias, "add"),
                functional.linear(x, weight, bias) + added,
            )
        )
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return all(torch.allclose(found, wanted, atol=1e-5) for found, wanted in pairs)
