"""Batches: which examples, in which order. Deterministic by seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def shuffled(count: int, batch_size: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """Row numbers 0..count-1 in a new order for every epoch, `batch_size` at a time; the last batch may be short."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    for start in range(0, count, batch_size):
        yield order[start : start + batch_size]


def steps(count: int, batch_size: int) -> int:
    """How many batches `shuffled` gives."""
    return -(-count // batch_size)
