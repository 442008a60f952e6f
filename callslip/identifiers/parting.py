"""A first way to part the documents of each prefix: linear scores by which a level's training can begin."""

from __future__ import annotations

import numpy as np

from callslip.identifiers.growth import group_means
from callslip.identifiers.kmeans import cluster_centres

SPREAD = 2.0
"""Of the first scores inside a prefix: their standard deviation over tokens, so that none is certain of itself."""


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
