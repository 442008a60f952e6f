"""The model of Tied-Atomic: one decoder step that computes the states of queries and documents."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.decoders.writer import CodeWriter


class TiedReader(nn.Module):
    """Maps a text's vector to its last hidden state, in the same way for queries and documents.

    One step of DSI's decoder reads the vector; its projected state is added to the vector. The projection is
    initialised to zero, so that training starts from dense retrieval.
    """

    def __init__(
        self,
        dim: int,
        *,
        width: int = 256,
        layers: int = 1,
        heads: int = 4,
        memory_slots: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.decoder = CodeWriter(
            dim, [1], width=width, layers=layers, heads=heads, memory_slots=memory_slots, dropout=dropout
        )
        self.decoder.heads = nn.ModuleList()  # the documents' states serve as output weights
        self.out = nn.Linear(width, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """Unit states [B, dim] of texts given as vectors [B, dim]."""
        begin = torch.zeros((len(vectors), 1), dtype=torch.long, device=vectors.device)
        hidden = self.decoder.hidden(vectors, begin)[:, 0]
        return functional.normalize(vectors + self.out(hidden), dim=-1)
