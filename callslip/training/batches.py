"""Batches: which examples, in which order. Deterministic by seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def shuffled(count: int, batch_size: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """Row numbers 0..count-1 in a new order for every epoch, `batch_size` at a time; the last batch may be short."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    for start in range(0, count, batch_size):
        yield order[start : start + batch_size]


def steps(count: int, batch_size: int) -> int:
    """How many batches `shuffled` gives."""
    return -(-count // batch_size)


def by_length(lengths: np.ndarray, batch_size: int, seed: int, epoch: int, window: int = 32) -> Iterator[np.ndarray]:
    """As `shuffled`, with examples of like length together, so that little of a batch is padding.

    Only within a `window` of batches are examples put in order; the window's batches then come in random order.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    for start in range(0, len(order), window * batch_size):
        some = order[start : start + window * batch_size]
        some = some[np.argsort(lengths[some], kind="stable")]
        for number in rng.permutation(steps(len(some), batch_size)):
            yield some[number * batch_size : (number + 1) * batch_size]


def by_group(
    groups: np.ndarray, texts: Sequence[np.ndarray], batch_size: int, seed: int, epoch: int, rounds: int = 1
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Documents of the same group beside one another, each with one of its texts drawn at random: (documents, texts).

    `groups` [N] says which group a document is in, `texts` which text numbers are its own; documents without any are
    left out. In each round every document comes once, groups in random order: a batch holds a group, or several whole
    ones, and never a document twice.
    """
    rng = np.random.default_rng([seed, epoch])
    own = np.flatnonzero([len(some) > 0 for some in texts])
    for _ in range(rounds):
        order = rng.permutation(own)
        order = order[np.argsort(rng.permutation(int(groups.max()) + 1)[groups[order]], kind="stable")]
        picked = np.array([texts[row][rng.integers(len(texts[row]))] for row in order], dtype=np.int64)
        for start in range(0, len(order), batch_size):
            yield order[start : start + batch_size], picked[start : start + batch_size]


def in_pieces(
    groups: np.ndarray, batch_size: int, piece: int, seed: int, epoch: int, lengths: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Every example once, in batches put together of pieces: `piece` examples of one group each.

    `groups` [n] says which group an example is in. Pieces are in random order; the last of a group is shorter, and one
    at the end of a batch may go on in the next. With `lengths` [n] a piece holds examples of like length, and a batch
    pieces of like length, so that little of it is padding.
    """
    rng = np.random.default_rng([seed, epoch])
    long = np.zeros(len(groups), np.int64) if lengths is None else lengths
    order = rng.permutation(len(groups))
    order = order[np.lexsort((long[order], groups[order]))]
    sizes = np.bincount(groups, minlength=1)
    starts = [first + np.arange(0, size, piece) for first, size in zip(np.cumsum(sizes) - sizes, sizes, strict=True)]
    pieces = np.split(order, np.concatenate(starts)[1:])
    numbers = rng.permutation(len(pieces)).tolist()
    numbers.sort(key=lambda number: int(long[pieces[number]].max(initial=0)))  # stable: chance decides among equals
    order = np.concatenate([pieces[number] for number in numbers])
    for number in rng.permutation(steps(len(order), batch_size)):
        yield order[number * batch_size : (number + 1) * batch_size]


class Members:
    """Which items are in which group, to draw others of the same."""

    def __init__(self, groups: np.ndarray) -> None:
        """`groups` [N] numbers them from 0."""
        self.groups = groups
        self.order = np.argsort(groups, kind="stable")
        self.sizes = np.bincount(groups)
        self.starts = np.cumsum(self.sizes) - self.sizes

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """For each row an item of its group, any of them."""
        group = self.groups[rows]
        return self.order[self.starts[group] + rng.integers(0, self.sizes[group])]
