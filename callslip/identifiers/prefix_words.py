"""Characteristic words of a prefix: words common in its documents and rare in the corpus. `Labels` gives the same ones
to `callslip inspect` and to the page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from callslip.corpus.documents import Document

WORD = re.compile(r"[^\W\d_][\w'’-]{2,}")
"""Words start with a letter and have at least three characters."""
CHARACTERS = 2000
"""Number of characters read of each text; the beginning of a text shows its topic."""
SAMPLE = 32
"""Number of sampled documents of a prefix."""
BACKGROUND = 1000
"""Number of sampled documents of the whole index, for the background frequencies."""
WORDS = 5
"""Maximum number of words of a label."""


def words_of(text: str) -> set[str]:
    """The distinct words of a text, in lower case."""
    return {word.strip("'’-") for word in WORD.findall(text[:CHARACTERS].lower())}


def document_frequencies(texts: Iterable[str]) -> Counter[str]:
    """Document frequency of each word; the empty string holds the number of texts."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words_of(text))
        counts[""] += 1
    return counts


def commonest_words(texts: Sequence[str], background: Counter[str], top: int = 3, least: int = 2) -> list[str]:
    """The words that are common in these texts and rare elsewhere.

    A word's weight is the share of the texts that contain it, times the log of the ratio of its frequency here to that
    in the `background` (`document_frequencies` of the corpus or a sample), so "the" gets no weight. Words of fewer than
    `least` texts are excluded unless there are fewer texts; ties are broken alphabetically.
    """
    here = document_frequencies(texts)
    count, everywhere = here.pop("", 0), max(background.get("", 0), 1)
    least = min(least, count)
    weights = {}
    for word, times in here.items():
        if times < least:
            continue
        share, usual = times / count, (background.get(word, 0) + 1) / (everywhere + 1)
        weight = share * math.log(share / usual) if usual < share else 0.0
        if weight > 0:
            weights[word] = weight
    return sorted(weights, key=lambda word: (-weights[word], word))[:top]


def label(documents: Sequence[Document], background: Counter[str], top: int = WORDS) -> list[str]:
    """The words that label a branch of the tree: those that several of its documents share, then, as in a small branch
    of different documents, those of single ones. Documents without any words are named by their doc_ids."""
    texts = [document.content for document in documents]
    words = commonest_words(texts, background, top)
    if len(words) < top:
        words = list(dict.fromkeys([*words, *commonest_words(texts, background, top, least=1)]))[:top]
    return words or [document.doc_id for document in documents[:top]]


class Labels:
    """Labels of prefixes, from a sample of the documents of each."""

    def __init__(self, read: Callable[[list[int]], Sequence[Document]], alive: np.ndarray) -> None:
        """`read` gives the documents of rows; `alive` marks the rows of documents that are not deleted."""
        self.read, self.alive = read, alive

    def background(self) -> Counter[str]:
        """Document frequencies of words in a sample of the whole index."""
        sample = self._sampled(np.arange(len(self.alive)), BACKGROUND)
        return document_frequencies(document.content for document in sample)

    def of(self, rows: np.ndarray, background: Counter[str]) -> list[str]:
        """The label of the branch with these rows."""
        return label(self._sampled(rows, SAMPLE), background)

    def _sampled(self, rows: np.ndarray, most: int) -> Sequence[Document]:
        """Up to `most` living documents at even distances, in order of row: documents that share a code have no other
        order that is always the same."""
        rows = np.sort(rows[self.alive[rows]])
        if len(rows) > most:
            rows = rows[np.linspace(0, len(rows) - 1, most).astype(int)]
        return self.read(rows.tolist())
