"""Queries and the items that they belong to, as codes are learned from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from callslip.identifiers.quality import average_partition_entropy
from callslip.training import batches


@dataclass
class Pairs:
    """What is trained on: queries and items as the model reads them, and the item that each query belongs to."""

    queries: np.ndarray | list[list[int]]
    rows: np.ndarray
    items: np.ndarray | list[list[int]]
    positives: list[np.ndarray]
    """Items that belong to one judged query, for the average partition entropy."""
    histories: bool = False
    """Whether queries are histories of items, [n, T], filled up with 0."""

    @property
    def lengths(self) -> np.ndarray | None:
        """Items of each history; none of texts."""
        return np.count_nonzero(self.queries, axis=1) if self.histories else None

    def entropy(self, codes: np.ndarray) -> dict[str, float]:
        """The average partition entropy of codes; nothing where no query has two items, for it would be 0 by itself."""
        told = any(len(some) > 1 for some in self.positives)
        return {"ape": round(average_partition_entropy(codes, self.positives), 4)} if told else {}

    def with_strangers(
        self, groups: np.ndarray, batch_size: int, piece: int, seed: int, epoch: int, rounds: int = 1
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of pairs, `piece` of one group after the other, and for each pair a random item of the same group.

        `groups` [N] says which group an item is in; every pair comes `rounds` times.
        """
        rng, members, lengths = np.random.default_rng([seed, epoch, 1]), batches.Members(groups), self.lengths
        for turn in range(epoch * rounds, (epoch + 1) * rounds):
            for some in batches.in_pieces(groups[self.rows], batch_size, piece, seed, turn, lengths):
                yield some, members.draw(self.rows[some], rng)
