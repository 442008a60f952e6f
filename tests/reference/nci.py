"""NCI's equations as plain loops over Python numbers."""

from __future__ import annotations

import math


def adapted_logits(hidden, weight, bias, scale, left, right) -> list[float]:
    """One state: A is made in full, then W_ada = A W (W is D x K), then h W_ada + b."""
    dim, outputs, rank = len(hidden), len(weight), len(right)
    a = [
        [(1 + scale[i] if i == j else 0) + sum(left[i][r] * right[r][j] for r in range(rank)) for j in range(dim)]
        for i in range(dim)
    ]
    adapted = [[sum(a[i][j] * weight[k][j] for j in range(dim)) for k in range(outputs)] for i in range(dim)]
    return [sum(hidden[i] * adapted[i][k] for i in range(dim)) + bias[k] for k in range(outputs)]


def contrastive_consistency(first, second, temperature) -> float:
    rows = [*first, *second]
    size, losses = len(first), []
    for i, row in enumerate(rows):
        other = i + size if i < size else i - size
        total = sum(math.exp(cosine(row, rows[k]) / temperature) for k in range(len(rows)) if k != i)
        losses.append(-math.log(math.exp(cosine(row, rows[other]) / temperature) / total))
    return sum(losses) / len(losses)


def divergence_consistency(first, second) -> float:
    total = 0.0
    for a, b in zip(first, second, strict=True):
        p, q = softmax(a), softmax(b)
        total += 0.5 * sum(x * math.log(x / y) + y * math.log(y / x) for x, y in zip(p, q, strict=True))
    return total / len(first)


def cosine(a, b) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def softmax(values) -> list[float]:
    top = sum(math.exp(value) for value in values)
    return [math.exp(value) / top for value in values]
