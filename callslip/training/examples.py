"""Training examples in batches: model inputs, each with the row of its document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from callslip.corpus.sequences import runs
from callslip.training import batches

if TYPE_CHECKING:
    from callslip.decoders.histories import HistoryEncoder, HistoryShape, Read

Inputs = np.ndarray | Sequence[list[int]]
"""Model inputs: vectors [n, dim], histories of item numbers [n, T], or a list of token ids per query."""


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
        return batches.steps(len(self.rows), self.batch_size)

    def order(self, seed: int, epoch: int) -> Iterator[np.ndarray]:
        return batches.shuffled(len(self.rows), self.batch_size, seed, epoch)

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
        return batches.by_length(self.lengths[self.bounds[1:] - 1], self.size, seed, epoch)

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
