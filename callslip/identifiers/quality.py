"""Quality metrics of a set of codes, available before any training.

Collapsed codes are the most common reason why generative retrieval results cannot be reproduced, and the cheapest
to detect: all metrics are counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from callslip.errors import BadSetting
from callslip.identifiers.table import END, Identifiers, check_codes

Severity = Literal["ill", "warning", "note"]
Verdict = Literal["healthy", "usable", "ill"]


def usage(tokens: npt.ArrayLike, k: int) -> np.ndarray:
    """Number of occurrences of each of k tokens, without END."""
    array = np.asarray(tokens).ravel()
    array = array[array != END]
    if not array.size:
        return np.zeros(k, np.int64)
    if array.dtype.kind not in "iu":
        raise BadSetting(f"tokens must be integers, not {array.dtype}")
    if array.min() < 0 or array.max() >= k:
        raise BadSetting(f"tokens between {array.min()} and {array.max()} in a level of width {k}")
    return np.bincount(array, minlength=k)


def diversity(tokens: npt.ArrayLike, k: int) -> float:
    """GenRet's measure of even use: 1 - 1/(2n) sum_j |n_j - n/k|. 1 is uniform, 1/k is one token for all."""
    counts = usage(tokens, k)
    if not counts.sum():
        raise BadSetting("no tokens to measure")
    return _diversity(counts)


def _diversity(counts: np.ndarray) -> float:
    total = counts.sum()
    return float(1 - np.abs(counts - total / len(counts)).sum() / (2 * total))


