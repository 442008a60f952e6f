"""Encoders, which turn texts into vectors, and the vector cache.

Submodules are imported lazily, so that `import callslip` and `--help` do not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Encoder": "callslip.encoders.encoder",
    "load_encoder": "callslip.encoders.encoder",
    "FeatureCache": "callslip.encoders.vector_cache",
    "cached_encode": "callslip.encoders.vector_cache",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
