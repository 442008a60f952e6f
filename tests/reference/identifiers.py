"""Codes the slow way: dictionaries of tuples, and loops as plain as the definitions."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict

END = -1


def padded(code, length):
    return tuple(code) + (END,) * (length - len(code))


def sorted_table(doc_ids, codes):
    """(code, row, doc_id) of every document, in the order in which the table keeps them."""
    return sorted((tuple(code), row, doc_id) for row, (doc_id, code) in enumerate(zip(doc_ids, codes)))


def by_prefix(table, length):
    """level -> prefix of length level + 1 -> sorted positions."""
    levels = []
    for level in range(length):
        groups = defaultdict(list)
        for position, (code, _, _) in enumerate(table):
            groups[code[: level + 1]].append(position)
        levels.append(dict(groups))
    return levels


def gini(counts):
    total = sum(abs(a - b) for a in counts for b in counts)
    return total / (2 * len(counts) * sum(counts))


def perplexity(counts):
    whole = sum(counts)
    return math.exp(-sum(n / whole * math.log(n / whole) for n in counts if n))


def diversity(tokens, k):
    n = len(tokens)
    return 1 - sum(abs(sum(token == j for token in tokens) - n / k) for j in range(k)) / (2 * n)


def average_partition_entropy(codes, positives):
    entropies = []
    for rows in positives:
        histogram = Counter(tuple(codes[row]) for row in rows)
        entropies.append(-sum(n / len(rows) * math.log(n / len(rows)) for n in histogram.values()))
    return sum(entropies) / len(entropies)


def balanced_assignment(p, capacity=None):
    """Visit all pairs from the highest probability down."""
    n, k = len(p), len(p[0])
    capacity = math.ceil(n / k) if capacity is None else capacity
    pairs = sorted((-p[item][token], item, token) for item in range(n) for token in range(k))
    taken, sizes = {}, Counter()
    for _, item, token in pairs:
        if item not in taken and sizes[token] < capacity:
            taken[item] = token
            sizes[token] += 1
    return [taken[item] for item in range(n)]


def best_cost_within_sizes(cost, size_min, size_max):
    """The cheapest assignment of rows to columns, by trying every one."""
    n, k = len(cost), len(cost[0])
    best = math.inf
    for labels in itertools.product(range(k), repeat=n):
        sizes = [labels.count(column) for column in range(k)]
        if all(size_min <= size <= size_max for size in sizes):
            best = min(best, sum(cost[row][column] for row, column in enumerate(labels)))
    return best


def keyword_words(texts, length, cut, k1=100.0, b=0.75, first=156):
    """GLEN's keywords of each text, straight from the definition."""
    whole = [cut(text) for text in texts]
    heads = [pieces[:first] for pieces in whole]
    mean = sum(map(len, heads)) / len(heads)
    words = []
    for head in heads:
        weighted = []
        for place, piece in enumerate(head):
            if piece in head[:place] or not any(letter.isalpha() for letter in piece):
                continue
            containing = sum(piece in other for other in whole)
            idf = math.log(1 + (len(texts) - containing + 0.5) / (containing + 0.5))
            tf = head.count(piece)
            weight = idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(head) / mean))
            weighted.append((-weight, place, piece))
        chosen = [piece for _, _, piece in sorted(weighted)[:length]]
        words.append(chosen + chosen[-1:] * (length - len(chosen)))
    return words
