"""Popularity: the most frequent items, the same for every user. The baseline that every recommender must beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from callslip.corpus.sequences import Sequences
from callslip.index.recommender import Recommender

COUNTS = "counts.npy"


@dataclass(frozen=True)
class PopularitySettings:
    """No settings."""


class Popularity(Recommender):
    """Ranks items by their frequency in the training histories."""

    Settings = PopularitySettings
    evidence = "counts"
    counts: np.ndarray

    def count(self, sequences: Sequences, items: int) -> np.ndarray:
        return sequences.counts(items)

    def scores(self, histories: Sequence[np.ndarray]) -> np.ndarray:
        return np.broadcast_to(self.counts.astype(np.float64), (len(histories), len(self.counts)))

    def reasons(self, history: np.ndarray, rows: np.ndarray) -> list[dict[str, object]]:
        return [{"count": int(self.counts[row])} for row in rows]

    def keep(self, rows: np.ndarray) -> None:
        self.counts = self.counts[rows]

    def save_files(self, folder: Path) -> None:
        np.save(folder / COUNTS, self.counts, allow_pickle=False)

    def load_files(self, folder: Path) -> None:
        self.counts = np.load(folder / COUNTS, allow_pickle=False)
