"""Where a trained recommender begins: at what counting knows of the log, and how far beyond it the model is trusted.

The score of an item is log p0(item | history) + trust · what the model says. p0 comes from counts alone; the trust is
chosen on training items that neither the model nor the counts have seen, so that on those an index is never
below its beginning: with trust 0 it ranks as the counts do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from callslip.corpus.sequences import Sequences
from callslip.index import neighbours
from callslip.index.counts import FLOOR, SHARPNESS, Counts, CountSettings

TRUST = "start.safetensors"
POPULARITY = 0.05
"""p0 is also proportional to (1 + users of the item)^POPULARITY: enough to order items that counts know nothing of.
More of it fits probabilities better and ranks worse."""
TRUSTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
"""Values of the trust that are tried, until the next `PATIENCE` find no more than the best so far."""
PATIENCE = 3
HELD_OUT, SHARE = 3000, 5
"""At most so many users, and one in so many, have their last training item held out."""
DEPTH = 10
"""Number of hits by which trust is chosen."""


@dataclass
class Start:
    """Counts, and how far a model is trusted beyond them."""

    counts: Counts
    trust: float = 0.0

    def log_weights(self, histories: Sequence[np.ndarray], rows: np.ndarray | None = None) -> np.ndarray:
        """log p0 of every item, or of some rows, up to a constant of each history: [B, N] or [B, rows]."""
        counts = self.counts
        scores, users = counts.scores(histories, rows), counts.users if rows is None else counts.users[rows]
        found = SHARPNESS * np.log(FLOOR + np.maximum(scores, 0)) + POPULARITY * np.log1p(users)
        penalty = np.log(counts.repeat_factor)
        for row, history in zip(found, histories, strict=True):
            if rows is None:
                row[np.unique(history)] += penalty
            else:
                row[np.isin(rows, history)] += penalty
        return found

    def because(self, history: np.ndarray, rows: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
        """For each row, the items of the history that the rules lead from."""
        return neighbours.because(self.counts.because(history, rows), names)

    def extend(self, texts: np.ndarray) -> None:
        """Append items with these text vectors, [n, text], or [n, 0] if they have none."""
        known = texts if texts.shape[1] == len(self.counts.centre) else None
        self.counts = self.counts.extended(self.counts.placed(known, len(texts)))

    def keep(self, rows: np.ndarray) -> None:
        """Keep some items only."""
        self.counts = self.counts.kept(rows)

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        self.counts.save(folder)
        save_file({"trust": np.array([self.trust])}, folder / TRUST)

    @classmethod
    def load(cls, folder: Path, ordered: bool) -> Start | None:
        """What `save` wrote; None for an index that does not begin at counts."""
        from safetensors.numpy import load_file

        if not (folder / TRUST).exists():
            return None
        return cls(Counts.load(folder, count_settings(ordered)), float(load_file(folder / TRUST)["trust"][0]))


def count_settings(ordered: bool) -> CountSettings:
    """What is counted for histories that are sequences (`ordered`), or for sets: neither order nor distance."""
    return CountSettings() if ordered else CountSettings().unordered()


@dataclass(frozen=True)
class HeldOut:
    """A log without the last item of some users, and those users' histories and items."""

    rest: Sequences
    histories: list[np.ndarray]
    targets: np.ndarray

    @classmethod
    def of(cls, sequences: Sequences, seed: int) -> HeldOut:
        """Hold out the last item of some users with three or more."""
        lengths = np.diff(sequences.bounds)
        able = np.flatnonzero(lengths >= 3)
        count = min(HELD_OUT, len(able) // SHARE)
        users = np.sort(np.random.default_rng(seed).permutation(able)[:count])
        last = sequences.bounds[users + 1] - 1
        kept = np.ones(len(sequences.items), bool)
        kept[last] = False
        shorter = lengths.copy()
        shorter[users] -= 1
        rest = replace(sequences, items=sequences.items[kept], bounds=np.concatenate([[0], np.cumsum(shorter)]))
        histories = [sequences.items[sequences.bounds[user] : end] for user, end in zip(users, last, strict=True)]
        return cls(rest, histories, sequences.items[last])

    def gain(self, ranked: Sequence[np.ndarray]) -> float:
        """Mean nDCG@10 of rankings of rows, without the items of the histories."""
        total = 0.0
        for rows, history, target in zip(ranked, self.histories, self.targets, strict=True):
            had = [row for row in history.tolist() if row != target]
            left = rows[~np.isin(rows, had)][:DEPTH]
            place = np.flatnonzero(left == target)
            total += 1 / np.log2(2 + place[0]) if len(place) else 0.0
        return total / max(1, len(self.targets))


def climbed(figure: Callable[[float], float]) -> dict[float, float]:
    """The figure of each trust from 0 on, as far as a larger one may still find more."""
    figures: dict[float, float] = {}
    for number, trust in enumerate(TRUSTS):
        figures[trust] = figure(trust)
        if number - TRUSTS.index(best_of(figures)) >= PATIENCE:
            break
    return figures


def best_of(figures: Mapping[float, float]) -> float:
    """The trust with the best figure; the smaller one if two are equal, and 0 if there are none."""
    return max(figures, key=lambda trust: (figures[trust], -trust), default=0.0)


def joined(
    start: Callable[[Sequences], Start], held: HeldOut, whole: Sequences, ranked: Callable[[Start], list[np.ndarray]]
) -> tuple[Start, dict[str, Any]]:
    """The start of an index whose model was trained on `held.rest`, and what to log of it.

    `start` counts a log; `ranked` gives the rankings of the held-out histories with a start, deep enough for `DEPTH`
    hits beside the history.
    """
    tried = start(held.rest)
    figures = climbed(lambda trust: held.gain(ranked(replace(tried, trust=trust)))) if len(held.targets) else {}
    best = best_of(figures)
    record: dict[str, Any] = {"trust": best, "held_out": len(held.targets)}
    record |= {f"nDCG@{DEPTH}, trust {trust:g}": round(figure, 4) for trust, figure in figures.items()}
    return replace(start(whole), trust=best), record
