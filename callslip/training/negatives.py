"""Documents to tell the answer from: hard ones from another ranking, and strangers where it has none."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import scipy.sparse

from callslip.errors import BadSetting
from callslip.identifiers.table import Identifiers

Text = TypeVar("Text", bound=Hashable)
NONE = -1
"""Fills the places of candidates that there are not."""


class Answers:
    """Which documents are known to answer which text: texts and documents by number."""

    def __init__(self, text: np.ndarray, row: np.ndarray, documents: int) -> None:
        """Example i says that document `row[i]` answers text `text[i]`."""
        texts = int(text.max()) + 1 if len(text) else 0
        ones = np.ones(len(text), dtype=bool)
        self._table = scipy.sparse.csr_array((ones, (text, row)), shape=(texts, documents), dtype=bool)

    def __len__(self) -> int:
        return self._table.shape[0]

    def of(self, text: int) -> np.ndarray:
        """Rows that answer this text."""
        table = self._table
        return table.indices[table.indptr[text] : table.indptr[text + 1]]

    def among(self, texts: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Whether document `rows[j]` answers `texts[i]`: bool [len(texts), len(rows)]."""
        return self._table[texts][:, rows].toarray()


def hard_candidates(scores: Iterable[np.ndarray], answers: Answers, top: int = 100) -> np.ndarray:
    """The `top` best documents by `scores` (one vector per text) that do not answer the text, [texts, top].

    Only scores above zero count; places that stay empty, always the last of a row, hold NONE.
    """
    found = np.full((len(answers), top), NONE, dtype=np.int32)
    count = 0
    for text, values in enumerate(scores):
        best = np.argpartition(-values, top - 1)[:top] if top < len(values) else np.arange(len(values))
        best = best[np.argsort(-values[best], kind="stable")]
        rows = best[(values[best] > 0) & ~np.isin(best, answers.of(text))]
        found[text, : len(rows)] = rows
        count += 1
    if count != len(answers):
        raise BadSetting(f"scores of {count} texts, and answers of {len(answers)}")
    return found


def draw(candidates: np.ndarray, count: int, documents: int, rng: np.random.Generator) -> np.ndarray:
    """`count` rows for each row of `candidates`, chosen from it; any documents where it holds none. [n, count]"""
    there = (candidates != NONE).sum(axis=1)[:, None]
    picks = rng.integers(0, np.maximum(there, 1), (len(candidates), count))
    strangers = rng.integers(0, max(1, documents), (len(candidates), count))
    return np.where(there > 0, np.take_along_axis(candidates, picks, axis=1), strangers)


def number_texts(texts: Sequence[Text]) -> tuple[list[Text], np.ndarray]:
    """The distinct texts, or what stands for them, in order of first appearance, and the number of each given one among
    them."""
    numbers: dict[Text, int] = {}
    each = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
    return list(numbers), each


def prefix_negatives(identifiers: Identifiers, count: int, rng: np.random.Generator) -> np.ndarray:
    """For each row `count` other rows that share the longest prefixes of its code, [N, count].

    First come those of its bucket, then those that share all but the last token, and so on to those that share nothing:
    every prefix is a slice of the sorted codes, and a longer prefix a slice inside it. Where a slice offers more than
    are wanted, chance decides. In a table of `count` documents or fewer all others come, and then repeat; a table of
    one document has only itself.
    """
    size, codes = len(identifiers), identifiers.codes
    found = np.empty((size, count), dtype=np.int64)
    low, high = _prefix_bounds(codes)
    wanted = min(count, size - 1)
    for at in range(size):
        taken: list[np.ndarray] = []
        missing, inside = wanted, (at, at + 1)
        for level in range(codes.shape[1], -1, -1):
            if missing <= 0:
                break
            outer = int(low[level, at]), int(high[level, at])
            before, after = inside[0] - outer[0], outer[1] - inside[1]
            pick = np.arange(before + after) if before + after <= missing else _some(before + after, missing, rng)
            taken.append(np.where(pick < before, outer[0] + pick, inside[1] + pick - before))
            missing, inside = missing - len(pick), outer
        places = np.concatenate(taken) if taken else np.array([at])
        found[identifiers.rows[at]] = identifiers.rows[np.resize(places, count)]
    return found


def _prefix_bounds(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the slice of the first l tokens of each code begins and stops, [L + 1, N] each; l = 0 is the table."""
    size, length = codes.shape
    low, high = (np.empty((length + 1, size), dtype=np.int64) for _ in range(2))
    new = np.zeros(size, dtype=bool)
    new[:1] = True
    for level in range(length + 1):
        if level:
            new[1:] |= codes[1:, level - 1] != codes[:-1, level - 1]
        starts = np.flatnonzero(new)
        run = np.cumsum(new) - 1
        low[level], high[level] = starts[run], np.append(starts[1:], size)[run]
    return low, high


def _some(among: int, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """`wanted` different numbers below `among`."""
    if among < 4 * wanted:
        return rng.permutation(among)[:wanted]
    picked = np.unique(rng.integers(0, among, 2 * wanted))  # drawing beats shuffling where there is much to draw from
    return rng.permutation(picked)[:wanted] if len(picked) >= wanted else rng.permutation(among)[:wanted]


class Siblings:
    """Documents of sibling leaves: they share all tokens of a code but the last."""

    def __init__(self, identifiers: Identifiers) -> None:
        low, high = _prefix_bounds(identifiers.codes)
        self._rows = identifiers.rows
        place = np.empty(len(identifiers), dtype=np.int64)
        place[identifiers.rows] = np.arange(len(identifiers))
        self._parent = low[-2][place], high[-2][place]
        self._leaf = low[-1][place], high[-1][place]

    def draw(self, rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """For each row `count` documents of its sibling leaves, [n, count]; any others where it has none."""
        first, stop = (bound[rows][:, None] for bound in self._leaf)
        low, high = (bound[rows][:, None] for bound in self._parent)
        alone = high - low == stop - first
        low, high = np.where(alone, 0, low), np.where(alone, len(self._rows), high)
        beside = (high - low) - (stop - first)
        picked = low + rng.integers(0, np.where(beside > 0, beside, high - low), (len(rows), count))
        # Past the document's own leaf, unless there is no other in the whole table.
        return self._rows[np.where((picked >= first) & (beside > 0), picked + stop - first, picked)]
