"""URI's equations as plain loops over Python numbers."""

from __future__ import annotations

import math

SMALLEST = 1e-9


def cross_entropy(target, p) -> float:
    """Rows of two tables of distributions; the mean over rows."""
    total = 0.0
    for t, q in zip(target, p, strict=True):
        for a, b in zip(t, q, strict=True):
            total -= a * math.log(max(b, SMALLEST))
    return total / len(p)


def commitment(p) -> float:
    return cross_entropy(p, p)


def balance(p, adaptive) -> float:
    k = len(p[0])
    total = 0.0
    for token in range(k):
        log_use = math.log(max(sum(row[token] for row in p) / len(p), SMALLEST))
        weight = abs(math.log(1 / k) - log_use) + 1 if adaptive else 1.0
        total -= weight * log_use / k
    return total


def memory(logits, code) -> float:
    """logits[level][row][token]; code[row][level]."""
    total = 0.0
    for row, tokens in enumerate(code):
        for level, token in enumerate(tokens):
            scores = logits[level][row]
            total -= math.log(math.exp(scores[token]) / sum(map(math.exp, scores)))
    return total / len(code)


def ranking(query, compared, same) -> float:
    """compared[row]: the right item, then negatives; same[row][m]: negative m is the right item."""
    total = 0.0
    for q, items, known in zip(query, compared, same, strict=True):
        scores = [sum(a * b for a, b in zip(q, item, strict=True)) for item in items]
        others = [score for score, is_it in zip(scores[1:], known, strict=True) if not is_it]
        total -= math.log(math.exp(scores[0]) / sum(map(math.exp, [scores[0], *others])))
    return total / len(query)


def siblings(codes, row) -> set[int]:
    """Rows that share all tokens but the last with this one, and not the last."""
    return {other for other, code in enumerate(codes) if code[:-1] == codes[row][:-1] and code[-1] != codes[row][-1]}
