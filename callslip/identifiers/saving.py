"""Files that are written whole or not at all, even over one that is being read."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np


def write_whole(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """Write a file beside its place and move it there, so that a table mapped from the old file stays
    whole."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    file: IO[bytes]
    try:
        with beside.open("wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_array(path: Path, array: np.ndarray) -> None:
    """As .npy. The array may be mapped from the file that is replaced."""
    write_whole(path, lambda file: np.save(file, array, allow_pickle=False))
