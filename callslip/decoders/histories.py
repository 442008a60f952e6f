"""Items and histories: item vectors, and encoders that read histories of items.

A history is a row of item numbers, [B, T], from 1, right-padded with 0. An item is represented by its own embedding, by
a projection of its text vector, or by both.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.decoders.wrapped import WrappedWriter
from callslip.decoders.writer import Attention, CodeWriter, States
from callslip.errors import BadSetting

ItemKind = Literal["id", "text", "both"]
HistoryKind = Literal["set", "sequence"]


class ItemTable(nn.Module):
    """A vector [dim] for each of `count` items.

    Text vectors are not parameters and are not saved with the model: `set_texts` sets them, in the order of the items.
    """

    def __init__(self, count: int, dim: int, kind: ItemKind = "both", text_dim: int = 0) -> None:
        super().__init__()
        self.kind, self.dim = kind, dim
        self.ids = nn.Embedding(count + 1, dim, padding_idx=0) if kind != "text" else None
        self.project = nn.Linear(text_dim, dim, bias=False) if kind != "id" else None
        if self.ids is not None:
            nn.init.normal_(self.ids.weight, std=dim**-0.5)
            with torch.no_grad():
                self.ids.weight[0] = 0
        self.register_buffer("trained", torch.ones(count + 1, dtype=torch.bool))
        self.register_buffer("texts", torch.zeros(count + 1, text_dim), persistent=False)
        self.trained: Tensor
        self.texts: Tensor

    @property
    def count(self) -> int:
        return len(self.trained) - 1

    def set_texts(self, vectors: Tensor) -> None:
        """Set the text vector of every item, [count, text_dim]."""
        if self.project is None:
            return
        if vectors.shape != (self.count, self.project.in_features):
            raise ValueError(
                f"{tuple(vectors.shape)} vectors for {self.count} items of width {self.project.in_features}"
            )
        self.texts = functional.pad(vectors.to(self.trained.device, torch.float32), (0, 0, 1, 0))

    def forward(self, numbers: Tensor) -> Tensor:
        """Vectors of items by number, [..., dim]; padding (0) has the zero vector."""
        parts = []
        if self.ids is not None:
            parts.append(self.ids(numbers))
        if self.project is not None:
            parts.append(self.project(self.texts[numbers]))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def all(self) -> Tensor:
        """Vectors of all items, [count, dim], in the order of their numbers."""
        return self(torch.arange(1, self.count + 1, device=self.trained.device))

    def known(self) -> Tensor:
        """Which items a history may contain, [count]: if items are ids, only those that were trained."""
        return self.trained[1:] if self.kind == "id" else torch.ones_like(self.trained[1:])

    @torch.no_grad()
    def extend(self, texts: Tensor) -> None:
        """Append new items. Their embeddings are untrained, so they get the mean of the others."""
        more = len(texts)
        if self.ids is not None:
            old = self.ids.weight
            trained = old[1:][self.trained[1:]]
            mean = trained.mean(dim=0) if len(trained) else old.new_zeros(self.dim)
            self._embed(torch.cat([old, mean.expand(more, -1)]))
        self.trained = torch.cat([self.trained, self.trained.new_zeros(more)])
        if self.project is not None:
            self.texts = torch.cat([self.texts, texts.to(self.texts)])

    @torch.no_grad()
    def keep(self, items: Tensor) -> None:
        """Keep only these items (counted from 0), and renumber them."""
        rows = functional.pad(items.to(self.trained.device) + 1, (1, 0))
        if self.ids is not None:
            self._embed(self.ids.weight[rows])
        self.trained = self.trained[rows]
        if self.project is not None:
            self.texts = self.texts[rows]

    def _embed(self, weight: Tensor) -> None:
        self.ids = nn.Embedding.from_pretrained(weight.clone(), freeze=False, padding_idx=0)


@dataclass
class Read:
    """A batch of encoded histories or texts: one vector each [B, D], and optionally the states [B, T, D] with their
    mask. `members`: the item numbers of sets, [B, T]."""

    vector: Tensor
    states: States | None = None
    members: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vector)

    def __getitem__(self, some: slice) -> Read:
        return Read(
            self.vector[some],
            None if self.states is None else self.states[some],
            None if self.members is None else self.members[some],
        )


class HistoryEncoder(nn.Module):
    """Encodes histories. `sequence`: a causal transformer with positions, like SASRec; the vector is the state of the
    last item. `set`: unordered; the vector is an attention pooling of the items."""

    def __init__(
        self,
        items: ItemTable,
        kind: HistoryKind = "sequence",
        *,
        longest: int = 20,
        layers: int = 2,
        heads: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        dim = items.dim
        if dim % heads:
            raise BadSetting(f"history_width {dim} is not a multiple of {heads} heads", "Change history_width.")
        self.items, self.kind, self.longest = items, kind, longest
        self.dropout = nn.Dropout(dropout)
        self.positions = nn.Embedding(longest, dim) if kind == "sequence" else None
        self.begin = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(HistoryLayer(dim, heads, dropout) for _ in range(layers))
        self.pool = nn.Linear(dim, 1) if kind == "set" else None
        self.end = nn.LayerNorm(dim)
        if self.positions is not None:
            nn.init.normal_(self.positions.weight, std=0.02)
        if self.pool is not None:
            nn.init.zeros_(self.pool.weight)  # attention pooling starts as the mean
            nn.init.zeros_(self.pool.bias)

    def forward(self, numbers: Tensor) -> Read:
        numbers = self.trimmed(numbers)
        mask = numbers > 0
        # A history without known items still needs something to attend to: its first position, whose vector is 0.
        seen = mask | (torch.arange(numbers.shape[1], device=numbers.device) == 0)
        states = self.states(numbers, seen)
        if self.pool is not None:
            weights = self.pool(states).squeeze(-1).masked_fill(~seen, -torch.inf).softmax(dim=1)
            vector = (weights.unsqueeze(-1) * states).sum(dim=1)
        else:
            last = (mask.sum(dim=1) - 1).clamp(min=0)
            vector = states[torch.arange(len(states), device=states.device), last]
        return Read(vector, States(states, seen), numbers if self.kind == "set" else None)

    def states(self, numbers: Tensor, seen: Tensor) -> Tensor:
        """A state for each item, [B, T, D]: causal in a sequence, of all items in a set."""
        x = self.items(numbers)
        if self.positions is not None:
            x = self.begin(x) + self.positions.weight[: x.shape[1]]
        else:
            x = self.begin(x)
        x = self.dropout(x)
        # Histories are right-padded, so the causal mask hides the padding from every item.
        shown = None if self.kind == "sequence" else seen[:, None, None, :]
        for layer in self.layers:
            x = layer(x, shown)
        return self.end(x)

    def at(self, numbers: Tensor, history: Tensor, place: Tensor) -> Tensor:
        """Vectors of prefixes of sequences in one pass, [n, D]: of row `history` [n] up to position `place` [n]."""
        if self.kind != "sequence":
            raise ValueError("a set has no prefixes")
        numbers = self.trimmed(numbers)
        return self.states(numbers, numbers > 0)[history, place]

    def trimmed(self, numbers: Tensor) -> Tensor:
        """Trim columns that are padding in every row."""
        longest = int((numbers > 0).sum(dim=1).max()) if len(numbers) else 1
        if longest > self.longest:
            raise ValueError(f"a history of {longest} items exceeds the maximum of {self.longest}")
        return numbers[:, : max(1, longest)]


class HistoryLayer(nn.Module):
    """Self-attention and feed-forward, each after its own layer norm; causal if no mask is given."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.feed = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, shown: Tensor | None = None) -> Tensor:
        normed = self.attention_norm(x)
        keys, values = self.attention.keys_values(normed)
        x = x + self.dropout(self.attention.attend(normed, keys, values, causal=shown is None, seen=shown))
        return x + self.dropout(self.feed(self.feed_norm(x)))


