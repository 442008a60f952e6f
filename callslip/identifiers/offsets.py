"""A rising sequence of numbers in one or two bytes each: where the children of each node begin.

Full 8-byte offsets would be most of an index's memory. Neighbours are close together, so a full number is kept for
every 64th, and for each one only its distance from there.
"""

from __future__ import annotations

import numpy as np

BLOCK = 64
_SHIFT = 6


class Offsets:
    """`offsets[i]` for a number or an array of them, int64; `i` runs from 0 to n, n ranges having n + 1 bounds."""

    def __init__(self, bases: np.ndarray, rest: np.ndarray) -> None:
        self.bases, self.rest = bases, rest

    @classmethod
    def pack(cls, values: np.ndarray) -> Offsets:
        """From the numbers themselves, which must not fall."""
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
        """Every number."""
        return np.repeat(self.bases, BLOCK)[: len(self.rest)] + self.rest

    def owner(self, values: np.ndarray) -> np.ndarray:
        """For each value, the range that it lies in: the last i with offsets[i] <= value. Ranges are not empty."""
        block = np.searchsorted(self.bases, values, side="right") - 1
        low = block << _SHIFT
        high = np.minimum(low + BLOCK, len(self.rest))
        wanted = values - self.bases[block]
        for _ in range(_SHIFT):  # a binary search in each block, all of them at once
            middle = (low + high) >> 1
            right = self.rest[np.minimum(middle, len(self.rest) - 1)] <= wanted
            right &= middle < high
            low, high = np.where(right, middle, low), np.where(right, high, middle)
        return low

    @property
    def nbytes(self) -> int:
        return self.bases.nbytes + self.rest.nbytes
