"""Codes that are built level by level: how many levels, groups of documents by prefix, use of a level, and positions in
a bucket."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from callslip.errors import BadSetting
from callslip.identifiers.quality import attainable_diversity, diversity, gini, perplexity, usage
from callslip.identifiers.table import Identifiers


def levels_for(documents: int, width: int, leaf: int) -> int:
    """Number of levels of `width` tokens that leave about `leaf` documents per code."""
    if width < 2:
        raise BadSetting(f"setting 'width': {width} tokens cannot separate documents", "Use at least 2.")
    return max(1, round(math.log(max(2.0, documents / max(1, leaf))) / math.log(width)))


def prefix_groups(codes: np.ndarray) -> np.ndarray:
    """Group number of each document's prefix, [N]; all 0 if the codes [N, 0] are still empty."""
    if not codes.shape[1]:
        return np.zeros(len(codes), np.int64)
    return np.unique(codes, axis=0, return_inverse=True)[1].reshape(-1)


def group_means(states: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The mean of each group's states, [groups, D]; `groups` [N] holds group numbers from 0."""
    order, sizes = np.argsort(groups, kind="stable"), np.bincount(groups)
    sums = np.add.reduceat(states[order], np.cumsum(sizes) - sizes, axis=0, dtype=np.float64)
    return sums / sizes[:, None]


def level_figures(groups: np.ndarray, tokens: np.ndarray, k: int) -> dict[str, Any]:
    """Use of a level's tokens: unique codes so far, diversity, perplexity, and diversity inside the prefixes.

    Diversity inside the prefixes is the mean over prefixes of two or more documents, weighted by documents: 0 if all
    documents of a prefix have the same token, 1 if they are spread as evenly as possible. A level may use all its
    tokens and still separate no documents.
    """
    sizes = np.bincount(groups)
    # Count over the pairs that occur, not prefix by prefix: the last level may have as many prefixes as documents.
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
    """Position of each document in its bucket, [N], after the documents of `taken` that have the same code. The last
    of `width` positions holds all further documents."""
    found = np.zeros(len(codes), np.int64)
    used: dict[tuple[int, ...], int] = {}
    for row, code in enumerate(map(tuple, codes.tolist())):
        if code not in used:
            used[code] = 0 if taken is None else next_rank(taken, np.array(code))
        found[row] = min(used[code], width - 1)
        used[code] += 1
    return found


def next_rank(taken: Identifiers | np.ndarray, prefix: np.ndarray) -> int:
    """The last token of the next document of a prefix: one more than the highest in use, so that the tokens of
    deleted documents are not reused."""
    if isinstance(taken, Identifiers):
        below = taken.codes[taken.prefix_slice(prefix.tolist())]
    else:
        below = np.asarray(taken)[(np.asarray(taken)[:, : len(prefix)] == prefix).all(axis=1)]
    return int(below[:, -1].max()) + 1 if len(below) else 0


def use_of_codes(codes: np.ndarray) -> dict[str, Any]:
    """Metrics to monitor while codes change: number of codes, and how unevenly documents are distributed over them."""
    _, sizes = np.unique(codes, axis=0, return_counts=True)
    return {"unique_codes": len(sizes), "gini": round(gini(sizes), 4), "largest_bucket": int(sizes.max())}


def texts_per_code(codes: np.ndarray, texts: np.ndarray) -> dict[str, Any]:
    """Documents and training texts per code, means and maxima, given the number of texts of each document [N]."""
    _, bucket = np.unique(codes, axis=0, return_inverse=True)
    figures: dict[str, Any] = {}
    for name, weights in (("documents", np.ones(len(codes))), ("queries", texts)):
        counts = np.bincount(bucket.reshape(-1), weights=weights)
        figures |= {f"{name}_per_code": round(float(counts.mean()), 3), f"most_{name}_per_code": int(counts.max())}
    return figures


def renamed(codes: np.ndarray, how: str, width: int, seed: int = 0) -> np.ndarray:
    """Codes [N, L] with the last level's tokens permuted at random: by one permutation (`uniform`), or by one for each
    prefix (URI's Table 3). Buckets are unchanged."""
    rng, changed = np.random.default_rng(seed), codes.copy()
    groups = prefix_groups(codes[:, :-1])
    names = np.stack([rng.permutation(width) for _ in range(1 if how == "uniform" else int(groups.max()) + 1)])
    changed[:, -1] = names[0 if how == "uniform" else groups, codes[:, -1]]
    return changed
