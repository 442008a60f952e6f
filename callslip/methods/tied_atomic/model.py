"""The models of Tied-Atomic: what computes the states of queries and documents, the same for both.

Every model has `hidden`, as decoders have: the states of texts after the start token, [B, 1, D]. `TiedReader` reads the
vector of a frozen or fine-tuned encoder; T5 is the paper's model, and needs nothing of its own here but its scale.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.decoders.t5 import T5CodeWriter, Tokens
from callslip.decoders.tuned import TunedWriter
from callslip.decoders.writer import CodeWriter
from callslip.encoders.pooling import pool


class TiedReader(nn.Module):
    """Maps a text's vector to its last hidden state, in the same way for queries and documents.

    One step of DSI's decoder reads the vector; its projected state is added to the vector. The projection is
    initialised to zero, so that training starts from dense retrieval.
    """

    reads = "vector"

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

    def hidden(self, vectors: Tensor, codes: Tensor) -> Tensor:
        """States [B, 1, dim] of texts given as vectors [B, dim]; there are no codes before the first step."""
        begin = torch.zeros((len(vectors), 1), dtype=torch.long, device=vectors.device)
        return vectors[:, None] + self.out(self.decoder.hidden(vectors, begin))

    def forward(self, vectors: Tensor) -> Tensor:
        """Unit states [B, dim]."""
        return functional.normalize(self.hidden(vectors, vectors[:, :0])[:, 0], dim=-1)


class TunedVector(TunedWriter):
    """A fine-tuned encoder alone: the state of a text is its pooled vector."""

    def hidden(self, texts: Tokens, codes: Tensor) -> Tensor:
        return self.encoder(texts.ids, texts.mask)[:, None, : self.dim]


class T5State(T5CodeWriter):
    """T5: the state of a text is the decoder's last hidden state after the start token (Eq. 2).

    T5 scales that state before its product with an output embedding. A document's state is such an embedding, so both
    sides of the product have the square root of the scale.
    """

    def hidden(self, texts: Any, codes: Tensor) -> Tensor:
        return super().hidden(texts, codes) / self.scale**0.5


class T5Vector(T5CodeWriter):
    """T5's encoder alone: the state of a text is the average of its states."""

    def hidden(self, texts: Any, codes: Tensor) -> Tensor:
        read = self.t5.encoder(input_ids=texts.ids, attention_mask=texts.mask).last_hidden_state
        return pool(read, texts.mask, "mean")[:, None]
