"""Recommenders by plain loops."""

from __future__ import annotations

import math


def co_occurrence(sequences, count, a, b, c):
    """Nearness of every item to every other: sum over users of both, by their size and the items' users."""
    users = [set(items) for items in sequences]
    had = [sum(item in items for items in users) for item in range(count)]
    near = [[0.0] * count for _ in range(count)]
    for items in users:
        for i in items:
            for j in items:
                if i != j:
                    near[i][j] += len(items) ** -a
    return [[near[i][j] / max(had[i], 1) ** b / max(had[j], 1) ** c for j in range(count)] for i in range(count)]


def knn_scores(near, history, decay):
    """The sum over the history of nearness, each item's weight `decay` times the next one's."""
    scores = [0.0] * len(near)
    for back, item in enumerate(reversed(history)):
        for other in range(len(near)):
            scores[other] += decay**back * near[item][other]
    return scores


def rules(sequences, count, gap, back, a, window):
    """How often an item comes after another, by the distance in each user's sequence."""
    found = [[0.0] * count for _ in range(count)]
    for items in sequences:
        for x, first in enumerate(items):
            for y in range(x + 1, min(len(items), x + window + 1)):
                second = items[y]
                if first != second:
                    weight = gap ** (y - x - 1) * len(items) ** -a
                    found[first][second] += weight
                    found[second][first] += back * weight
    return found


def walk(steps, history, decay, hops, continuation):
    """Weighted visits of a walk that starts at the decayed items of a history."""
    count = len(steps)
    at, visits = [0.0] * count, [0.0] * count
    for age, item in enumerate(reversed(history)):
        at[item] += decay**age
    for hop in range(hops):
        at = [sum(at[i] * steps[i][j] for i in range(count)) for j in range(count)]
        visits = [visit + continuation**hop * here for visit, here in zip(visits, at, strict=True)]
    return visits


def chosen_paths(weights, paths, order, penalty):
    """One item after the other takes the path of the largest gain; a path's cost is the cube of who is there."""
    there, found = {}, {}
    for item in order:
        total = sum(weights[item])
        best, best_gain = None, -math.inf
        for weight, path in zip(weights[item], paths[item], strict=True):
            share = max(weight / max(total, 1e-30), 1e-9)
            gain = math.log(share) - penalty * there.get(tuple(path), 0) ** 3
            if gain > best_gain:
                best, best_gain = tuple(path), gain
        found[item] = best
        there[best] = there.get(best, 0) + 1
    return [list(found[item]) for item in range(len(paths))]


def best_of_each(rows, count):
    """How many examples of each item may have a say."""
    return {row: min(count, list(rows).count(row)) for row in rows}