class HistoryWriter(WrappedWriter):
    """Reads histories and writes codes: the code writer attends to the encoder's states, or to memory slots made from
    its vector."""

    def __init__(self, encoder: HistoryEncoder, writer: CodeWriter) -> None:
        super().__init__()
        self.encoder, self.writer = encoder, writer

    @property
    def items(self) -> ItemTable:
        return self.encoder.items

    def read(self, histories: Tensor | Read) -> Read:
        """Encode histories; encoded ones are returned as they are, so that several loss terms can share them."""
        return histories if isinstance(histories, Read) else self.encoder(histories)

    def memory(self, histories: Tensor | Read) -> Tensor | States:
        """The encoder's output that the writer attends to."""
        read = self.read(histories)
        if self.writer.reads == "vector":
            return read.vector
        assert read.states is not None
        return read.states


@torch.no_grad()
def vectors_of(encoder: HistoryEncoder, histories: Tensor, batch: int = 1024) -> Tensor:
    """Vectors of histories by an encoder, [B, D], a few at a time."""
    return torch.cat([encoder(some).vector for some in histories.split(batch)])


@dataclass(frozen=True)
class HistoryShape:
    """The shape of a history encoder, as it is saved."""

    kind: HistoryKind
    count: int
    text_dim: int
    items: ItemKind
    width: int
    longest: int
    layers: int
    heads: int
    dropout: float
    memory: Literal["vector", "states"] = "vector"
    texts: bool = True
    """Whether items have texts; otherwise their vectors come from interactions."""

    @classmethod
    def of(
        cls, s: Any, kind: HistoryKind, vectors: np.ndarray, texts: bool, memory: Literal["vector", "states"] = "vector"
    ) -> HistoryShape:
        """The shape given by the history settings, for items with these vectors [count, text_dim]."""
        return cls(
            kind, len(vectors), vectors.shape[1], s.items, s.history_width, s.history_length, s.history_layers,
            s.history_heads, s.history_dropout, memory, texts,
        )  # fmt: skip

    def encoder(self, vectors: np.ndarray) -> HistoryEncoder:
        """An untrained encoder for items with these vectors [count, text_dim]."""
        items = ItemTable(self.count, self.width, self.items, self.text_dim)
        items.set_texts(torch.from_numpy(np.array(vectors, dtype=np.float32)))
        return HistoryEncoder(
            items, self.kind, longest=self.longest, layers=self.layers, heads=self.heads, dropout=self.dropout
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
