"""VectorTable: a vector per document in half precision, in memory or mapped, that grows without being copied.

A saved table of documents with codes lies in the order of the codes, so that the vectors of a bucket, or of all
documents below a prefix, are neighbours in the file. Vectors that were added later lie behind the others, in a block
with room for more. Whatever holds them, they are read by row, as float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from callslip.errors import IndexCorrupt

VECTORS, BY_CODE = "vectors.npy", "vectors-by-code.npy"
"""Files of vectors, by row and by code. The names differ, so that nobody takes one order for the other."""
ROWS = "rows.npy"
"""File of a table of codes: the row of each document, in the order of the codes."""
HELD = np.float16
ROOM = 64
"""Rows that the first block of later vectors has room for; it is doubled when it is full."""
BLOCK = 65_536
"""Rows that are widened or written at once."""


class VectorTable:
    """Vectors [N, dim]. Tables do not change: `extended` returns another one, which shares the vectors."""

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(self, first: np.ndarray, places: np.ndarray | None = None) -> None:
        """`first` are held as they are. `places` says where the vector of each row lies in them; None is by row."""
        self._first, self._places = first, places
        self._later, self._used, self._count = np.zeros((0, first.shape[1]), first.dtype), [0], 0

    @classmethod
    def of(cls, vectors: Any) -> VectorTable:
        """Vectors as a table in half precision; a table as it is."""
        return vectors if isinstance(vectors, VectorTable) else cls(np.asarray(vectors).astype(HELD))

    def __len__(self) -> int:
        return len(self._first) + self._count

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self._first.shape[1]

    @property
    def stored(self) -> np.dtype:
        """The type in which the vectors are held: float32 in folders of earlier versions."""
        return self._first.dtype

    def extended(self, vectors: np.ndarray) -> VectorTable:
        """With more vectors behind the present ones, at the cost of these."""
        other = VectorTable.__new__(VectorTable)
        other._first, other._places, other._count = self._first, self._places, self._count + len(vectors)
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
        """The vectors as they are held, in order of rows, in pieces that are not copied if they lie by row."""
        if self._places is None:
            yield self._first
        else:
            for start in range(0, len(self._first), BLOCK):
                yield self._first[self._places[start : start + BLOCK]]
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

    def held(self, rows: np.ndarray) -> np.ndarray:
        """The vectors of some rows, in the type in which they are held."""
        if not self._count:
            return self._first[rows if self._places is None else self._places[rows]]
        known = len(self._first)
        found = np.empty((len(rows), self._first.shape[1]), self.stored)
        later = rows >= known
        first = rows[~later]
        found[~later] = self._first[first if self._places is None else self._places[first]]
        found[later] = self._later[rows[later] - known]
        return found

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, tuple):
            return np.asarray(self)[index]
        if isinstance(index, (int, np.integer)):
            return self[np.array([index])][0]
        rows = np.arange(*index.indices(len(self))) if isinstance(index, slice) else np.asarray(index)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64, copy=False)
        if len(rows) and not (rows.min() >= -len(self) and rows.max() < len(self)):
            raise IndexError(f"no row {int(rows.max())}")
        return self.held(np.where(rows < 0, rows + len(self), rows)).astype(self.dtype, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        parts = list(self.parts())
        whole = parts[0] if len(parts) == 1 else np.concatenate([np.zeros((0, self.shape[1]), self.stored), *parts])
        return whole.astype(self.dtype if dtype is None else dtype, copy=bool(copy))

    def __matmul__(self, other: np.ndarray) -> np.ndarray:
        """Inner products of all rows."""
        blocks = [block @ other for block in self.blocks()]
        return np.concatenate(blocks) if blocks else np.zeros((0, *np.shape(other)[1:]), self.dtype)

    def kept(self, rows: np.ndarray) -> VectorTable:
        """Some rows only, held as they are."""
        return VectorTable(self.held(np.asarray(rows, np.int64)))

    # Files.

    def save(self, folder: Path, rows: np.ndarray | None = None) -> None:
        """Write all vectors into a folder, in the type in which they are held: by row, or in the order of `rows`, which
        are those of the folder's table of codes."""
        with (folder / (VECTORS if rows is None else BY_CODE)).open("wb") as file:
            layout = {"descr": self.stored.str, "fortran_order": False, "shape": self.shape}
            np.lib.format.write_array_header_1_0(file, layout)
            for start in range(0, len(self) if self.shape[1] else 0, BLOCK):
                some = np.arange(start, min(start + BLOCK, len(self))) if rows is None else rows[start : start + BLOCK]
                file.write(np.ascontiguousarray(self.held(np.asarray(some, np.int64))).data)

    @classmethod
    def load(cls, folder: Path) -> VectorTable:
        """Map what `save` wrote into a folder."""
        ordered = (folder / BY_CODE).is_file()
        path = folder / (BY_CODE if ordered else VECTORS)
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if found.ndim != 2 or found.dtype not in (np.float16, np.float32):
            raise IndexCorrupt(path, f"is an array {found.dtype} {found.shape}, not one of vectors")
        return cls(np.asarray(found), _places(folder / ROWS, len(found)) if ordered and found.shape[1] else None)


def _places(path: Path, count: int) -> np.ndarray:
    """The place of each row in the order of a table of codes."""
    rows = np.load(path, mmap_mode="r", allow_pickle=False)
    if rows.shape != (count,) or rows.dtype.kind != "i" or (count and not 0 <= rows.min() <= rows.max() < count):
        raise IndexCorrupt(path, f"does not number the {count:,} vectors beside it")
    places = np.zeros(count, np.int32 if count <= np.iinfo(np.int32).max else np.int64)
    places[rows] = np.arange(count)
    return places
