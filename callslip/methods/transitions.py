"""A graph of transitions: recommends where a walk of a few steps leads from the items of the history.

An edge joins items that a user had one right after the other. The probability of a step is smoothed, so that an item
with few transitions says less. Steps beyond the first reach items that no user of the item had. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from callslip.corpus.sequences import Sequences
from callslip.index import neighbours
from callslip.index.recommender import Recommender
from callslip.settings import check_range

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WALKS = "walks.safetensors"


@dataclass(frozen=True)
class TransitionsSettings:
    """The graph and the walk."""

    back: float = 0.3
    """Weight of a step against the order of time."""
    smoothing: float = 20.0
    """Number of transitions to nowhere that are added to those of each item."""
    hops: int = 2
    """Number of steps of the walk; each further one multiplies the size of the index."""
    continuation: float = 0.5
    """Weight of each further step relative to the one before."""
    decay: float = 0.65
    """Weight of each item of the history relative to the next one, so that recent items count more."""

    def __post_init__(self) -> None:
        check_range(self, back=0, smoothing=0, hops=1, continuation=0)
        neighbours.check_decay("decay", self.decay)


def steps(sequences: Sequences, count: int, s: TransitionsSettings) -> csr_matrix:
    """The smoothed probability of a step from item i to item j, [count, count]."""
    from scipy.sparse import diags

    pairs = neighbours.decayed_pairs(sequences, count, gap=1.0, back=s.back, user_power=0.0, window=1)
    totals = np.asarray(pairs.sum(axis=1)).ravel() + s.smoothing
    return (diags(1 / np.maximum(totals, 1e-12)) @ pairs).tocsr()


def walks(steps: csr_matrix, s: TransitionsSettings) -> csr_matrix:
    """The weighted visits to item j of a walk that starts at item i, [count, count]."""
    at, visits, weight = steps, steps, 1.0
    for _ in range(s.hops - 1):
        weight *= s.continuation
        at = at @ steps
        visits = visits + weight * at
    return visits.tocsr()


class Transitions(Recommender):
    """Ranks items by how often a walk from the items of the history visits them.

    Walks are computed when fitting: later they lead through deleted items as before.
    """

    Settings = TransitionsSettings
    search_settings = frozenset({"decay"})
    settings: TransitionsSettings
    evidence = "walks"
    walks: csr_matrix

    def count(self, sequences: Sequences, items: int) -> csr_matrix:
        return walks(steps(sequences, items, self.settings), self.settings)

    def scores(self, histories: Sequence[np.ndarray]) -> np.ndarray:
        asked = neighbours.history_matrix(histories, self.walks.shape[0], self.settings.decay)
        return (asked @ self.walks).toarray()

    def reasons(self, history: np.ndarray, rows: np.ndarray) -> list[dict[str, object]]:
        """Contribution of each item of the history."""
        weights = neighbours.age_weights(len(history), self.settings.decay)
        names = [document.doc_id for document in self.documents.rows(history.tolist())]
        return neighbours.because(self.walks[history][:, rows].toarray() * weights[:, None], names)

    def keep(self, rows: np.ndarray) -> None:
        self.walks = self.walks[rows][:, rows].tocsr()

    def save_files(self, folder: Path) -> None:
        neighbours.save_matrix(self.walks, folder / WALKS)

    def load_files(self, folder: Path) -> None:
        self.walks = neighbours.load_matrix(folder / WALKS)
