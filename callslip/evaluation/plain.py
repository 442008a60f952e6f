"""Conversion to plain JSON data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None.

    NaN and infinity become None, since JSON has neither and parsers handle them differently.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    if hasattr(value, "__iter__"):
        return [plain(item) for item in value]
    return str(value)


def to_json(value: Any) -> str:
    """Strictly valid JSON, with a trailing newline."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(value: Any, path: str | Path) -> None:
    """Write JSON, creating the folder if necessary."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(to_json(value), encoding="utf-8")
