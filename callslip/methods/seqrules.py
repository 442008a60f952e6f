"""Sequential rules: recommends items that came after the items of the history, the sooner the better.

Like item-kNN, but in order of time: a pair of items counts less the more interactions lie between them, and less in
the direction against time (Ludewig and Jannach, 2018, with decays instead of 1/distance). Nothing is trained.
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

RULES = "rules.safetensors"


@dataclass(frozen=True)
class SeqRulesSettings:
    """Weighting of pairs by distance, direction and popularity."""

    gap: float = 0.9
    """Factor for each interaction that lies between the items of a pair."""
    back: float = 0.3
    """Weight of a pair against the order of time; 0 counts only what came later, 1 ignores the order."""
    window: int = 50
    """Largest distance of a pair, in interactions."""
    user_power: float = 0.5
    """Exponent a of the user weight n^-a, for a user with n interactions: users of many items count less."""
    popularity_power: float = 0.2
    """Exponent of the normalisation by the number of interactions of the item in the history."""
    neighbour_power: float = 0.2
    """Exponent of the normalisation by the number of interactions of the recommended item."""
    decay: float = 0.65
    """Weight of each item of the history relative to the next one, so that recent items count more."""

    def __post_init__(self) -> None:
        check_range(self, back=0, window=1, user_power=0, popularity_power=0, neighbour_power=0)
        neighbours.check_decay("gap", self.gap)
        neighbours.check_decay("decay", self.decay)


def rules(sequences: Sequences, count: int, s: SeqRulesSettings) -> csr_matrix:
    """The weight of the rule from item i to item j, [count, count]."""
    pairs = neighbours.decayed_pairs(sequences, count, gap=s.gap, back=s.back, user_power=s.user_power, window=s.window)
    return neighbours.normalised(pairs, sequences.counts(count), s.popularity_power, s.neighbour_power)


class SeqRules(Recommender):
    """Ranks items by the sum of the rules from the items of the history."""

    Settings = SeqRulesSettings
    search_settings = frozenset({"decay"})
    settings: SeqRulesSettings
    evidence = "rules"
    rules: csr_matrix

    def count(self, sequences: Sequences, items: int) -> csr_matrix:
        return rules(sequences, items, self.settings)

    def scores(self, histories: Sequence[np.ndarray]) -> np.ndarray:
        asked = neighbours.history_matrix(histories, self.rules.shape[0], self.settings.decay)
        return (asked @ self.rules).toarray()

    def reasons(self, history: np.ndarray, rows: np.ndarray) -> list[dict[str, object]]:
        """Contribution of each item of the history."""
        weights = neighbours.age_weights(len(history), self.settings.decay)
        names = [document.doc_id for document in self.documents.rows(history.tolist())]
        return neighbours.because(self.rules[history][:, rows].toarray() * weights[:, None], names)

    def keep(self, rows: np.ndarray) -> None:
        self.rules = self.rules[rows][:, rows].tocsr()

    def save_files(self, folder: Path) -> None:
        neighbours.save_matrix(self.rules, folder / RULES)

    def load_files(self, folder: Path) -> None:
        self.rules = neighbours.load_matrix(folder / RULES)
