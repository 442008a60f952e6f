"""Characteristic words of a prefix: words common in its documents and rare in the corpus."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

WORD = re.compile(r"[^\W\d_][\w'’-]{2,}")
"""Words start with a letter and have at least three characters."""
CHARACTERS = 2000
"""Number of characters read of each text; the beginning of a text shows its topic."""


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


def commonest_words(texts: Sequence[str], background: Counter[str], top: int = 3) -> list[str]:
    """The words that are common in these texts and rare elsewhere.

    A word's weight is the share of the texts that contain it, times the log of the ratio of its frequency here to that
    in the `background` (`document_frequencies` of the corpus or a sample), so "the" gets no weight. Words of a single
    text are excluded unless there is only one text; ties are broken alphabetically.
    """
    here = document_frequencies(texts)
    count, everywhere = here.pop("", 0), max(background.get("", 0), 1)
    least = min(2, count)
    weights = {}
    for word, times in here.items():
        if times < least:
            continue
        share, usual = times / count, (background.get(word, 0) + 1) / (everywhere + 1)
        weight = share * math.log(share / usual) if usual < share else 0.0
        if weight > 0:
            weights[word] = weight
    return sorted(weights, key=lambda word: (-weights[word], word))[:top]
