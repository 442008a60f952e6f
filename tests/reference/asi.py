"""ASI's equations as plain loops over Python numbers. Probabilities are p[row][level][token]."""

from __future__ import annotations

import math


def distance(p, r) -> float:
    return sum((a - b) ** 2 for x, y in zip(p, r, strict=True) for a, b in zip(x, y, strict=True))


def discrete_contrastive(q, d, margin, known=None) -> float:
    losses = [
        max(0.0, distance(q[i], d[i]) - distance(q[i], d[j]) + margin)
        for i in range(len(q))
        for j in range(len(d))
        if i != j and not (known and known[i][j])
    ]
    return sum(losses) / len(losses) if losses else 0.0


def generation(logits, code) -> float:
    """logits[level][row][token]; code[row][level]."""
    total = 0.0
    for row, tokens in enumerate(code):
        for level, token in enumerate(tokens):
            scores = logits[level][row]
            total -= scores[token] - math.log(sum(map(math.exp, scores)))
    return total / len(code)


def density(p, printed) -> float:
    codes = [[max(range(len(level)), key=lambda v: level[v]) for level in row] for row in p]
    length, width, total = len(p[0]), len(p[0][0]), 0.0
    for i in range(len(p)):
        others = [j for j in range(len(p)) if j != i]
        apart = [2 * sum(a != b for a, b in zip(codes[i], codes[j], strict=True)) / (2 * length) for j in others]
        mean = sum(apart) / len(others)
        reverse = 0.0
        for j in others:
            for level in range(length):
                rest = [v for v in range(width) if v != codes[j][level]]
                reverse -= sum(math.log(max(p[i][level][v], 1e-9)) for v in rest) / (width - 1)
        total += (mean if printed else 1 - mean) * reverse / len(others)
    return total / len(p)


def bottleneck(q, d, gamma, temperature, known=None) -> float:
    size, total = len(q), 0.0
    for i in range(size):
        scores = [sum(a * b for a, b in zip(q[i], d[j], strict=True)) / temperature for j in range(size)]
        against = [score for j, score in enumerate(scores) if j == i or not (known and known[i][j])]
        total -= scores[i] - math.log(sum(map(math.exp, against)))

    def crowding(e):
        pairs = [(i, j) for i in range(size) for j in range(size) if i != j]
        apart = (sum((a - b) ** 2 for a, b in zip(e[i], e[j], strict=True)) for i, j in pairs)
        return sum(1 / max(x, 1e-6) for x in apart) / len(pairs)

    return total / size + gamma * (crowding(q) + crowding(d))
