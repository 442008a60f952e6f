"""What the documents below a prefix have in common: their commonest words, beside those of the whole corpus."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

WORD = re.compile(r"[^\W\d_][\w'’-]{2,}")
"""A word begins with a letter and has three characters or more."""
CHARACTERS = 2000
"""Of a text, so much is read: its beginning says what it is about."""


def words_of(text: str) -> set[str]:
    """The different words of a text, in small letters."""
    return {word.strip("'’-") for word in WORD.findall(text[:CHARACTERS].lower())}


def document_frequencies(texts: Iterable[str]) -> Counter[str]:
    """In how many texts each word occurs; under the empty string, how many texts there are."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words_of(text))
        counts[""] += 1
    return counts


def commonest_words(texts: Sequence[str], background: Counter[str], top: int = 3) -> list[str]:
    """The words that most of these texts have and most others have not.

    A word's weight is the share of the texts that have it, times the log of how much likelier it is there than in the
    `background` (`document_frequencies` of the corpus or a sample). So "the" is never among them. A word of a single
    text is left out unless there is just one; ties go by the alphabet.
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
