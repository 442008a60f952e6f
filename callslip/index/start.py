"""Where a trained recommender begins: at what counting knows of the log, and how far beyond it the model is trusted.

The score of an item is log p0(item | history) + trust · what the model says. p0 comes from counts, whose first items a
small network reorders (`reranker`). Whether it does, and how far the model is trusted, is decided on training items
that neither they nor the counts have seen, so that on those an index is never below its beginning: without a reranker
and with trust 0 it ranks as the counts do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.corpus.sequences import Sequences
from callslip.index import neighbours
from callslip.index.counts import FLOOR, SHARPNESS, Counts, CountSettings
from callslip.index.reranker import EXAMPLES, FEWEST, Evidence, Reranker, examples_of, trained
from callslip.search.nearest import best_rows

if TYPE_CHECKING:
    from callslip.training.log import TrainingLog

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
KEPT, BLOCK = 1024, 256
"""Histories whose reordering is kept, at most; and histories that are scored at once."""


def log_weights_of(
    counts: Counts, scores: np.ndarray, histories: Sequence[np.ndarray], rows: np.ndarray | None = None
) -> np.ndarray:
    """log p0 of every item, or of some rows, by their scores, up to a constant of each history."""
    users = counts.users if rows is None else counts.users[rows]
    found = SHARPNESS * np.log(FLOOR + np.maximum(scores, 0)) + POPULARITY * np.log1p(users)
    penalty = np.log(counts.repeat_factor)
    for row, history in zip(found, histories, strict=True):
        if rows is None:
            row[np.unique(history)] += penalty
        else:
            row[np.isin(rows, history)] += penalty
    return found


@dataclass(frozen=True)
class Start:
    """Counts, the reranker of their first items, and how far a model is trusted beyond them."""

    counts: Counts
    trust: float = 0.0
    reranker: Reranker | None = None

    def log_weights(self, histories: Sequence[np.ndarray], rows: np.ndarray | None = None) -> np.ndarray:
        """log p0 of every item, or of some rows, up to a constant of each history: [B, N] or [B, rows]."""
        found = self.counted(histories, rows)
        if self.reranker is None:
            return found
        for row, (some, added) in zip(found, self.reordered(histories, found if rows is None else None), strict=True):
            if rows is None:
                row[some] += added
            else:
                place = np.minimum(np.searchsorted(some, rows), len(some) - 1)
                row += np.where(some[place] == rows, added[place], 0.0)
        return found

    def counted(self, histories: Sequence[np.ndarray], rows: np.ndarray | None = None) -> np.ndarray:
        """log p0 by counts alone."""
        return log_weights_of(self.counts, self.counts.scores(histories, rows), histories, rows)

    def reordered(
        self, histories: Sequence[np.ndarray], counted: np.ndarray | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each history the rows that the reranker reorders, ascending, and what it adds to their log p0. `counted`
        is what `counted` gives for all items, if it is at hand.

        A search asks for all items, and again for those that its beam has reached: the last answers are kept.
        """
        assert self.reranker is not None
        keys = [history.tobytes() for history in histories]
        found = {key: self._kept.get(key) for key in keys}
        new = {key: n for n, key in enumerate(keys) if found[key] is None}
        if new:
            some = [histories[n] for n in new.values()]
            whole = self.counted(some) if counted is None else counted[list(new.values())]
            for key, rows, added in zip(new, *self.reranker.added(self.evidence, some, whole), strict=True):
                order = np.argsort(rows)
                found[key] = rows[order], added[order]
        if len(self._kept) > KEPT:
            self._kept.clear()
        self._kept.update((key, change) for key, change in found.items() if change is not None)
        return [change for change in (found[key] for key in keys) if change is not None]

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence(self.counts)

    @cached_property
    def _kept(self) -> dict[bytes, tuple[np.ndarray, np.ndarray]]:
        return {}

    def because(self, history: np.ndarray, rows: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
        """For each row, the items of the history that the rules lead from."""
        return neighbours.because(self.counts.because(history, rows), names)

    def extended(self, texts: np.ndarray, words: np.ndarray) -> Start:
        """With further items: their text vectors, [n, text], or [n, 0] if they have none, and hashes of their words."""
        known = texts if texts.shape[1] == len(self.counts.centre) else None
        return replace(self, counts=self.counts.extended(self.counts.placed(known, len(texts)), words))

    def kept(self, rows: np.ndarray) -> Start:
        """With some items only."""
        return replace(self, counts=self.counts.kept(rows))

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        self.counts.save(folder)
        if self.reranker is not None:
            self.reranker.save(folder)
        save_file({"trust": np.array([self.trust])}, folder / TRUST)

    @classmethod
    def load(cls, folder: Path, ordered: bool) -> Start | None:
        """What `save` wrote; None for an index that does not begin at counts."""
        from safetensors.numpy import load_file

        if not (folder / TRUST).exists():
            return None
        trust = float(load_file(folder / TRUST)["trust"][0])
        return cls(Counts.load(folder, count_settings(ordered)), trust, Reranker.load(folder))


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
    def of(cls, sequences: Sequences, seed: int, most: int | None = None, share: int | None = None) -> HeldOut:
        """Hold out the last item of some users with three or more: of one in `share`, and of at most so many."""
        lengths = np.diff(sequences.bounds)
        able = np.flatnonzero(lengths >= 3)
        count = min(HELD_OUT if most is None else most, len(able) // (share or SHARE))
        users = np.sort(np.random.default_rng(seed).permutation(able)[:count])
        last = sequences.bounds[users + 1] - 1
        kept = np.ones(len(sequences.items), bool)
        kept[last] = False
        shorter = lengths.copy()
        shorter[users] -= 1
        rest = replace(sequences, items=sequences.items[kept], bounds=np.concatenate([[0], np.cumsum(shorter)]))
        histories = [sequences.items[sequences.bounds[user] : end] for user, end in zip(users, last, strict=True)]
        return cls(rest, histories, sequences.items[last])

    def figures(self, ranked: Sequence[np.ndarray]) -> np.ndarray:
        """nDCG@10 of each ranking of rows, without the items of its history."""
        found = np.zeros(len(self.targets))
        for n, (rows, history, target) in enumerate(zip(ranked, self.histories, self.targets, strict=True)):
            had = [row for row in history.tolist() if row != target]
            left = rows[~np.isin(rows, had)][:DEPTH]
            place = np.flatnonzero(left == target)
            found[n] = 1 / np.log2(2 + place[0]) if len(place) else 0.0
        return found

    def gain(self, ranked: Sequence[np.ndarray]) -> float:
        """Mean nDCG@10 of rankings."""
        return float(self.figures(ranked).sum()) / max(1, len(self.targets))

    def ranked_by(self, log_weights: Callable[[Sequence[np.ndarray]], np.ndarray]) -> list[np.ndarray]:
        """Rankings of the histories by log weights, deep enough for `DEPTH` hits beside the history."""
        found = []
        for at in range(0, len(self.histories), BLOCK):
            some = self.histories[at : at + BLOCK]
            found += [best_rows(row, DEPTH + len(h)) for row, h in zip(log_weights(some), some, strict=True)]
        return found


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


def with_reranker(
    tried: Start, count: Callable[[Sequences], Counts], held: HeldOut, depth: int, seed: int, log: TrainingLog
) -> Start:
    """A start that has counted `held.rest`, with a reranker if it ranks the held-out items better, beyond the error of
    the comparison. Its examples are the last items of `held.rest`, for counts that have not seen those either."""
    inner = HeldOut.of(held.rest, seed, EXAMPLES, 1)
    if not depth or len(inner.targets) < FEWEST:
        return tried
    before = Start(count(inner.rest))
    examples = examples_of(before.evidence, before.counted, inner.histories, inner.targets, depth)
    reranker = trained(examples, seed, log)
    if reranker is None:
        return tried
    better = replace(tried, reranker=reranker)
    alone, more = (held.figures(held.ranked_by(start.log_weights)) for start in (tried, better))
    error = 1.96 * float((more - alone).std()) / max(1, len(alone)) ** 0.5
    used = float((more - alone).mean()) > error
    figures = {f"nDCG@{DEPTH}, counts": alone.mean(), f"nDCG@{DEPTH}, reranked": more.mean(), "error": error}
    log.add(
        phase="reranker beyond counts", epoch=0, seconds=0.0, used=used, examples=len(examples.right),
        held_out=len(alone), **{name: round(float(figure), 4) for name, figure in figures.items()},
    )  # fmt: skip
    return better if used else tried


def joined(
    count: Callable[[Sequences], Counts],
    whole: Sequences,
    depth: int,
    seed: int,
    log: TrainingLog,
    ranked: Callable[[Start, HeldOut], list[np.ndarray]] | None = None,
) -> Start:
    """The start of an index, whose model, if there is one, was trained on `HeldOut.of(whole, seed).rest`.

    `count` counts a log, and `depth` is the number of items that may be reranked; `ranked` gives the rankings of the
    held-out histories with a start and the model, deep enough for `DEPTH` hits beside the history.
    """
    held, figures, reranker = HeldOut.of(whole, seed), {}, None
    if len(held.targets) and (depth or ranked is not None):
        tried = with_reranker(Start(count(held.rest)), count, held, depth, seed, log)
        reranker = tried.reranker
        if ranked is not None:
            figures = climbed(lambda trust: held.gain(ranked(replace(tried, trust=trust), held)))
    best = best_of(figures)
    tested = len(held.targets) if ranked is not None else 0
    tries = {f"nDCG@{DEPTH}, trust {trust:g}": round(figure, 4) for trust, figure in figures.items()}
    log.add(phase="trust beyond counts", epoch=0, seconds=0.0, trust=best, held_out=tested, **tries)
    return Start(count(whole), best, reranker)
