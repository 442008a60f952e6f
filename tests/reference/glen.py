"""GLEN's equations as plain loops over Python numbers, and its negatives by looking at every document."""

from __future__ import annotations

import math


def dot(a, b) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(scores) -> list[float]:
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    return [power / sum(powers) for power in powers]


def cosine(a, b) -> float:
    return dot(a, b) / (math.sqrt(dot(a, a)) * math.sqrt(dot(b, b)))


def keyword_loss(logits, codes) -> float:
    """logits[b][l][v], codes[b][l]."""
    total = 0.0
    for levels, code in zip(logits, codes, strict=True):
        for scores, token in zip(levels, code, strict=True):
            total -= math.log(softmax(scores)[token])
    return total / len(codes)


def identifier_embedding(h, embeddings, temperature, support=None):
    """h[b][l] is a state; support[b][l] lists the words that count, all if there is none."""
    found = []
    for b, levels in enumerate(h):
        found.append([])
        for level, state in enumerate(levels):
            words = range(len(embeddings)) if support is None else support[b][level]
            share = softmax([dot(state, embeddings[w]) / temperature for w in words])
            mixed = [sum(p * embeddings[w][i] for p, w in zip(share, words, strict=True)) for i in range(len(state))]
            found[-1].append(mixed)
    return found


def relevance(h_query, r_doc):
    return [[sum(dot(a, b) for a, b in zip(q, d, strict=True)) for d in r_doc] for q in h_query]


def pairwise_ranking(scores, answers) -> float:
    """answers[i] lists the documents that answer query i: each against those that do not."""
    losses = []
    for row, right in zip(scores, answers, strict=True):
        wrong = sum(math.exp(score) for j, score in enumerate(row) if j not in right)
        each = [-math.log(math.exp(row[j]) / (math.exp(row[j]) + wrong)) for j in right]
        losses.append(sum(each) / len(each))
    return sum(losses) / len(losses)


def pointwise_retrieval(logits, codes, w_query, w_doc, weight) -> float:
    distances = [1 - cosine(a, b) for a, b in zip(w_query, w_doc, strict=True)]
    return keyword_loss(logits, codes) + weight * sum(distances) / len(distances)


def collision_order(w_query, w_docs) -> list[int]:
    return sorted(range(len(w_docs)), key=lambda row: (-round(cosine(w_query, w_docs[row]), 9), row))


def shared(a, b) -> int:
    """How many tokens two codes have in common before they part."""
    return next((level for level, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def prefix_lengths(codes, row, count) -> list[int]:
    """What the `count` nearest others of a document share with it, best first."""
    return sorted((shared(codes[row], code) for other, code in enumerate(codes) if other != row), reverse=True)[:count]


def scores_by_table(table, codes) -> list[float]:
    """The sum over levels of table[level][token], for each code."""
    return [sum(table[level][token] for level, token in enumerate(code)) for code in codes]