def attainable_diversity(n: int, k: int) -> float:
    """The highest diversity that n documents can reach with k tokens: n / k if there are fewer documents than
    tokens."""
    counts = np.full(k, n // k)
    counts[: n % k] += 1
    return _diversity(counts)


def perplexity(counts: np.ndarray) -> float:
    """exp of the entropy of token use: the effective number of tokens."""
    share = counts[counts > 0] / counts.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def gini(counts: np.ndarray) -> float:
    """Gini coefficient of token use, from 0 (even) to nearly 1 (one token has everything)."""
    ordered = np.sort(np.asarray(counts, dtype=np.float64))
    n, total = len(ordered), ordered.sum()
    return float(((2 * np.arange(1, n + 1) - n - 1) * ordered).sum() / (n * total))


def code_gini(sizes: np.ndarray, capacity: int) -> float:
    """Gini coefficient of bucket sizes over all possible codes: `capacity`, but at most one per document."""
    possible = max(len(sizes), min(capacity, int(np.sum(sizes))))
    return gini(np.pad(sizes, (0, possible - len(sizes))))


def average_partition_entropy(codes: npt.ArrayLike, positives: Iterable[npt.ArrayLike]) -> float:
    """URI's APE: how widely the codes scatter the items of a query. Lower is better.

    `codes` is [N, L] in row order; `positives` holds one array of row numbers per query. APE is the mean over queries
    of the entropy (natural log) of their items' histogram over full codes. Queries without items are ignored.
    """
    array = check_codes(codes)
    _, bucket = np.unique(array, axis=0, return_inverse=True)
    bucket = bucket.reshape(-1)
    entropies = []
    for rows in positives:
        index = np.asarray(rows)
        if not index.size:
            continue
        if index.min() < 0 or index.max() >= len(array):
            raise BadSetting(f"row numbers between {index.min()} and {index.max()} for {len(array)} codes")
        _, counts = np.unique(bucket[index], return_counts=True)
        share = counts / counts.sum()
        entropies.append(-(share * np.log(share)).sum())
    if not entropies:
        raise BadSetting("no query has a positive item", "Average partition entropy needs queries with items.")
    return float(np.mean(entropies))


@dataclass(frozen=True)
class LevelQuality:
    """Metrics of one level."""

    level: int
    width: int
    """K: number of tokens of the level."""
    documents: int
    """Number of documents whose code reaches this level."""
    undecided: float
    """Share of documents that share their prefix with another document before this level, and that the level has to
    separate."""
    used: int
    dead: int
    perplexity: float
    gini: float
    diversity: float
    attainable: float
    """The highest diversity that is possible with this number of documents and tokens."""
    usage: np.ndarray = field(repr=False, compare=False)


EXACT = 2**53
"""The largest whole number that every reader of JSON keeps; 96 tokens of a byte give one of 232 digits."""


@dataclass(frozen=True)
class Quality:
    """Metrics of a table of codes."""

    documents: int
    length: int
    capacity: int
    """Number of possible codes: the product of the widths."""
    unique: int
    uniqueness: float
    """Number of distinct codes per document: 1 if no two documents share a code."""
    collision_rate: float
    """Share of documents that share their code with another document."""
    bucket_max: int
    bucket_mean: float
    bucket_histogram: dict[int, int]
    """Bucket size -> number of buckets of that size."""
    gini: float
    """Gini coefficient of documents over codes, from 0 (each has its own code, or all codes are equally full) to nearly
    1. Unused codes count, up to one code per document, so that using fewer codes does not look more even."""
    levels: list[LevelQuality]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the per-token counts are left out, and a long capacity is rounded."""
        figures = asdict(self)
        if self.capacity > EXACT:
            figures["capacity"] = float(min(self.capacity, 10**300))
        for level in figures["levels"]:
            del level["usage"]
        return figures


def measure(identifiers: Identifiers | npt.ArrayLike, widths: int | Sequence[int] | None = None) -> Quality:
    """Measure a table, or an array of codes. `widths`: K of each level; by default the highest token plus one."""
    if not isinstance(identifiers, Identifiers):
        codes = check_codes(identifiers)
        identifiers = Identifiers(map(str, range(len(codes))), codes)
    count, length = identifiers.codes.shape
    if not count:
        raise BadSetting("the table of codes is empty", "Fit on a corpus with documents.")
    wide = _widths(identifiers, widths)
    sizes = np.diff(identifiers.buckets())
    values, how_many = np.unique(sizes, return_counts=True)
    return Quality(
        documents=count,
        length=length,
        capacity=math.prod(wide),
        unique=len(sizes),
        uniqueness=len(sizes) / count,
        collision_rate=float(sizes[sizes > 1].sum() / count),
        bucket_max=int(sizes.max()),
        bucket_mean=float(sizes.mean()),
        bucket_histogram=dict(zip(values.tolist(), how_many.tolist())),
        gini=code_gini(sizes, math.prod(wide)),
        levels=[_measure_level(identifiers, level, wide[level]) for level in range(length)],
    )


def _widths(identifiers: Identifiers, widths: int | Sequence[int] | None) -> list[int]:
    found = [max(1, width) for width in identifiers.widths]
    if widths is None:
        return found
    given = [widths] * identifiers.length if isinstance(widths, int) else list(widths)
    if len(given) != identifiers.length or any(have > may for have, may in zip(found, given)):
        raise BadSetting(f"widths {given} for codes whose levels have widths {found}")
    return given


def _measure_level(identifiers: Identifiers, level: int, width: int) -> LevelQuality:
    counts = usage(identifiers.codes[:, level], width)
    reach = int(counts.sum())
    if level:
        sizes = np.diff(identifiers.trie().documents(level - 1))
        undecided = float(sizes[sizes > 1].sum() / len(identifiers))
    else:
        undecided = float(len(identifiers) > 1)
    return LevelQuality(
        level=level,
        width=width,
        documents=reach,
        undecided=undecided,
        used=int((counts > 0).sum()),
        dead=int((counts == 0).sum()),
        perplexity=perplexity(counts) if reach else 0.0,
        gini=gini(counts) if reach else 0.0,
        diversity=_diversity(counts) if reach else 0.0,
        attainable=attainable_diversity(reach, width) if reach else 0.0,
        usage=counts,
    )
