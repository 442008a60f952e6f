"""Segments: runs of neighbouring tokens of a text, each with a vector of its own.

The vector of a text is the mean of its tokens' states, and a query about one sentence of a long text is far from it.
The states are there after the pass that gives the vector, so means over parts of the text cost no further encoding.
Tokens are averaged in units of `UNIT`; of neighbouring units those that are most alike are merged until at most so many
segments are left as are wanted. A segment is therefore a stretch of text about one thing, as far as the encoder can
tell. Only encoders that pool by the mean have segments: for others, the mean of states is no vector of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

UNIT = 16
"""Tokens that are never separated. On NFCorpus's dev questions, units of 32 give half the gain, and of 64 a fifth."""
LEVELS = 127
"""Numbers of a segment's direction are rounded to this many steps on either side of 0."""


@dataclass(frozen=True)
class Segments:
    """The segments of texts, in order: those of text i are `directions[starts[i]:starts[i + 1]]`. Only directions
    matter, so a byte a number is enough."""

    directions: np.ndarray
    """int8 [S, dim]."""
    starts: np.ndarray
    """int64 [n + 1]."""

    @classmethod
    def of(cls, parts: Iterable[np.ndarray], dim: int) -> Self:
        """The segments of several texts, int8 [s, dim] each."""
        held = list(parts)
        starts = np.cumsum([0, *map(len, held)], dtype=np.int64)
        return cls(np.concatenate([np.zeros((0, dim), np.int8), *held]), starts)

    @classmethod
    def none(cls, texts: int, dim: int) -> Self:
        """No segments, of so many texts."""
        return cls(np.zeros((0, dim), np.int8), np.zeros(texts + 1, np.int64))

    @classmethod
    def joined(cls, several: Sequence[Segments]) -> Self:
        """The segments of several lists of texts, one list after the other."""
        starts = np.cumsum(np.concatenate([[0], *(one.counts for one in several)]), dtype=np.int64)
        return cls(np.concatenate([one.directions for one in several]), starts)

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.starts) - 1

    def __getitem__(self, text: int) -> np.ndarray:
        return self.directions[self.starts[text] : self.starts[text + 1]]

    @property
    def counts(self) -> np.ndarray:
        """Number of segments of each text."""
        return np.diff(self.starts)

    @property
    def owners(self) -> np.ndarray:
        """The text of each segment."""
        return np.repeat(np.arange(len(self)), self.counts)

    def of_texts(self, texts: Sequence[int] | np.ndarray) -> Segments:
        """The segments of some of the texts, in the given order."""
        return Segments.of((self[int(text)] for text in texts), self.directions.shape[1])


def unit_vectors(directions: np.ndarray) -> np.ndarray:
    """Directions as unit vectors, float32."""
    vectors = directions.astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def segment(states: np.ndarray, most: int, unit: int = UNIT) -> np.ndarray:
    """The directions of at most `most` segments of a text, given the states of its tokens [t, dim]; int8 [s, dim]. A
    text of a single segment has none: its vector says the same."""
    sums = np.add.reduceat(states, np.arange(0, len(states), unit), axis=0).astype(np.float32)
    while len(sums) > most:
        vectors = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
        alike = int((vectors[1:] * vectors[:-1]).sum(axis=1).argmax())
        sums = np.concatenate([sums[:alike], sums[alike : alike + 1] + sums[alike + 1 : alike + 2], sums[alike + 2 :]])
    if len(sums) < 2:
        return np.zeros((0, states.shape[1]), np.int8)
    largest = np.maximum(np.abs(sums).max(axis=1, keepdims=True), 1e-12)
    return np.rint(sums * (LEVELS / largest)).astype(np.int8)
