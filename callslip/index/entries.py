"""Entries: the codes under which documents are found. A document has one for its text, and may have more for passages.

Entries are kept in the order of their tree tokens, so that the documents of a prefix are a slice. A query scores all
prefixes that exist, opens the best ones, and reads the rest of the codes there.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np

from callslip.identifiers.tied import WIDTH, token_sums

CODES, SCALES, OWNERS = "entries.npy", "scales.npy", "owners.npy"
TEXTS = "texts.npy"


class Entries:
    """Codes uint8 [E, L], their scales float16 [E] and the row of the document that each belongs to, int32 [E]."""

    def __init__(
        self, codes: np.ndarray, scales: np.ndarray, owners: np.ndarray, tree: int, texts: np.ndarray | None = None
    ) -> None:
        """`texts` marks the entry of each row's whole text; by default it is the first of the row."""
        texts = first_of_each(owners) if texts is None else texts
        order = np.argsort(prefix_keys(codes, tree), kind="stable")
        sorted_codes = codes[order].astype(np.uint8, copy=False)
        self._set(sorted_codes, scales[order], owners[order].astype(np.int32), tree, texts[order])

    def _set(self, codes: np.ndarray, scales: np.ndarray, owners: np.ndarray, tree: int, texts: np.ndarray) -> None:
        self.codes, self.scales, self.owners, self.tree, self.texts = codes, scales, owners, tree, texts
        key = prefix_keys(codes, tree)
        self.leaves, first = np.unique(key, return_index=True)
        """Tree prefixes that exist, and where the entries of each begin."""
        self.starts = np.append(first, len(codes))

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def _by_row(self) -> tuple[np.ndarray, np.ndarray]:
        """Entries in the order of their rows, that of the text first, and where each row begins."""
        order = np.lexsort((~self.texts, self.owners))
        return order, np.searchsorted(self.owners[order], np.arange(int(self.owners.max(initial=-1)) + 2))

    def open(self, table: np.ndarray, wanted: int | None, mask: np.ndarray | None = None) -> np.ndarray:
        """The entries of the best prefixes, until `wanted` of them are allowed by the mask of rows; None for all."""
        allowed = None if mask is None else mask[self.owners]
        if wanted is None or wanted >= len(self):
            return np.arange(len(self)) if allowed is None else np.flatnonzero(allowed)
        scores = np.zeros(len(self.leaves), np.float32)
        for level in range(self.tree):
            scores += table[level].take((self.leaves >> (8 * (self.tree - 1 - level))) & (WIDTH - 1))
        best = np.argsort(-scores, kind="stable")
        if allowed is None:
            sizes = np.diff(self.starts)
        else:
            sizes = np.add.reduceat(allowed, self.starts[:-1], dtype=np.int64)
        count = int(np.searchsorted(np.cumsum(sizes[best]), wanted)) + 1
        opened = best[:count]
        lengths = self.starts[opened + 1] - self.starts[opened]
        begin = np.repeat(self.starts[opened] - (np.cumsum(lengths) - lengths), lengths)
        found = begin + np.arange(lengths.sum())
        return found if allowed is None else found[allowed[found]]

    def scores(self, table: np.ndarray, entries: np.ndarray) -> np.ndarray:
        """Inner products of the query with the reconstructions of entries."""
        return token_sums(table, self.codes[entries]) * self.scales[entries].astype(np.float32)

    def best_of_rows(self, entries: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the entries, sorted, with the best score of each."""
        rows, place = np.unique(self.owners[entries], return_inverse=True)
        best = np.full(len(rows), -np.inf, np.float32)
        np.maximum.at(best, place, scores)
        return rows, best

    def scores_of_rows(self, table: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The best score of each of these rows."""
        order, first = self._by_row
        sizes = first[rows + 1] - first[rows]
        begin = np.repeat(first[rows] - (np.cumsum(sizes) - sizes), sizes)
        entries = order[begin + np.arange(sizes.sum())]
        best = np.full(len(rows), -np.inf, np.float32)
        np.maximum.at(best, np.repeat(np.arange(len(rows)), sizes), self.scores(table, entries))
        return best

    def codes_of_rows(self, count: int) -> np.ndarray:
        """The code of each row's text, uint8 [count, L]."""
        order, first = self._by_row
        return self.codes[order[first[:count]]]

    def with_more(self, codes: np.ndarray, scales: np.ndarray, owners: np.ndarray) -> Entries:
        new = first_of_each(owners) & ~np.isin(owners, self.owners)
        return Entries(
            np.concatenate([self.codes, codes.astype(np.uint8)]),
            np.concatenate([self.scales, scales.astype(np.float16)]),
            np.concatenate([self.owners, owners.astype(np.int32)]),
            self.tree,
            np.concatenate([self.texts, new]),
        )

    def kept(self, rows: np.ndarray) -> Entries:
        """The entries of these rows only, which are numbered anew from 0."""
        number = np.full(int(self.owners.max(initial=-1)) + 1, -1, np.int32)
        number[rows] = np.arange(len(rows))
        owners = number[self.owners]
        stays = owners >= 0
        return Entries(self.codes[stays], self.scales[stays], owners[stays], self.tree, self.texts[stays])

    def save(self, folder: Path) -> None:
        for name, array in ((CODES, self.codes), (SCALES, self.scales), (OWNERS, self.owners)):
            np.save(folder / name, array, allow_pickle=False)
        if not self.texts.all():
            np.save(folder / TEXTS, self.texts, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, tree: int) -> Entries:
        entries = cls.__new__(cls)
        codes, scales, owners = (
            np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (CODES, SCALES, OWNERS)
        )
        several = (folder / TEXTS).exists()
        texts = np.load(folder / TEXTS, allow_pickle=False) if several else np.ones(len(codes), bool)
        entries._set(codes, scales, owners, tree, texts)
        return entries


def first_of_each(owners: np.ndarray) -> np.ndarray:
    """Whether each entry is the first of its row."""
    first = np.zeros(len(owners), bool)
    first[np.unique(owners, return_index=True)[1]] = True
    return first


def prefix_keys(codes: np.ndarray, tree: int) -> np.ndarray:
    """The tree tokens of codes as one integer each, in the order of the tokens."""
    key = np.zeros(len(codes), np.int64)
    for level in range(tree):
        key = (key << 8) | codes[:, level].astype(np.int64)
    return key
