"""The segments of an index: short codes of parts of documents, in the order of the documents' rows.

They are read for documents that other evidence has found, so they need no order of their own. What was added later lies
in further layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from callslip.identifiers.tied import token_sums

CODES, SCALES, COUNTS = "segments.npy", "segment_scales.npy", "segment_counts.npy"
MOST = 255
"""Most segments of a document: their number is a byte."""


@dataclass(frozen=True)
class SegmentLayer:
    """The segments of consecutive rows."""

    codes: np.ndarray
    """uint8 [S, L]."""
    scales: np.ndarray
    """float16 [S]."""
    counts: np.ndarray
    """Number of segments of each row, uint8 [n]."""

    @cached_property
    def starts(self) -> np.ndarray:
        """Where the segments of each row begin, and the last ones end."""
        starts = np.zeros(len(self.counts) + 1, np.int64)
        np.cumsum(self.counts, out=starts[1:])
        return starts

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.counts)

    @classmethod
    def joined(cls, layers: Iterable[SegmentLayer]) -> SegmentLayer:
        held = list(layers)
        if len(held) == 1:
            return held[0]
        names = ("codes", "scales", "counts")
        return cls(*(np.concatenate([getattr(one, name) for one in held]) for name in names))


class SegmentTable:
    """The codes of all segments, in layers. Tables do not change: `with_more` and `kept` return other ones."""

    def __init__(self, layers: Sequence[SegmentLayer]) -> None:
        self.layers = list(layers)
        self._firsts = np.cumsum([0, *map(len, self.layers)])

    @classmethod
    def of(cls, codes: np.ndarray, scales: np.ndarray, counts: np.ndarray) -> Self:
        return cls([SegmentLayer(codes, scales.astype(np.float16), counts.astype(np.uint8))])

    @classmethod
    def of_blocks(cls, blocks: Callable[[], Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]]) -> Self:
        """The segments of codes, scales and counts that are read twice, a block of rows at a time, and held once."""
        sizes = [(codes.shape, len(counts)) for codes, _, counts in blocks()]
        total, length = sum(shape[0] for shape, _ in sizes), sizes[0][0][1]
        codes, scales = np.empty((total, length), np.uint8), np.empty(total, np.float16)
        counts, first, row = np.empty(sum(rows for _, rows in sizes), np.uint8), 0, 0
        for some, theirs, of_rows in blocks():
            codes[first : first + len(some)], scales[first : first + len(some)] = some, theirs
            counts[row : row + len(of_rows)] = of_rows
            first, row = first + len(some), row + len(of_rows)
        return cls([SegmentLayer(codes, scales, counts)])

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._firsts[-1])

    @property
    def total(self) -> int:
        """Number of segments."""
        return sum(len(layer.codes) for layer in self.layers)

    def nearest(self, table: np.ndarray, rows: np.ndarray, similarity: np.ndarray) -> np.ndarray:
        """The similarity of a query to the nearest of each row's text and its segments, given its table of tokens
        [L, WIDTH] and its similarity to the reconstructed texts."""
        best = similarity.astype(np.float32)
        for first, layer in zip(self._firsts, self.layers, strict=False):
            places = np.flatnonzero((rows >= first) & (rows < first + len(layer)))
            here = rows[places] - first
            begins, counts = layer.starts[here], layer.counts[here].astype(np.int64)
            place = np.repeat(places, counts)
            number = np.arange(len(place)) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
            apart = token_sums(table, layer.codes[number])
            np.maximum.at(best, place, (similarity[place] + apart) * layer.scales[number].astype(np.float32))
        return best

    # Changes.

    def with_more(self, codes: np.ndarray, scales: np.ndarray, counts: np.ndarray) -> SegmentTable:
        """These segments, and those of further rows. Layers grow in size from the last to the first, so that a segment
        is copied but a few times."""
        layers = [*self.layers, *SegmentTable.of(codes, scales, counts).layers]
        while len(layers) > 2 and len(layers[-2]) <= len(layers[-1]):
            layers[-2:] = [SegmentLayer.joined(layers[-2:])]
        return SegmentTable(layers)

    def kept(self, rows: np.ndarray) -> SegmentTable:
        """The segments of these rows only, ascending, which are numbered anew from 0."""
        whole = SegmentLayer.joined(self.layers)
        stays = np.zeros(len(whole), bool)
        stays[rows] = True
        of_kept = np.repeat(stays, whole.counts)
        return SegmentTable.of(whole.codes[of_kept], whole.scales[of_kept], whole.counts[stays])

    # Files.

    def save(self, folder: Path) -> None:
        whole = SegmentLayer.joined(self.layers)
        for name, array in ((CODES, whole.codes), (SCALES, whole.scales), (COUNTS, whole.counts)):
            np.save(folder / name, array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> SegmentTable | None:
        """The segments of a saved index; None if it has none."""
        if not (folder / CODES).exists():
            return None
        arrays = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (CODES, SCALES, COUNTS))
        return cls([SegmentLayer(*arrays)])
