"""Confidence: how good the best evidence for a query is, compared with that for queries whose answers are known.

The score of a hit ranks it among the others; it does not say whether any of them is an answer. `Calibration` does, by
signals that are comparable between queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SIGNALS = ("similarity", "words")
"""The best similarity among a query's candidates, and the best BM25 score as a part of the query's rarity, the sum of
the inverse document frequencies of its stems. Words that occur nowhere count there as the rarest."""
ALARMS = 0.05
"""Share of the held-out queries with an answer that are called unsure: the price of finding those without one."""
ENOUGH = 30
"""Held-out queries from which a search is calibrated; of fewer, a twentieth is not one query."""
POINTS = 101
"""Number of quantiles that are kept."""


@dataclass(frozen=True)
class Calibration:
    """The weighted sum of a query's signals, and how it is distributed over held-out queries that have an answer."""

    weights: np.ndarray
    """The weight of each of `SIGNALS`."""
    quantiles: np.ndarray
    """Quantiles of the sum, at equal distances from the least to the greatest."""
    queries: int
    """Number of held-out queries."""
    caught: float
    """Share of the held-out queries that are unsure when their answers are left out of the index."""
    alarms: float = ALARMS

    def confidence(self, signals: np.ndarray) -> float:
        """The share of the held-out queries with an answer whose evidence is weaker, from 0 to 1."""
        score = float(np.asarray(signals, np.float64) @ self.weights)
        return float(np.interp(score, self.quantiles, np.linspace(0, 1, len(self.quantiles))))

    def unsure(self, confidence: float) -> bool:
        return confidence < self.alarms

    def to_dict(self) -> dict[str, Any]:
        return {
            "signals": dict(zip(SIGNALS, self.weights.tolist(), strict=True)),
            "quantiles": [round(float(value), 6) for value in self.quantiles],
            "queries": self.queries,
            "alarms": self.alarms,
            "caught": round(self.caught, 4),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Calibration:
        weights = np.asarray([data["signals"].get(name, 0.0) for name in SIGNALS], np.float64)
        return cls(weights, np.asarray(data["quantiles"], np.float64), data["queries"], data["caught"], data["alarms"])


def calibrated(answered: np.ndarray, left_out: np.ndarray, alarms: float = ALARMS) -> Calibration | None:
    """A calibration from the signals [n, len(SIGNALS)] of held-out queries, and of the same queries whose answers were
    left out. None if there are too few queries, or if no signal tells the two apart.

    Signals count the same, in units of their standard deviation. Weights that separate the two kinds best (a logistic
    regression) trust words more: on SciFact they find as many queries without their answers (12 %), but fewer of those
    that are about something else, 83 % instead of 98 % of FiQA's.
    """
    if min(len(answered), len(left_out)) < ENOUGH:
        return None
    spread = np.concatenate([answered, left_out]).std(axis=0)
    useful = (spread > 1e-9) & (answered.mean(axis=0) > left_out.mean(axis=0))
    weights = np.where(useful, 1 / np.where(useful, spread, 1.0), 0.0)
    if not useful.any():
        return None
    sums = answered @ weights
    quantiles = np.quantile(sums, np.linspace(0, 1, POINTS))
    caught = float(np.mean(left_out @ weights < np.quantile(sums, alarms)))
    return Calibration(weights, quantiles, len(answered), caught, alarms)
