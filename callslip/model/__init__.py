"""Models: encoders that turn text into vectors, and the sequence models that write codes.

Nothing here is imported before it is used, so that `import callslip` and `--help` never pay for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Encoder": "callslip.model.encoders",
    "load_encoder": "callslip.model.encoders",
    "FeatureCache": "callslip.model.features",
    "cached_encode": "callslip.model.features",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
