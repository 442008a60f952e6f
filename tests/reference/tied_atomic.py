"""Tied-Atomic's two objectives, one query and one document at a time."""

from __future__ import annotations

import math


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def contrastive(
    queries: list[list[float]],
    positives: list[list[float]],
    negatives: list[list[list[float]]],
    temperature: float,
    known: list[list[bool]] | None = None,
) -> float:
    """Mean over queries of −log of the share that the query's own document has of the softmax."""
    total = 0.0
    for i, query in enumerate(queries):
        documents = [*positives, *(negative for several in negatives for negative in several)]
        shares = []
        for j, document in enumerate(documents):
            if known is None or j == i or not known[i][j]:
                shares.append(math.exp(dot(query, document) / temperature))
        total -= math.log(math.exp(dot(query, positives[i]) / temperature) / sum(shares))
    return total / len(queries)


def margin_mse(
    queries: list[list[float]], positives: list[list[float]], negatives: list[list[float]], margins: list[float]
) -> float:
    """Mean over queries of the squared difference between the model's margin and the teacher's."""
    total = 0.0
    for query, positive, negative, margin in zip(queries, positives, negatives, margins, strict=True):
        total += (dot(query, positive) - dot(query, negative) - margin) ** 2
    return total / len(queries)
