"""Item-kNN by co-occurrence: recommends items that share users with the items of the history.

There is no training, only counting of users. On sparse logs it is hard to beat.
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

NEIGHBOURS = "neighbours.safetensors"


@dataclass(frozen=True)
class ItemKNNSettings:
    """Weighting of common users."""

    user_power: float = 0.5
    """Exponent a of the user weight n^-a, for a user with n items: users of many items count less."""
    popularity_power: float = 0.2
    """Exponent of the normalisation by the number of users of the item."""
    neighbour_power: float = 0.2
    """Exponent of the normalisation by the number of users of the neighbour; 0.5 for both gives the cosine."""
    decay: float = 0.8
    """Weight of each item of the history relative to the next one, so that recent items count more; 1 weighs all items
    equally."""
    neighbours: int = 0
    """Number of nearest neighbours kept for each item; 0 keeps all."""

    def __post_init__(self) -> None:
        check_range(self, user_power=0, popularity_power=0, neighbour_power=0, neighbours=0)
        neighbours.check_decay("decay", self.decay)


def co_occurrence(sequences: Sequences, count: int, s: ItemKNNSettings) -> csr_matrix:
    """Similarity of item j to item i, [count, count]: the sum of n_u^-a over the users of both, divided by n_i^b and
    n_j^c; the diagonal is 0."""
    from scipy.sparse import csr_matrix, diags

    owner = np.repeat(np.arange(len(sequences)), np.diff(sequences.bounds))
    had = csr_matrix((np.ones(len(owner)), (owner, sequences.items)), shape=(len(sequences), count))
    had.data[:] = 1  # repeated interactions count once
    items, users = np.asarray(had.sum(axis=1)).ravel(), np.maximum(np.asarray(had.sum(axis=0)).ravel(), 1)
    near = (had.T @ diags(items**-s.user_power) @ had).tocsr()
    near = (diags(users**-s.popularity_power) @ near @ diags(users**-s.neighbour_power)).tocsr()
    near.setdiag(0)
    near.eliminate_zeros()
    return nearest_only(near, s.neighbours) if s.neighbours else near


def nearest_only(near: csr_matrix, count: int) -> csr_matrix:
    """Each row with its `count` largest entries, ties by column."""
    rows = np.repeat(np.arange(near.shape[0]), np.diff(near.indptr))
    order = np.lexsort((near.indices, -near.data, rows))
    place = np.arange(len(order)) - near.indptr[rows[order]]
    kept = np.zeros(len(order), dtype=bool)
    kept[order[place < count]] = True
    thin = near.copy()
    thin.data[~kept] = 0
    thin.eliminate_zeros()
    return thin


class ItemKNN(Recommender):
    """Ranks items by the sum of their similarities to the items of the history."""

    Settings = ItemKNNSettings
    search_settings = frozenset({"decay"})
    settings: ItemKNNSettings
    evidence = "near"
    near: csr_matrix

    def count(self, sequences: Sequences, items: int) -> csr_matrix:
        return co_occurrence(sequences, items, self.settings)

    def scores(self, histories: Sequence[np.ndarray]) -> np.ndarray:
        return (neighbours.history_matrix(histories, self.near.shape[0], self.settings.decay) @ self.near).toarray()

    def reasons(self, history: np.ndarray, rows: np.ndarray) -> list[dict[str, object]]:
        """Contribution of each item of the history."""
        weights = neighbours.age_weights(len(history), self.settings.decay)
        names = [document.doc_id for document in self.documents.rows(history.tolist())]
        return neighbours.because(self.near[history][:, rows].toarray() * weights[:, None], names)

    def keep(self, rows: np.ndarray) -> None:
        self.near = self.near[rows][:, rows].tocsr()

    def save_files(self, folder: Path) -> None:
        neighbours.save_matrix(self.near, folder / NEIGHBOURS)

    def load_files(self, folder: Path) -> None:
        self.near = neighbours.load_matrix(folder / NEIGHBOURS)
