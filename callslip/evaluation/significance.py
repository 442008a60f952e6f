"""Bootstrap confidence intervals and paired significance tests, with fixed seeds.

Queries are the sample. An interval estimates the mean over other queries of the same kind; a paired test checks
whether the per-query differences are consistent with random signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from callslip.errors import BadSetting

CONFIDENCE = 0.95
RESAMPLES = 2000
PERMUTATIONS = 10_000
BLOCK = 2_000_000  # random numbers drawn at once, to bound memory with many queries


class Interval(NamedTuple):
    """A mean with the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


class PairedResult(NamedTuple):
    """The mean difference of two systems (second minus first), its interval, and the two-sided p-value."""

    difference: float
    low: float
    high: float
    p: float


def bootstrap_intervals(
    values: ArrayLike, *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = 0
) -> list[Interval]:
    """Percentile bootstrap intervals of the column means of `values` [queries, measures].

    All columns share the resamples, so that all measures of a report use the same resampled queries.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or len(table) == 0:
        raise BadSetting("an interval needs the values of at least one query", "Check that the split has judgements.")
    if not 0 < confidence < 1 or resamples < 1:
        raise BadSetting(f"confidence {confidence}, resamples {resamples}", "Use 0 < confidence < 1, resamples >= 1.")
    means = table.mean(axis=0)
    count = len(table)
    rng = np.random.default_rng(seed)
    resampled = []
    for rows in _blocks(resamples, count):
        drawn = rng.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        resampled.append(times @ table / count)
    tail = (1 - confidence) / 2
    lows, highs = np.quantile(np.concatenate(resampled), [tail, 1 - tail], axis=0)
    # The bounds of a constant column must not miss its mean by a rounding error.
    lows, highs = np.minimum(lows, means), np.maximum(highs, means)
    return [Interval(float(m), float(low), float(high)) for m, low, high in zip(means, lows, highs)]


def bootstrap_interval(
    values: ArrayLike, *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The percentile bootstrap interval of one mean."""
    column = np.asarray(values, dtype=np.float64).reshape(-1, 1)
    return bootstrap_intervals(column, confidence=confidence, resamples=resamples, seed=seed)[0]


def paired_test(
    first: ArrayLike,
    second: ArrayLike,
    *,
    permutations: int = PERMUTATIONS,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PairedResult:
    """Two-sided paired sign-flip randomisation test of two systems on the same queries.

    Under the null hypothesis, the sign of each query's difference is random. If there are at most `permutations` sign
    assignments, all are enumerated and p is exact; otherwise that many are sampled, and the observed one is included,
    so that p is never 0.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or len(a) == 0:
        raise BadSetting("a paired test needs two values for each query", "Evaluate both systems on the same queries.")
    differences = b - a
    interval = bootstrap_interval(differences, confidence=confidence, resamples=resamples, seed=seed)
    return PairedResult(*interval, p=_sign_flip(differences[differences != 0], permutations, seed))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several comparisons, corrected by Holm's step-down method, in the given order."""
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected


def _sign_flip(differences: np.ndarray, permutations: int, seed: int) -> float:
    """p-value of the sum of the differences. The caller removes zeros, whose sign has no effect."""
    count = len(differences)
    if count == 0:
        return 1.0
    observed = abs(differences.sum())
    # Equal sums differ in the last digits by the order of summation, so compare with a tolerance.
    bar = observed - 1e-12 * np.abs(differences).sum()
    if count < 40 and 2**count <= permutations:
        signs = 1.0 - 2.0 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        return float((np.abs(signs @ differences) >= bar).mean())
    rng = np.random.default_rng(seed)
    as_large = 0
    for rows in _blocks(permutations, count):
        signs = 1.0 - 2.0 * rng.integers(0, 2, (rows, count), dtype=np.int8)
        as_large += int((np.abs(signs @ differences) >= bar).sum())
    return (as_large + 1) / (permutations + 1)


def _blocks(rows: int, columns: int) -> list[int]:
    """Split `rows` into parts of about BLOCK numbers each."""
    step = max(1, BLOCK // max(columns, 1))
    return [min(step, rows - start) for start in range(0, rows, step)]
