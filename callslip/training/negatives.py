"""Negatives: hard negatives from another ranking, or random ones where there are none."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import scipy.sparse

from callslip.errors import BadSetting
from callslip.identifiers.table import Identifiers

NONE = -1
"""Padding for missing candidates."""


class Answers:
    """The documents known to answer each text; texts and documents are numbers."""

    def __init__(self, text: np.ndarray, row: np.ndarray, documents: int) -> None:
        """Document `row[i]` answers text `text[i]`."""
        texts = int(text.max()) + 1 if len(text) else 0
        ones = np.ones(len(text), dtype=bool)
        self._table = scipy.sparse.csr_array((ones, (text, row)), shape=(texts, documents), dtype=bool)

    def __len__(self) -> int:
        return self._table.shape[0]

    def of(self, text: int) -> np.ndarray:
        """Rows of the documents that answer a text."""
        table = self._table
        return table.indices[table.indptr[text] : table.indptr[text + 1]]

    def among(self, texts: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Whether document `rows[j]` answers `texts[i]`: bool [len(texts), len(rows)]."""
        return self._table[texts][:, rows].toarray()


def hard_candidates(
    scores: Iterable[np.ndarray | scipy.sparse.csr_array], answers: Answers, top: int = 100
) -> np.ndarray:
    """The `top` best documents by `scores` that do not answer the text, [texts, top].

    `scores` has a vector per text, or sparse blocks of several texts, [block, N]. Only positive scores count; the
    first of documents with equal scores is better; rows with fewer candidates are right-padded with NONE.
    """
    found = np.full((len(answers), top), NONE, dtype=np.int32)
    count = 0
    for documents, values in _rows(scores):
        if count < len(answers):
            rows = _best(documents, values, top)
            rows = rows[~np.isin(rows, answers.of(count))]
            found[count, : len(rows)] = rows
        count += 1
    if count != len(answers):
        raise BadSetting(f"there are scores for {count} texts, but answers for {len(answers)}")
    return found


def _rows(scores: Iterable[np.ndarray | scipy.sparse.csr_array]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The documents with a positive score and these scores, text by text."""
    for block in scores:
        if isinstance(block, np.ndarray):
            documents = np.flatnonzero(block > 0)
            yield documents, block[documents]
            continue
        for start, stop in itertools.pairwise(block.indptr.tolist()):
            documents, values = block.indices[start:stop], block.data[start:stop]
            yield documents[values > 0], values[values > 0]


def _best(documents: np.ndarray, values: np.ndarray, top: int) -> np.ndarray:
    """The documents of the `top` highest values, best first; the first of equals is better."""
    if top < len(values):
        least = np.partition(values, len(values) - top)[len(values) - top]
        documents, values = documents[values >= least], values[values >= least]  # with all that tie for the last place
    return documents[np.lexsort((documents, -values))[:top]]


def draw(candidates: np.ndarray, count: int, documents: int, rng: np.random.Generator) -> np.ndarray:
    """Sample `count` negatives from each row of `candidates`; random documents if the row is empty. [n, count]"""
    there = (candidates != NONE).sum(axis=1)[:, None]
    picks = rng.integers(0, np.maximum(there, 1), (len(candidates), count))
    strangers = rng.integers(0, max(1, documents), (len(candidates), count))
    return np.where(there > 0, np.take_along_axis(candidates, picks, axis=1), strangers)


def prefix_negatives(identifiers: Identifiers, count: int, rng: np.random.Generator) -> np.ndarray:
    """Hard negatives by prefix: for each row, `count` other rows that share the longest prefixes of its code,
    [N, count].

    Documents of the same bucket come first, then those that share all tokens but the last, and so on: every prefix is a
    slice of the sorted codes, nested in that of a shorter prefix. If a slice has more documents than needed, they are
    sampled at random. A table of at most `count` documents repeats the others; a table of one document repeats itself.
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
    """Start and stop of the slice of the first l tokens of each code, [L + 1, N] each; l = 0 is the whole table."""
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
    """Sample `wanted` distinct numbers below `among`."""
    if among < 4 * wanted:
        return rng.permutation(among)[:wanted]
    picked = np.unique(rng.integers(0, among, 2 * wanted))  # rejection sampling is faster than shuffling here
    return rng.permutation(picked)[:wanted] if len(picked) >= wanted else rng.permutation(among)[:wanted]


class Siblings:
    """Documents of sibling leaves, whose codes share all tokens but the last."""

    def __init__(self, identifiers: Identifiers) -> None:
        low, high = _prefix_bounds(identifiers.codes)
        self._rows = identifiers.rows
        place = np.empty(len(identifiers), dtype=np.int64)
        place[identifiers.rows] = np.arange(len(identifiers))
        self._parent = low[-2][place], high[-2][place]
        self._leaf = low[-1][place], high[-1][place]

    def draw(self, rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Sample `count` documents from the sibling leaves of each row, [n, count]; any others if it has none."""
        first, stop = (bound[rows][:, None] for bound in self._leaf)
        low, high = (bound[rows][:, None] for bound in self._parent)
        alone = high - low == stop - first
        low, high = np.where(alone, 0, low), np.where(alone, len(self._rows), high)
        beside = (high - low) - (stop - first)
        picked = low + rng.integers(0, np.where(beside > 0, beside, high - low), (len(rows), count))
        # Skip the document's own leaf, unless it is the only one in the table.
        return self._rows[np.where((picked >= first) & (beside > 0), picked + stop - first, picked)]
