"""Diverse lists by maximal marginal relevance (Carbonell and Goldstein, 1998)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

POOL = 5
"""Candidates for each hit of a diverse list."""


def marginal_relevance(scores: np.ndarray, vectors: np.ndarray, k: int, diversity: float) -> list[int]:
    """The order in which k candidates are chosen: each has the largest (1 - diversity) · relevance - diversity · the
    largest cosine with one that was chosen before.

    `scores` [n], `vectors` [n, dim]. Relevance is the score, scaled to 0 to 1 over the candidates; ties keep their
    order.
    """
    span = float(scores.max() - scores.min()) if len(scores) else 0.0
    relevance = (scores - scores.min()) / span if span > 0 else np.ones(len(scores))
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    chosen: list[int] = []
    nearest = np.zeros(len(scores))
    left = np.ones(len(scores), bool)
    for _ in range(min(k, len(scores))):
        gain = np.where(left, (1 - diversity) * relevance - diversity * nearest, -np.inf)
        best = int(np.argmax(gain))
        chosen.append(best)
        left[best] = False
        nearest = np.maximum(nearest, unit @ unit[best])
    return chosen


@dataclass(frozen=True)
class Diversity:
    """How lists are made diverse: how much, and the vectors of rows [n] -> [n, dim] that are compared."""

    amount: float
    vectors: Callable[[np.ndarray], np.ndarray]

    def order(self, rows: Sequence[int] | np.ndarray, scores: Sequence[float] | np.ndarray, k: int) -> list[int]:
        """The candidates of the list, by their places among the rows."""
        vectors = np.asarray(self.vectors(np.asarray(rows, np.int64)), np.float64)
        return marginal_relevance(np.asarray(scores, np.float64), vectors, k, self.amount)
