"""The ranker of URI: vectors of queries and items whose inner product orders the documents of the buckets."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Ranker(nn.Module):
    """A linear change of queries' vectors and another of items', which begin as none at all: at first the inner product
    is the encoder's own, and weight decay draws it back there."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query_side, self.item_side = (nn.Linear(dim, dim, bias=False) for _ in range(2))
        for side in (self.query_side, self.item_side):
            nn.init.zeros_(side.weight)

    def queries(self, vectors: Tensor) -> Tensor:
        """[..., dim] -> [..., dim]."""
        return vectors + self.query_side(vectors)

    def items(self, vectors: Tensor) -> Tensor:
        """[..., dim] -> [..., dim]."""
        return vectors + self.item_side(vectors)

    @torch.no_grad()
    def folded(self, vectors: Tensor) -> Tensor:
        """What a query's inner products with items' plain vectors must be taken with, to be those of both sides.

        The items' side is linear, so it can be moved to the query: no second vector of each item need be kept.
        """
        changed = self.queries(vectors)
        return changed + changed @ self.item_side.weight
