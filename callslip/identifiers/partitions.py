"""First ways to part the documents of each prefix, by which a level's training can begin: linear scores, or even
clusters."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from callslip.identifiers.balancing import balanced_assignment
from callslip.identifiers.kmeans import cluster_centres
from callslip.identifiers.levels import group_means, prefix_groups

SPREAD = 2.0
"""Of the first scores inside a prefix: their standard deviation over tokens, so that none is certain of itself."""

ROUNDS = 5
"""How often even clusters are shared out; between, their centres follow them."""
EXACT = 1024
"""Documents of a group that are shared out by the least sum of distances: the time it takes grows with their cube."""
SHARPNESS = 20.0
"""What squared distances of unit vectors are multiplied by, where nearness becomes the probability of a cluster."""


def even_clusters(vectors: np.ndarray, groups: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """Which of k clusters of its group each document is in, [N]: k-means of unit vectors in which no cluster has more
    than its share of the group."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)
    found = np.zeros(len(unit), np.int64)
    for group in range(int(groups.max(initial=-1)) + 1):
        own = np.flatnonzero(groups == group)
        centres = cluster_centres(unit[own], k, seed)
        # Documents that are alike have fewer centres than clusters: some stand for two, and share them out.
        centres = centres[np.arange(min(k, len(own))) % max(1, len(centres))]
        for _ in range(ROUNDS):
            distance = (centres**2).sum(axis=1) - 2 * unit[own] @ centres.T  # and 1, for all alike
            found[own] = _shared_out(distance, -(-len(own) // len(centres)))
            used = np.unique(found[own])
            centres[used] = group_means(unit[own], np.searchsorted(used, found[own]))
    return found


def _shared_out(distance: np.ndarray, capacity: int) -> np.ndarray:
    """A cluster for each document, [n], and none for more than `capacity`, by distances [n, k]: those of the least sum
    where there are few enough to find them, and otherwise the nearest first: who finds the nearest one full goes to the
    next."""
    if len(distance) <= EXACT:
        return linear_sum_assignment(np.repeat(distance, capacity, axis=1))[1] // capacity
    near = np.exp(SHARPNESS * (distance.min(axis=1, keepdims=True) - distance))
    return balanced_assignment(near / near.sum(axis=1, keepdims=True), capacity)


def even_tree(vectors: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """Paths in a tree of even clusters, [N, L]: all documents are parted into k, those of each cluster into k again,
    until every document has a path of its own."""
    codes = np.zeros((len(vectors), 0), np.int64)
    while codes.shape[1] == 0 or np.bincount(prefix_groups(codes)).max(initial=0) > 1:
        level = codes.shape[1]
        codes = np.column_stack([codes, even_clusters(vectors, prefix_groups(codes), k, seed + level)])
    return codes


def parting_scores(states: np.ndarray, groups: np.ndarray, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Weights [k, D] and offsets [k] of linear scores of states [N, D] that tell documents of one prefix apart.

    The clusters are those of the states freed from their prefix's mean. Directions in which the prefixes themselves lie
    apart are left out of the weights: otherwise a score would say again what the prefix has said.
    """
    means = group_means(states, groups)
    centre, inside = states.mean(axis=0), states - means[groups]
    away = means - centre
    _, sizes, directions = np.linalg.svd(away, full_matrices=False)
    known = directions[: min(int((sizes > 1e-3 * max(1e-12, sizes[0])).sum()), states.shape[1] // 2)]
    inside = inside - (inside @ known.T) @ known
    found = cluster_centres(inside.astype(np.float32), k, seed)
    rng = np.random.default_rng(seed)
    centres = np.concatenate([found, found[rng.integers(0, len(found), k - len(found))]]).astype(np.float64)
    offsets = -0.5 * (centres**2).sum(axis=1)
    spread = (inside @ centres.T + offsets).std(axis=1).mean()
    scale = SPREAD / max(spread, 1e-9) if spread > 1e-9 else 0.0
    weights = scale * centres
    return weights.astype(np.float32), (scale * offsets - weights @ centre).astype(np.float32)
