"""Arrays that are appended to, in memory or in files without names, of which nothing is left whatever happens."""

from __future__ import annotations

import tempfile

import numpy as np


class Column:
    """Rows that are appended, each a number or a row of `width` numbers; in a file if they are `large`."""

    def __init__(self, dtype: np.dtype | type, large: bool, width: tuple[int, ...] = ()) -> None:
        self._dtype, self._width = np.dtype(dtype), width
        self._parts: list[np.ndarray] = []
        self._file = tempfile.TemporaryFile(prefix="callslip-") if large else None  # noqa: SIM115

    def append(self, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, self._dtype)
        if self._file is None:
            self._parts.append(values)
        elif values.size:
            self._file.write(values.data)

    def whole(self) -> np.ndarray:
        """What was appended; mapped, if it is in a file. Nothing can be appended after that."""
        empty = np.zeros((0, *self._width), self._dtype)
        if self._file is None:
            parts, self._parts = self._parts, []
            return parts[0] if len(parts) == 1 else np.concatenate([*parts, empty])
        with self._file as file:
            file.flush()
            return np.memmap(file, self._dtype, mode="r").reshape(-1, *self._width) if file.tell() else empty
