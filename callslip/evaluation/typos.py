"""Synthetic typos in queries, to measure robustness.

A typo is one edit in one word: two adjacent letters swapped, a letter dropped, a letter doubled, or a letter replaced
by its neighbour on a QWERTY keyboard. Only words of four or more letters are changed, each at most once, so that
queries remain understandable.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from callslip.corpus.documents import Query
from callslip.errors import BadSetting

WORD = re.compile(r"[^\W\d_]{4,}")
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _keyboard() -> dict[str, str]:
    """Each letter's neighbours. Rows are shifted by about half a key: key i is next to i and i − 1 in the row below."""
    touching: dict[str, set[str]] = {letter: set() for row in ROWS for letter in row}
    pairs = [(row[i], row[i + 1]) for row in ROWS for i in range(len(row) - 1)]
    for upper, lower in pairwise(ROWS):
        pairs += [(upper[i], lower[j]) for i in range(len(upper)) for j in (i - 1, i) if 0 <= j < len(lower)]
    for a, b in pairs:
        touching[a].add(b)
        touching[b].add(a)
    return {letter: "".join(sorted(near)) for letter, near in touching.items()}


NEIGHBOURS = _keyboard()


def with_typos(text: str, *, edits: int = 1, rate: float | None = None, seed: int = 0, query_id: str = "") -> str:
    """The text with typos in some of its words of four or more letters.

    `edits` words get one typo each or, with `rate`, that share of the eligible words (rounded up). A text with fewer
    eligible words gets fewer typos. The typos depend only on the text, `seed` and `query_id`, not on the order of calls
    or the Python version.
    """
    if edits < 0 or (rate is not None and not 0 <= rate <= 1):
        raise BadSetting(f"edits {edits}, rate {rate}", "Use edits >= 0, or a rate from 0 to 1.")
    words = list(WORD.finditer(text))
    wanted = edits if rate is None else math.ceil(rate * len(words) - 1e-9)
    rng = random.Random(f"{seed}\x00{query_id}")
    order = [(rng.random(), place) for place in range(len(words))]
    for place in sorted(place for _, place in sorted(order)[:wanted])[::-1]:  # from the end, so that offsets stay valid
        start, end = words[place].span()
        text = text[:start] + _misspelt(text[start:end], rng) + text[end:]
    return text


def typo_queries(
    queries: Mapping[str, Query], *, edits: int = 1, rate: float | None = None, seed: int = 0
) -> dict[str, Query]:
    """The same queries under the same ids, with typos in their texts."""
    return {
        qid: replace(query, text=with_typos(query.text, edits=edits, rate=rate, seed=seed, query_id=qid))
        for qid, query in queries.items()
    }


def _misspelt(word: str, rng: random.Random) -> str:
    """The word with one typo; always different from the original."""
    swaps = [i for i in range(len(word) - 1) if word[i] != word[i + 1]]
    near = [i for i, letter in enumerate(word) if letter.lower() in NEIGHBOURS]
    slips = ["drop", "double"] + ["swap"] * bool(swaps) + ["neighbour"] * bool(near)
    slip = _pick(slips, rng)
    if slip == "swap":
        i = _pick(swaps, rng)
        return word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    if slip == "neighbour":
        i = _pick(near, rng)
        letter = _pick(NEIGHBOURS[word[i].lower()], rng)
        return word[:i] + (letter.upper() if word[i].isupper() else letter) + word[i + 1 :]
    i = _pick(range(len(word)), rng)
    return word[:i] + word[i + 1 :] if slip == "drop" else word[: i + 1] + word[i:]


def _pick(choices, rng: random.Random):  # type: ignore[no-untyped-def]
    """A random choice. `rng.choice` may change between Python versions; `rng.random` is guaranteed stable."""
    return choices[int(rng.random() * len(choices))]
