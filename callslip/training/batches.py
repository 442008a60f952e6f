"""Training examples, and the batches sampled from them, deterministic by seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from callslip.corpus.sequences import runs

if TYPE_CHECKING:
    from callslip.decoders.histories import HistoryEncoder, HistoryShape, Read

Inputs = np.ndarray | Sequence[list[int]]
"""Model inputs: vectors [n, dim], histories of item numbers [n, T], or a list of token ids per query."""


def shuffled(count: int, batch_size: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """Row numbers 0..count-1 in a new order for every epoch, `batch_size` at a time; the last batch may be short."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    for start in range(0, count, batch_size):
        yield order[start : start + batch_size]


def steps(count: int, batch_size: int) -> int:
    """Number of batches of `shuffled`."""
    return -(-count // batch_size)


def size(batch: Any) -> int:
    """Number of examples of a batch: an array, or a tuple of arrays of the same length."""
    arrays = batch if isinstance(batch, tuple) else (batch,)
    if any(len(array) != len(arrays[0]) for array in arrays):
        raise ValueError(f"a batch of arrays of different lengths: {[len(array) for array in arrays]}")
    return len(arrays[0])


def cut(batch: Any, some: slice) -> Any:
    """Some examples of a batch."""
    return tuple(array[some] for array in batch) if isinstance(batch, tuple) else batch[some]


def parts(batch: Any, most: int | None) -> list[tuple[Any, float]]:
    """A batch in parts of at most `most` examples, each with its share of them; the whole if it is None."""
    if most is None:
        return [(batch, 1.0)]
    count = size(batch)
    if count <= most:
        return [(batch, 1.0)]
    cuts = [slice(start, min(start + most, count)) for start in range(0, count, most)]
    return [(cut(batch, some), (some.stop - some.start) / count) for some in cuts]


def by_length(lengths: np.ndarray, batch_size: int, seed: int, epoch: int, window: int = 32) -> Iterator[np.ndarray]:
    """Like `shuffled`, but batches contain examples of similar length, to reduce padding.

    Examples are sorted only within a `window` of batches, whose batches are then shuffled.
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
    """Batches of documents of the same group, each with one of its texts sampled at random: (documents, texts).

    `groups` [N] is the group of each document, `texts` its text numbers; documents without texts are left out. Every
    document occurs once per round, with groups in random order: a batch contains one group, or several whole groups,
    and never the same document twice.
    """
    rng = np.random.default_rng([seed, epoch])
    own = np.flatnonzero([len(some) > 0 for some in texts])
    for _ in range(rounds):
        order = rng.permutation(own)
        order = order[np.argsort(rng.permutation(int(groups.max()) + 1)[groups[order]], kind="stable")]
        picked = np.array([texts[row][rng.integers(len(texts[row]))] for row in order], dtype=np.int64)
        for start in range(0, len(order), batch_size):
            yield order[start : start + batch_size], picked[start : start + batch_size]


class Members:
    """Items by group, to sample from a few groups at a time."""

    def __init__(self, groups: np.ndarray) -> None:
        """`groups` [N] holds group numbers from 0."""
        self.order = np.argsort(groups, kind="stable")
        self.sizes = np.bincount(groups)
        self.starts = np.cumsum(self.sizes) - self.sizes

    def draw(self, count: int, piece: int, rng: np.random.Generator) -> np.ndarray:
        """Sample `count` items, `piece` from each of a series of groups. Groups are sampled in proportion to their
        size, so all items are equally likely."""
        groups = rng.choice(len(self.sizes), -(-count // piece), p=self.sizes / self.sizes.sum())
        each = np.repeat(groups, piece)[:count]
        return self.order[self.starts[each] + rng.integers(0, self.sizes[each])]


class Examples(Protocol):
    """Batches of examples, each given as an array of indices."""

    inputs: Inputs
    rows: np.ndarray
    """The row of each example's document."""

    def __len__(self) -> int:
        """Number of batches in an epoch."""

    def order(self, seed: int, epoch: int) -> Iterator[np.ndarray]:
        """The indices of each batch."""

    def rows_of(self, numbers: np.ndarray) -> np.ndarray:
        """The document rows of a batch."""


class TextExamples:
    """Texts; the indices of a batch are those of its examples."""

    def __init__(self, inputs: Inputs, rows: np.ndarray, batch_size: int) -> None:
        self.inputs, self.rows, self.batch_size = inputs, rows, batch_size

    def __len__(self) -> int:
        return steps(len(self.rows), self.batch_size)

    def order(self, seed: int, epoch: int) -> Iterator[np.ndarray]:
        return shuffled(len(self.rows), self.batch_size, seed, epoch)

    def rows_of(self, numbers: np.ndarray) -> np.ndarray:
        return self.rows[numbers]


class HistoryExamples:
    """Histories of items; the indices of a batch are those of runs of examples.

    If the decoder reads a single vector per sequence, consecutive prefixes of a user's sequence form a run, and only
    the longest is encoded. Otherwise a run is a single example.
    """

    def __init__(self, shape: HistoryShape, histories: np.ndarray, rows: np.ndarray, batch_size: int) -> None:
        self.inputs: Inputs = histories
        self.histories, self.rows = histories, rows
        self.together = shape.kind == "sequence" and shape.memory == "vector"
        self.bounds = runs(histories, rows) if self.together else np.arange(len(histories) + 1)
        count = len(self.bounds) - 1
        self.lengths = np.count_nonzero(histories, axis=1)
        self.size = max(1, round(batch_size * count / max(1, len(histories))))

    def __len__(self) -> int:
        return -(-(len(self.bounds) - 1) // self.size)

    def order(self, seed: int, epoch: int) -> Iterator[np.ndarray]:
        return by_length(self.lengths[self.bounds[1:] - 1], self.size, seed, epoch)

    def examples(self, numbers: np.ndarray) -> np.ndarray:
        """The examples of these runs."""
        return np.concatenate([np.arange(self.bounds[n], self.bounds[n + 1]) for n in numbers])

    def rows_of(self, numbers: np.ndarray) -> np.ndarray:
        return self.rows[self.examples(numbers)]

    def read(self, encoder: HistoryEncoder, numbers: np.ndarray) -> Read:
        """Encode the histories of these runs."""
        import torch

        from callslip.decoders.histories import Read

        device = encoder.items.trained.device
        last = self.bounds[numbers + 1] - 1
        table = torch.from_numpy(self.histories[last]).to(device)
        if not self.together:
            return encoder(table)
        sizes = self.bounds[numbers + 1] - self.bounds[numbers]
        run = np.repeat(np.arange(len(numbers)), sizes)
        place = self.lengths[last][run] - 1 - (last[run] - self.examples(numbers))
        return Read(encoder.at(table, torch.from_numpy(run).to(device), torch.from_numpy(place).to(device)))
