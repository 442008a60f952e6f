"""Compressed offsets: a non-decreasing sequence of numbers, such as where each node's children begin, in one or two
bytes each.

Full 8-byte offsets would take most of an index's memory. Neighbouring offsets are close together, so every 64th is
stored in full, and the others as differences from it.
"""

from __future__ import annotations

import numpy as np

BLOCK = 64
_SHIFT = 6


class Offsets:
    """`offsets[i]` for an index or an array of them, int64; `i` runs from 0 to n, since n ranges have n + 1 bounds."""

    def __init__(self, bases: np.ndarray, rest: np.ndarray) -> None:
        self.bases, self.rest = bases, rest

    @classmethod
    def pack(cls, values: np.ndarray) -> Offsets:
        """Compress numbers, which must be non-decreasing."""
        values = np.asarray(values, np.int64)
        bases = values[::BLOCK].copy()
        rest = values - np.repeat(bases, BLOCK)[: len(values)]
        highest = int(rest.max()) if len(rest) else 0
        kind = next(k for k in (np.uint8, np.int16, np.int32, np.int64) if highest <= np.iinfo(k).max)
        rest = rest.astype(kind)
        bases.setflags(write=False)
        rest.setflags(write=False)
        return cls(bases, rest)

    def __len__(self) -> int:
        return len(self.rest)

    def __getitem__(self, index: np.ndarray | int) -> np.ndarray:
        where = np.asarray(index)
        return self.bases[where >> _SHIFT] + self.rest[where]

    def all(self) -> np.ndarray:
        """All numbers, uncompressed."""
        return np.repeat(self.bases, BLOCK)[: len(self.rest)] + self.rest

    def owner(self, values: np.ndarray) -> np.ndarray:
        """Index of the range that contains each value: the last i with offsets[i] <= value. No range may be empty."""
        block = np.searchsorted(self.bases, values, side="right") - 1
        low = block << _SHIFT
        high = np.minimum(low + BLOCK, len(self.rest))
        wanted = values - self.bases[block]
        for _ in range(_SHIFT):  # binary search in all blocks at once
            middle = (low + high) >> 1
            right = self.rest[np.minimum(middle, len(self.rest) - 1)] <= wanted
            right &= middle < high
            low, high = np.where(right, middle, low), np.where(right, high, middle)
        return low

    @property
    def nbytes(self) -> int:
        return self.bases.nbytes + self.rest.nbytes
