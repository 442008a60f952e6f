"""A small log with structure: items in six rings, and users who walk a ring, now and then with a step to another."""

from __future__ import annotations

import random

from callslip.corpus.documents import Corpus, Document
from callslip.corpus.interactions import leave_one_out

RINGS = {"soap": 8, "comb": 8, "lamp": 8, "tea": 8, "rope": 8, "kite": 8}


def small_log(users: int = 90, seed: int = 3, texts: bool = True) -> Corpus:
    """48 items and, of every user, seven to ten of them: mostly the next of the ring, so that the last item tells what
    comes; with a topic and a number for a text."""
    chance = random.Random(seed)
    documents = [
        Document(
            f"{ring}-{number}",
            f"A {ring} of kind {number}, made for {ring} lovers." if texts else "",
            f"{ring} {number}" if texts else "",
            {"topic": ring, "even": number % 2 == 0},
        )
        for ring, size in RINGS.items()
        for number in range(size)
    ]
    histories: dict[str, list[str]] = {}
    for user in range(users):
        ring = chance.choice(list(RINGS))
        at = chance.randrange(RINGS[ring])
        items = []
        for _ in range(chance.randint(7, 10)):
            items.append(f"{ring}-{at}")
            if chance.random() < 0.1:
                ring = chance.choice(list(RINGS))
            at = (at + 1) % RINGS[ring]
        histories[f"u{user}"] = items
    corpus = Corpus(documents, name="small-log")
    leave_one_out(corpus, histories)
    return corpus
