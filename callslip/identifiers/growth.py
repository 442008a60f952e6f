"""Codes that grow level by level: documents by prefix, how a level is used, and places inside a bucket."""

from __future__ import annotations

from typing import Any

import numpy as np

from callslip.identifiers.quality import attainable_diversity, diversity, perplexity, usage
from callslip.identifiers.table import Identifiers


def prefix_groups(codes: np.ndarray) -> np.ndarray:
    """The number of each document's prefix, [N]; 0 for all where codes [N, 0] are still empty."""
    if not codes.shape[1]:
        return np.zeros(len(codes), np.int64)
    return np.unique(codes, axis=0, return_inverse=True)[1].reshape(-1)


def group_means(states: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The mean of each group's states, [groups, D]; `groups` [N] numbers them from 0."""
    sums = np.zeros((int(groups.max()) + 1, states.shape[1]))
    np.add.at(sums, groups, states)
    return sums / np.bincount(groups)[:, None]


def level_figures(groups: np.ndarray, tokens: np.ndarray, k: int) -> dict[str, Any]:
    """How a level's tokens are used: unique codes so far, diversity and perplexity, and diversity inside the prefixes.

    The last is the mean over prefixes of two documents or more, weighted by documents: 0 where all of a prefix take the
    same token, 1 where they are spread as evenly as can be. A level may use all its tokens and still tell nothing
    apart.
    """
    pairs = np.unique(np.stack([groups, tokens]), axis=1)
    sizes = np.bincount(groups)
    shares, weights = [], []
    for group in np.flatnonzero(sizes > 1):
        n = int(sizes[group])
        shares.append((diversity(tokens[groups == group], k) - 1 / k) / (attainable_diversity(n, k) - 1 / k))
        weights.append(n)
    return {
        "unique_codes": pairs.shape[1],
        "diversity": round(diversity(tokens, k), 4),
        "perplexity": round(perplexity(usage(tokens, k)), 2),
        "within_prefix": round(float(np.average(shares, weights=weights)), 4) if shares else 1.0,
    }


def places(codes: np.ndarray, width: int, taken: Identifiers | None = None) -> np.ndarray:
    """The place of each document among those of its code, [N], after those that have it already. The last of `width`
    places holds all further ones."""
    found = np.zeros(len(codes), np.int64)
    used: dict[tuple[int, ...], int] = {}
    for row, code in enumerate(map(tuple, codes.tolist())):
        if code not in used:
            used[code] = 0 if taken is None else len(taken.codes[taken.prefix_slice(list(code))])
        found[row] = min(used[code], width - 1)
        used[code] += 1
    return found
