"""Initial partitions of the documents of each prefix, from which the training of a level starts: linear scores, or
balanced clusters."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from callslip.identifiers.balancing import balanced_assignment
from callslip.identifiers.kmeans import cluster_centres
from callslip.identifiers.levels import group_means, prefix_groups

SPREAD = 2.0
"""Standard deviation over tokens of the initial scores inside a prefix, small enough that the softmax does not
saturate."""

ROUNDS = 5
"""Number of assignment steps of balanced clustering; centres are updated between them."""
EXACT = 1024
"""Largest group that is assigned optimally (least sum of distances), which takes cubic time."""
SHARPNESS = 20.0
"""Factor on squared distances of unit vectors before the softmax that turns them into cluster probabilities."""


def even_clusters(vectors: np.ndarray, groups: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """Cluster of each document within its group, [N]: balanced k-means of unit vectors with k clusters of equal
    capacity."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)
    found = np.zeros(len(unit), np.int64)
    for group in range(int(groups.max(initial=-1)) + 1):
        own = np.flatnonzero(groups == group)
        centres = cluster_centres(unit[own], k, seed)
        # With duplicate documents there are fewer centres than clusters: repeat some centres to share their documents.
        centres = centres[np.arange(min(k, len(own))) % max(1, len(centres))]
        for _ in range(ROUNDS):
            distance = (centres**2).sum(axis=1) - 2 * unit[own] @ centres.T  # up to a constant of 1
            found[own] = _shared_out(distance, -(-len(own) // len(centres)))
            used = np.unique(found[own])
            centres[used] = group_means(unit[own], np.searchsorted(used, found[own]))
    return found


def _shared_out(distance: np.ndarray, capacity: int) -> np.ndarray:
    """Assign each document to a cluster, [n], with at most `capacity` documents per cluster, by distances [n, k]:
    optimally for small groups, otherwise greedily, nearest first; if the nearest cluster is full, the next one is
    used."""
    if len(distance) <= EXACT:
        return linear_sum_assignment(np.repeat(distance, capacity, axis=1))[1] // capacity
    near = np.exp(SHARPNESS * (distance.min(axis=1, keepdims=True) - distance))
    return balanced_assignment(near / near.sum(axis=1, keepdims=True), capacity)


def even_tree(vectors: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """Paths in a tree of balanced clusters, [N, L]: documents are split into k clusters, each cluster into k again,
    until every document has its own path."""
    codes = np.zeros((len(vectors), 0), np.int64)
    while codes.shape[1] == 0 or np.bincount(prefix_groups(codes)).max(initial=0) > 1:
        level = codes.shape[1]
        codes = np.column_stack([codes, even_clusters(vectors, prefix_groups(codes), k, seed + level)])
    return codes


def parting_scores(states: np.ndarray, groups: np.ndarray, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Weights [k, D] and offsets [k] of linear scores of states [N, D] that separate the documents of a prefix.

    The clusters are those of the states minus the mean of their prefix. Directions that separate the prefixes
    themselves are projected out of the weights; otherwise a score would repeat the information of the prefix.
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
