"""Short codes of segments: what the code of their document does not say about them.

A segment is near its document, so a few bytes are enough for the difference between its vector and the document's
reconstruction. They are product levels as those of `callslip.identifiers.tied`, without a tree: segments are read with
their documents, not searched by themselves. The inner product of a query with a segment is that with the document's
reconstruction plus a number a level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np

from callslip.identifiers.kmeans import check_vectors
from callslip.identifiers.tied import FEW, SAMPLE, WIDTH, TiedQuantizer

TYPICAL = 0.6
"""Length of a difference where there are no segments to learn from: that of NFCorpus's."""


class SegmentQuantizer:
    """Codes of `length` tokens, given the reconstruction of each segment's document."""

    def __init__(self, length: int, seed: int = 0) -> None:
        self.levels = TiedQuantizer(length, tree=0, seed=seed)

    @property
    def length(self) -> int:
        return self.levels.length

    def learn(self, vectors: np.ndarray, bases: np.ndarray) -> Self:
        """Learn the codebooks from unit vectors of segments [S, D], and the reconstructions of their documents. With
        few of them, random differences stand for those of later documents."""
        differences = check_vectors(vectors) - bases
        rng, most = np.random.default_rng(self.levels.seed), SAMPLE * WIDTH
        if len(differences) > most:
            differences = differences[np.sort(rng.choice(len(differences), most, replace=False))]
        if len(differences) < FEW:
            dim = differences.shape[1]
            length = float(np.sqrt((differences**2).sum(axis=1).mean())) if len(differences) else TYPICAL
            others = rng.normal(size=(4 * FEW, dim)).astype(np.float32) * np.float32(length / np.sqrt(dim))
            differences = np.concatenate([differences, others])
        self.levels.learn(differences, len(differences))
        return self

    def assign(self, vectors: np.ndarray, bases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Codes uint8 [S, length], and the factors that make the reconstructions unit vectors, float16 [S]."""
        codes, scales = np.empty((len(vectors), self.length), np.uint8), np.empty(len(vectors), np.float16)
        for start in range(0, len(vectors), 8192):
            some = slice(start, start + 8192)
            codes[some] = self.levels.assign(vectors[some] - bases[some])
            whole = np.linalg.norm(bases[some] + self.levels.sums(codes[some]), axis=1)
            scales[some] = 1.0 / np.maximum(whole, 1e-3)
        return codes, scales

    def tables(self, queries: np.ndarray) -> np.ndarray:
        """Inner products of queries [B, D] with every token of every level, [B, length, WIDTH]."""
        return self.levels.tables(queries)

    def state(self) -> dict[str, np.ndarray]:
        return self.levels.state()

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> SegmentQuantizer:
        levels = TiedQuantizer.from_state(state)
        made = cls(levels.length, levels.seed)
        made.levels = levels
        return made
