"""What URI adds to a code writer: items that are read as queries are, and a ranker."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from callslip.decoders.histories import HistoryEncoder, HistoryWriter, Read
from callslip.decoders.writer import CodeWriter, States


class UnifiedWriter(HistoryWriter):
    """A writer of codes for histories and for single items: both are states of the same width to one decoder."""

    def __init__(self, encoder: HistoryEncoder, writer: CodeWriter) -> None:
        super().__init__(encoder, writer)
        dim = encoder.items.dim
        self.item_encoder = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.item_norm = nn.LayerNorm(dim)

    def read_items(self, vectors: Tensor) -> Read:
        """Items by their vectors [B, D], as the decoder reads them: what it has of a history, of one state."""
        states = self.item_norm(vectors + self.item_encoder(vectors))
        seen = torch.ones((len(states), 1), dtype=torch.bool, device=states.device)
        return Read(states, States(states.unsqueeze(1), seen))


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
