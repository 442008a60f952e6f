"""URI's extensions of a code writer: items read like queries, and a ranker."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from callslip.decoders.histories import HistoryEncoder, HistoryWriter, Read
from callslip.decoders.writer import CodeWriter, States


class UnifiedWriter(HistoryWriter):
    """A code writer for histories and single items, both of which one decoder reads as states of the same width."""

    def __init__(self, encoder: HistoryEncoder, writer: CodeWriter) -> None:
        super().__init__(encoder, writer)
        dim = encoder.items.dim
        self.item_encoder = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.item_norm = nn.LayerNorm(dim)

    def read_items(self, vectors: Tensor) -> Read:
        """Items with vectors [B, D] in the decoder's input format: histories of a single state."""
        states = self.item_norm(vectors + self.item_encoder(vectors))
        seen = torch.ones((len(states), 1), dtype=torch.bool, device=states.device)
        return Read(states, States(states.unsqueeze(1), seen))


class Ranker(nn.Module):
    """Linear maps of the vectors of queries and items, initialised to the identity: the inner product is initially that
    of the encoder, and weight decay pulls it back there."""

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
        """Query vectors with the items' map folded in, for inner products with the items' original vectors.

        The items' map is linear, so it can be applied to the query instead, and no second vector per item is stored.
        """
        changed = self.queries(vectors)
        return changed + changed @ self.item_side.weight
