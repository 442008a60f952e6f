"""GenRet's equations as plain loops over Python numbers."""

from __future__ import annotations

import math


def reconstruction(z, d, same_prefix) -> float:
    losses = []
    for i in range(len(z)):
        scores = {j: dot(z[i], d[j]) for j in range(len(d)) if same_prefix[i][j] or i == j}
        losses.append(-math.log(math.exp(scores[i]) / sum(map(math.exp, scores.values()))))
    return sum(losses) / len(losses)


def commitment(logits, code) -> float:
    """logits[level][row][token]; code[row][level]."""
    total = 0.0
    for row, tokens in enumerate(code):
        for level, token in enumerate(tokens):
            scores = logits[level][row]
            total -= math.log(math.exp(scores[token]) / sum(map(math.exp, scores)))
    return total / len(code)


def retrieval(q, d, logits, code) -> float:
    ranking = 0.0
    for i in range(len(q)):
        scores = [dot(q[i], d[j]) for j in range(len(d))]
        ranking -= math.log(math.exp(scores[i]) / sum(map(math.exp, scores)))
    return ranking / len(q) + commitment(logits, code)


def within_prefix(groups, tokens, k) -> float:
    """Diversity of the tokens of each prefix of two documents or more, from 0 (all alike) to 1 (the best there could
    be)."""
    total, weight = 0.0, 0
    for group in set(groups):
        own = [t for g, t in zip(groups, tokens, strict=True) if g == group]
        n = len(own)
        if n < 2:
            continue
        uneven = sum(abs(own.count(token) - n / k) for token in range(k))
        even = [n // k + (token < n % k) for token in range(k)]
        best = 1 - sum(abs(count - n / k) for count in even) / (2 * n)
        total += n * (1 - uneven / (2 * n) - 1 / k) / (best - 1 / k)
        weight += n
    return total / weight if weight else 1.0


def dot(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def reassigned(scores, epsilon, iterations):
    """Diag(u) exp(H / epsilon) Diag(v) by scaling rows and columns in turns: rows sum to 1, columns to rows / columns.
    Also returns u and v."""
    rows, columns = len(scores), len(scores[0])
    kernel = [[math.exp(score / epsilon) for score in row] for row in scores]
    u, v = [1.0] * rows, [1.0] * columns
    for _ in range(iterations):
        for j in range(columns):
            v[j] = rows / columns / sum(u[i] * kernel[i][j] for i in range(rows))
        for i in range(rows):
            u[i] = 1 / sum(kernel[i][j] * v[j] for j in range(columns))
    return [[u[i] * kernel[i][j] * v[j] for j in range(columns)] for i in range(rows)], u, v
