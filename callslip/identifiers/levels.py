"""Codes that grow level by level: documents by prefix, how a level is used, and places inside a bucket."""

from __future__ import annotations

from typing import Any

import numpy as np

from callslip.identifiers.quality import attainable_diversity, diversity, gini, perplexity, usage
from callslip.identifiers.table import Identifiers


def prefix_groups(codes: np.ndarray) -> np.ndarray:
    """The number of each document's prefix, [N]; 0 for all where codes [N, 0] are still empty."""
    if not codes.shape[1]:
        return np.zeros(len(codes), np.int64)
    return np.unique(codes, axis=0, return_inverse=True)[1].reshape(-1)


def group_means(states: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The mean of each group's states, [groups, D]; `groups` [N] numbers them from 0."""
    order, sizes = np.argsort(groups, kind="stable"), np.bincount(groups)
    sums = np.add.reduceat(states[order], np.cumsum(sizes) - sizes, axis=0, dtype=np.float64)
    return sums / sizes[:, None]


def level_figures(groups: np.ndarray, tokens: np.ndarray, k: int) -> dict[str, Any]:
    """How a level's tokens are used: unique codes so far, diversity and perplexity, and diversity inside the prefixes.

    The last is the mean over prefixes of two documents or more, weighted by documents: 0 where all of a prefix take the
    same token, 1 where they are spread as evenly as can be. A level may use all its tokens and still tell nothing
    apart.
    """
    sizes = np.bincount(groups)
    # Counted over the pairs that occur, and not prefix by prefix: the last level has as many prefixes as documents.
    pairs, counts = np.unique(groups * k + tokens, return_counts=True)
    owner = pairs // k
    even = sizes / k
    uneven = np.bincount(owner, np.abs(counts - even[owner])) + (k - np.bincount(owner)) * even
    own = 1 - uneven / (2 * sizes)
    several = np.flatnonzero(sizes > 1)
    best = {int(n): attainable_diversity(int(n), k) for n in np.unique(sizes[several])}
    reach = np.array([best[int(n)] for n in sizes[several]])
    shares = (own[several] - 1 / k) / (reach - 1 / k)
    return {
        "unique_codes": len(pairs),
        "diversity": round(diversity(tokens, k), 4),
        "perplexity": round(perplexity(usage(tokens, k)), 2),
        "within_prefix": round(float(np.average(shares, weights=sizes[several])), 4) if len(several) else 1.0,
    }


def places(codes: np.ndarray, width: int, taken: Identifiers | None = None) -> np.ndarray:
    """The place of each document among those of its code, [N], after those that have it already. The last of `width`
    places holds all further ones."""
    found = np.zeros(len(codes), np.int64)
    used: dict[tuple[int, ...], int] = {}
    for row, code in enumerate(map(tuple, codes.tolist())):
        if code not in used:
            used[code] = 0 if taken is None else next_rank(taken, np.array(code))
        found[row] = min(used[code], width - 1)
        used[code] += 1
    return found


def next_rank(taken: Identifiers | np.ndarray, prefix: np.ndarray) -> int:
    """The last token that the next document of a prefix gets: one more than the highest there, so that the gaps of
    deleted documents stay gaps."""
    if isinstance(taken, Identifiers):
        below = taken.codes[taken.prefix_slice(prefix.tolist())]
    else:
        below = np.asarray(taken)[(np.asarray(taken)[:, : len(prefix)] == prefix).all(axis=1)]
    return int(below[:, -1].max()) + 1 if len(below) else 0


def use_of_codes(codes: np.ndarray) -> dict[str, Any]:
    """What is watched while codes move: how many there are, and how unevenly documents are shared out over them."""
    _, sizes = np.unique(codes, axis=0, return_counts=True)
    return {"unique_codes": len(sizes), "gini": round(gini(sizes), 4), "largest_bucket": int(sizes.max())}


def renamed(codes: np.ndarray, how: str, width: int, seed: int = 0) -> np.ndarray:
    """Codes [N, L] with the last level's tokens renamed at random: in the same way everywhere (`uniform`), or under
    each prefix differently (URI's Table 3). The documents of a bucket stay together."""
    rng, changed = np.random.default_rng(seed), codes.copy()
    groups = prefix_groups(codes[:, :-1])
    names = np.stack([rng.permutation(width) for _ in range(1 if how == "uniform" else int(groups.max()) + 1)])
    changed[:, -1] = names[0 if how == "uniform" else groups, codes[:, -1]]
    return changed
