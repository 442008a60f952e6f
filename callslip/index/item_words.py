"""Words of items: whether two items share rare words, such as a brand or a line of products, which vectors of texts
blur."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WORDS = 48
"""Number of words that are kept of an item: the first different ones."""
_WORD = re.compile(r"\w+")


def word_hashes(texts: Iterable[str]) -> np.ndarray:
    """The first different words of each text as hashes, uint32 [n, WORDS]; 0 is no word."""
    known: dict[str, int] = {}
    rows = []
    for text in texts:
        words = list(dict.fromkeys(_WORD.findall(text.lower())))[:WORDS]
        for word in words:
            if word not in known:
                known[word] = max(1, zlib.crc32(word.encode()))
        rows.append([known[word] for word in words] + [0] * (WORDS - len(words)))
    return np.array(rows, np.uint32).reshape(len(rows), WORDS)


def words_of(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """The words of new items among their parts; none if an earlier version has stored them."""
    count = len(next(iter(parts.values())))
    return parts.get("words", np.zeros((count, WORDS), np.uint32))


@dataclass(frozen=True)
class ItemWords:
    """The words of N items."""

    hashes: np.ndarray
    """uint32 [N, WORDS], or [N, 0] if the items have no texts."""

    @cached_property
    def vectors(self) -> csr_matrix:
        """Unit vectors of the words, weighted by log(N / items with the word), [N, words]."""
        from scipy.sparse import csr_matrix

        there = self.hashes > 0
        _, columns = np.unique(self.hashes[there], return_inverse=True)
        items = np.bincount(columns)
        weights = np.log(len(self.hashes) / items)[columns] if len(columns) else np.zeros(0)
        bounds = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        found = csr_matrix((weights.astype(np.float32), columns, bounds), shape=(len(self.hashes), max(1, len(items))))
        lengths = np.sqrt(np.asarray(found.multiply(found).sum(axis=1)).ravel())
        found.data /= np.repeat(np.maximum(lengths, 1e-6), np.diff(found.indptr)).astype(np.float32)
        return found

    def similarities(self, items: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Cosine of each item [B] and each of its others [B, K], by words."""
        found = np.zeros(others.shape, np.float32)
        if not self.hashes.shape[1] or not others.size:
            return found
        own, compared = self.vectors[items].toarray(), self.vectors[others.ravel()]
        cells = np.repeat(np.arange(others.size), np.diff(compared.indptr))
        products = own[cells // others.shape[1], compared.indices] * compared.data
        return np.bincount(cells, weights=products, minlength=others.size).reshape(others.shape).astype(np.float32)
