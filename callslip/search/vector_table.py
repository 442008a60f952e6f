"""VectorTable: a vector per row, in memory or mapped from a file, that grows without being copied.

Vectors that were added later lie behind the others, in a block with room for more. Half-precision vectors are read as
float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from callslip.errors import IndexCorrupt

ROOM = 64
"""Rows that the first block of later vectors has room for; it is doubled when it is full."""
BLOCK = 65_536
"""Rows of half precision that are widened at once."""


class VectorTable:
    """Vectors [N, dim]. Tables do not change: `extended` returns another one, which shares the vectors."""

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(self, first: np.ndarray) -> None:
        self._first = first
        self._later, self._used, self._count = np.zeros((0, first.shape[1]), first.dtype), [0], 0

    @classmethod
    def of(cls, vectors: Any, dtype: Any = None) -> VectorTable:
        """Vectors as a table, in half precision if `dtype` is np.float16."""
        if isinstance(vectors, VectorTable):
            return vectors
        array = np.asarray(vectors)
        return cls(array if dtype is None else array.astype(dtype))

    def __len__(self) -> int:
        return len(self._first) + self._count

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self._first.shape[1]

    @property
    def stored(self) -> np.dtype:
        """The type in which the vectors are held."""
        return self._first.dtype

    def extended(self, vectors: np.ndarray) -> VectorTable:
        """With more vectors behind the present ones, at the cost of these."""
        other = VectorTable.__new__(VectorTable)
        other._first, other._count = self._first, self._count + len(vectors)
        other._later, other._used = self._later, self._used
        # The room behind our rows may be in use by another table that was extended from this one.
        if other._count > len(self._later) or self._used[0] != self._count:
            room = max(ROOM, 2 * other._count)
            other._later, other._used = np.empty((room, self._first.shape[1]), self._first.dtype), [0]
            other._later[: self._count] = self._later[: self._count]
        other._later[self._count : other._count] = vectors
        other._used[0] = other._count
        return other

    def parts(self) -> Iterator[np.ndarray]:
        """The vectors as they are held, in order of rows: the first ones, then those that were added."""
        yield self._first
        if self._count:
            yield self._later[: self._count]

    def blocks(self) -> Iterator[np.ndarray]:
        """The vectors in order of rows as float32, a block at a time if they have to be widened."""
        for part in self.parts():
            if part.dtype == self.dtype:
                yield part
            else:
                for start in range(0, len(part), BLOCK):
                    yield part[start : start + BLOCK].astype(self.dtype)

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, tuple):
            return np.asarray(self)[index]
        if isinstance(index, (int, np.integer)):
            return self[np.array([index])][0]
        rows = np.arange(*index.indices(len(self))) if isinstance(index, slice) else np.asarray(index)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64, copy=False)
        if len(rows) and not (rows.min() >= -len(self) and rows.max() < len(self)):
            raise IndexError(f"no row {int(rows.max())}")
        rows, known = np.where(rows < 0, rows + len(self), rows), len(self._first)
        if not self._count:
            return self._first[rows].astype(self.dtype, copy=False)
        found = np.empty((len(rows), self._first.shape[1]), self.dtype)
        later = rows >= known
        found[~later], found[later] = self._first[rows[~later]], self._later[rows[later] - known]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        parts = list(self.parts())
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole.astype(self.dtype if dtype is None else dtype, copy=bool(copy))

    def __matmul__(self, other: np.ndarray) -> np.ndarray:
        """Inner products of all rows."""
        blocks = [block @ other for block in self.blocks()]
        return np.concatenate(blocks) if blocks else np.zeros((0, *np.shape(other)[1:]), self.dtype)

    def kept(self, rows: np.ndarray) -> VectorTable:
        """Some rows only, held as they are."""
        parts = list(self.parts())
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return VectorTable(whole[rows])

    # Files.

    def save(self, path: Path) -> None:
        """Write all vectors as one array, in the type in which they are held."""
        with path.open("wb") as file:
            layout = {"descr": self.stored.str, "fortran_order": False, "shape": self.shape}
            np.lib.format.write_array_header_1_0(file, layout)
            for part in self.parts():
                file.write(np.ascontiguousarray(part).data if part.size else b"")

    @classmethod
    def load(cls, path: Path) -> VectorTable:
        """Map what `save` wrote."""
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if found.ndim != 2 or found.dtype not in (np.float16, np.float32):
            raise IndexCorrupt(path, f"is an array {found.dtype} {found.shape}, not one of vectors")
        return cls(np.asarray(found))
