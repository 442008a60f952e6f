"""Evaluation as the text books define it, by plain loops; and the orders of buckets, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product
from math import log2

Grades = dict[str, int]


def relevant(judged: Grades, level: int = 1) -> set[str]:
    return {doc_id for doc_id, grade in judged.items() if grade >= level}


def ndcg(ranking: Sequence[str], judged: Grades, k: int | None = None) -> float:
    found = sum(max(judged.get(d, 0), 0) / log2(i + 1) for i, d in enumerate(ranking[:k], start=1))
    best = sorted((max(grade, 0) for grade in judged.values()), reverse=True)[:k]
    ideal = sum(grade / log2(i + 1) for i, grade in enumerate(best, start=1))
    return found / ideal if ideal else 0.0


def recall(ranking: Sequence[str], judged: Grades, k: int, level: int = 1) -> float:
    answers = relevant(judged, level)
    return len(answers & set(ranking[:k])) / len(answers) if answers else 0.0


def precision(ranking: Sequence[str], judged: Grades, k: int, level: int = 1) -> float:
    return len(relevant(judged, level) & set(ranking[:k])) / k


def success(ranking: Sequence[str], judged: Grades, k: int, level: int = 1) -> float:
    return float(bool(relevant(judged, level) & set(ranking[:k])))


def reciprocal_rank(ranking: Sequence[str], judged: Grades, k: int | None = None, level: int = 1) -> float:
    answers = relevant(judged, level)
    return next((1 / i for i, doc_id in enumerate(ranking[:k], start=1) if doc_id in answers), 0.0)


def average_precision(ranking: Sequence[str], judged: Grades, k: int | None = None) -> float:
    answers = relevant(judged)
    total, found = 0.0, 0
    for i, doc_id in enumerate(ranking[:k], start=1):
        if doc_id in answers:
            found += 1
            total += found / i
    return total / len(answers) if answers else 0.0


MEASURES: dict[str, Callable[[Sequence[str], Grades], float]] = {
    "nDCG@3": lambda r, j: ndcg(r, j, 3),
    "nDCG": ndcg,
    "R@2": lambda r, j: recall(r, j, 2),
    "R(rel=2)@3": lambda r, j: recall(r, j, 3, level=2),
    "P@4": lambda r, j: precision(r, j, 4),
    "Success@1": lambda r, j: success(r, j, 1),
    "Success@3": lambda r, j: success(r, j, 3),
    "RR@3": lambda r, j: reciprocal_rank(r, j, 3),
    "RR": reciprocal_rank,
    "RR(rel=2)@4": lambda r, j: reciprocal_rank(r, j, 4, level=2),
    "AP": average_precision,
    "AP@3": lambda r, j: average_precision(r, j, 3),
}
"""Names with their definitions; cutoffs are small, so that small rankings reach beyond them."""


def bucket_orders(buckets: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Every ranking that keeps the order of the buckets, all equally likely."""
    for orders in product(*(list(permutations(bucket)) for bucket in buckets)):
        yield [doc_id for order in orders for doc_id in order]


def sign_flip_p(differences: Sequence[float]) -> float:
    """The share of all assignments of signs whose sum is as far from 0 as the observed one."""
    observed = abs(sum(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences))) for signs in product((1, -1), repeat=len(differences))]
    return sum(value >= observed - 1e-9 for value in sums) / len(sums)


def holm_rejects(p_values: Sequence[float], level: float) -> list[bool]:
    """Holm's procedure as he states it: go up from the smallest p and stop at the first that is too large."""
    rejected = [False] * len(p_values)
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > level / (len(p_values) - place):
            break
        rejected[index] = True
    return rejected


def slips(word: str, neighbours: dict[str, str]) -> set[str]:
    """Every word that one slip of the fingers can make of this one."""
    found = {word[:i] + word[i + 1 :] for i in range(len(word))}
    found |= {word[:i] + word[i] + word[i:] for i in range(len(word))}
    found |= {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)}
    for i, letter in enumerate(word):
        for near in neighbours.get(letter.lower(), ""):
            found.add(word[:i] + (near.upper() if letter.isupper() else near) + word[i + 1 :])
    return found - {word}
