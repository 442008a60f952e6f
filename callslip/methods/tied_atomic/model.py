"""The model of Tied-Atomic: one decoder step that gives queries and documents their states."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.decoders.writer import CodeWriter


class TiedReader(nn.Module):
    """A text's vector in, its last hidden state out: the same for queries and documents.

    One step of DSI's decoder reads the vector; its state, projected, is added to the vector. The projection begins at
    zero, so that an untrained reader is the encoder and training sets out from dense retrieval.
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
        self.decoder.heads = nn.ModuleList()  # the rows of its head are the documents' states
        self.out = nn.Linear(width, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """Unit states [B, dim] of texts given as vectors [B, dim]."""
        begin = torch.zeros((len(vectors), 1), dtype=torch.long, device=vectors.device)
        hidden = self.decoder.hidden(vectors, begin)[:, 0]
        return functional.normalize(vectors + self.out(hidden), dim=-1)
