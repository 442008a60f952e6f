"""GLEN's model: a decoder that is fed its own last hidden state and writes words.

A text's vector goes in, one hidden state per level comes out, and a state's dot products with the words' embeddings
are the level's logits. Nothing of it depends on the words that were written, so queries and documents are read alike and
a query gives one table of log-probabilities, [L, V], that scores every code. Fed with the word it wrote instead
(`feedback="token"`, for comparison) it is a decoder like others, and has no such table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from callslip.errors import BadSetting
from callslip.model.scores import ChildScores
from callslip.model.seq2seq import DecoderLayer


@dataclass
class TableScores:
    """Log-probabilities of a level that are the same for every beam of a query, [queries, V]."""

    values: Tensor
    beams: int
    normalised: bool = True

    @property
    def queries(self) -> int:
        return len(self.values)

    @property
    def device(self) -> torch.device:
        return self.values.device

    def of(self, owner: Tensor, token: Tensor) -> Tensor:
        return self.values[owner // self.beams, token]


@dataclass
class Written:
    """The state of a search: what was read, and what each beam has written so far, [B, beams, levels]."""

    read: Any
    tokens: Tensor

    def fork(self) -> Written:
        return replace(self)


class LexicalWriter(nn.Module):
    """Reads vectors of `input_dim`, writes `length` of `words` words whose embeddings have `dim` numbers."""

    def __init__(
        self,
        input_dim: int,
        words: int,
        dim: int,
        length: int,
        *,
        width: int = 256,
        layers: int = 2,
        heads: int = 4,
        memory_slots: int = 2,
        dropout: float = 0.1,
        feedback: Literal["hidden", "token"] = "hidden",
    ) -> None:
        super().__init__()
        if width % heads:
            raise BadSetting(
                f"decoder width {width} is not a multiple of {heads} heads", "Change decoder_width or decoder_heads."
            )
        self.widths, self.slots, self.feedback = (words,) * length, memory_slots, feedback
        self.embeddings = nn.Parameter(torch.randn(words, dim))
        self.to_memory = nn.Linear(input_dim, memory_slots * width)
        self.memory_norm = nn.LayerNorm(width)
        self.begin = nn.Parameter(0.02 * torch.randn(width))
        self.levels = nn.Parameter(0.02 * torch.randn(length, width))
        self.fed = nn.Linear(dim, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, dim)
        self.skip = nn.Linear(input_dim, dim, bias=False)  # the vector itself: what the decoder adds to is no blank
        self.last_norm = nn.LayerNorm(dim)

    @property
    def length(self) -> int:
        return len(self.widths)

    def states(self, vectors: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Hidden states [B, L, dim], scaled by dim^-1/2 as T5 scales them, of texts given as vectors [B, input_dim].

        With token feedback a level is fed the word of `tokens` [B, L] before it, or without them the likeliest word.
        """
        memory = self.memory_norm(self.to_memory(vectors).unflatten(-1, (self.slots, -1)))
        crossed = [layer.cross.keys_values(memory) for layer in self.layers]  # type: ignore[union-attr, operator]
        kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]
        base, x = self.skip(vectors), self.begin.expand(len(vectors), -1)
        found: list[Tensor] = []
        for level in range(self.length):
            x = (x + self.levels[level]).unsqueeze(1)
            for layer, cross, before in zip(self.layers, crossed, kept, strict=True):
                x = _step(layer, x, cross, before)
            state = self.last_norm(self.out(self.norm(x[:, 0])) + base)
            found.append(state * state.shape[-1] ** -0.5)
            x = self.fed(state)
            if self.feedback == "token":
                given = found[-1] @ self.embeddings.T if tokens is None else None
                token = given.argmax(-1) if given is not None else tokens[:, level]  # type: ignore[index]
                x = self.fed(self.embeddings[token])
        return torch.stack(found, dim=1)

    def forward(self, vectors: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Logits of every level, [B, L, V]."""
        return self.logits(self.states(vectors, tokens))

    def logits(self, states: Tensor) -> Tensor:
        """[..., dim] -> [..., V]."""
        return states @ self.embeddings.T

    # Search. Queries are vectors [B, input_dim], or with hidden feedback their states [B, L, dim], already read.

    def table(self, queries: Tensor) -> list[Tensor]:
        """The log-probabilities of every word at every level: one [B, V] per level."""
        if self.feedback == "token":
            raise BadSetting("scores depend on the words written before: there is no table", "Use beam search.")
        states = queries if queries.dim() == 3 else self.states(queries)
        return list(self.logits(states).log_softmax(-1).unbind(1))

    def start(self, queries: Tensor) -> tuple[Written, ChildScores]:
        nothing = torch.zeros((len(queries), 1, 0), dtype=torch.long, device=queries.device)
        if self.feedback == "token":
            return Written(queries, nothing), TableScores(self._next(queries, nothing[:, 0]), 1)
        state = Written(self.table(queries), nothing)
        return state, TableScores(state.read[0], 1)

    def advance(self, state: Written, parents: Tensor, tokens: Tensor) -> ChildScores:
        before = state.tokens.gather(1, parents.unsqueeze(-1).expand(-1, -1, state.tokens.shape[-1]))
        state.tokens = torch.cat([before, tokens.unsqueeze(-1)], dim=-1)
        beams, level = tokens.shape[1], state.tokens.shape[-1]
        if self.feedback == "hidden":
            return TableScores(state.read[level], beams)
        queries = state.read.repeat_interleave(beams, dim=0)
        return TableScores(self._next(queries, state.tokens.flatten(0, 1)), 1)

    def _next(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of the level after the given words, everything read anew: a code is short."""
        level = tokens.shape[1]
        padded = nn.functional.pad(tokens, (0, self.length - level))
        return self.logits(self.states(queries, padded)[:, level]).log_softmax(-1)


def _step(layer: Any, x: Tensor, cross: tuple[Tensor, Tensor], before: list[tuple[Tensor, Tensor]]) -> Tensor:
    """One position through a layer: attention to those before it and to itself, to the memory, feed-forward."""
    normed = layer.self_norm(x)
    before.append(layer.itself.keys_values(normed))
    keys, values = (torch.cat(parts, dim=-2) for parts in zip(*before, strict=True))
    x = x + layer.dropout(layer.itself.attend(normed, keys, values))
    x = x + layer.dropout(layer.cross.attend(layer.cross_norm(x), *cross))
    return x + layer.dropout(layer.feed(layer.feed_norm(x)))
