"""GLEN's model: a decoder that is fed its own last hidden state and writes words.

A text's vector goes in, one hidden state per level comes out, and a state's dot products with the words' embeddings
are the level's logits. A query's depend on nothing that is written, so it gives one table of log-probabilities, [L, V],
that scores every code. Fed with the word it wrote instead (`feedback="token"`, for comparison) it is a decoder like
others, and has no such table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from callslip.decoders.scores import ChildScores
from callslip.decoders.writer import DecoderLayer
from callslip.errors import BadSetting

BLOCK = 1024
"""Texts that are read at a time when nothing is trained."""


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
        self.skip = nn.Linear(input_dim, dim)  # the vector itself, which the decoder adds to
        self.taken = nn.Parameter(torch.ones(length))
        self.strengths = nn.Parameter(torch.ones(length))  # of a query's states: what a level's words are worth
        self.last_norm = nn.RMSNorm(dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        if input_dim == dim:
            nn.init.eye_(self.skip.weight)
        nn.init.zeros_(self.skip.bias)

    @property
    def length(self) -> int:
        return len(self.widths)

    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **more: Any) -> Any:
        """Weights that were saved before levels had strengths have none: all are 1."""
        state_dict = {"strengths": torch.ones(self.length)} | dict(state_dict)
        return super().load_state_dict(state_dict, *arguments, **more)

    def begin_with(self, embeddings: np.ndarray, centre: np.ndarray, to_words: np.ndarray | None = None) -> None:
        """Where training sets out from: the words' embeddings [words, dim], the mean of the vectors, and the matrix
        [input_dim, dim] that takes vectors to where words are, if they are not there already."""
        with torch.no_grad():
            self.embeddings.copy_(torch.from_numpy(embeddings))
            if to_words is not None:
                self.skip.weight.copy_(torch.from_numpy(to_words).T)
            self.skip.bias.copy_(-(self.skip.weight @ torch.from_numpy(centre)))

    @torch.no_grad()
    def begin_strengths(self, vectors: np.ndarray) -> None:
        """Let the strengths of a query's levels begin as the square roots of what documents' words weigh there on the
        whole, 1 in the mean.

        A document's words are what its vector is put together of, the first the heaviest. A code does not tell their
        weights, but what is true of all documents a query can know. (By the weights themselves the first words outweigh
        all others; by their roots more answers were found on both sets that were tried.)
        """
        tokens, logits = (part[:, :, 0] for part in self.likeliest_words(vectors, 1))
        lengths = self.embeddings.norm(dim=-1).clamp(min=1e-9).cpu().numpy()
        cosines = logits / lengths[tokens]  # the states' own length is 1
        strengths = np.sqrt(np.maximum(word_weights(cosines).mean(axis=0), 0))
        if strengths.mean() > 0:
            self.strengths.copy_(torch.from_numpy(strengths / strengths.mean()))

    def states(
        self, vectors: Tensor, tokens: Tensor | None = None, *, documents: bool = False, among: Tensor | None = None
    ) -> Tensor:
        """Hidden states [B, L, dim], scaled by dim^-1/2 as T5 scales them, of texts given as vectors [B, input_dim].

        Of a document, what a level's likeliest word says is taken out before the next level, so that another word is
        next; a query keeps all it has, for any document's words, times the level's strength. With token feedback a
        level is fed the word of `tokens` [B, L] before it, or without them the likeliest word; which is looked for
        `among` some words of each level, [B, L, S], if they are given.
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
            whole = base + self.out(self.norm(x[:, 0]))
            state = self.last_norm(whole)
            found.append(state * (1.0 if documents else self.strengths[level]) * state.shape[-1] ** -0.5)
            x = self.fed(state)
            if documents or self.feedback == "token":
                word = self.likeliest(found[-1], None if among is None else among[:, level])
                if tokens is not None and self.feedback == "token":
                    word = tokens[:, level]
                embedding = nn.functional.embedding(word, self.embeddings)
                if documents:
                    base = base - self.taken[level] * _projection(whole, embedding)
                if self.feedback == "token":
                    x = self.fed(embedding)
        return torch.stack(found, dim=1)

    @torch.no_grad()
    def likeliest(self, states: Tensor, among: Tensor | None = None) -> Tensor:
        """The word nearest to each state, [n, dim] -> [n]; of all words, or of those of its row `among` [n, S]."""
        if among is None:
            return self.logits(states).argmax(-1)
        some = nn.functional.embedding(among, self.embeddings)  # [n, S, dim]
        best = (some @ states.unsqueeze(-1)).squeeze(-1).argmax(-1, keepdim=True)
        return among.gather(-1, best).squeeze(-1)

    def forward(self, vectors: Tensor, tokens: Tensor | None = None, *, documents: bool = False) -> Tensor:
        """Logits of every level, [B, L, V]."""
        return self.logits(self.states(vectors, tokens, documents=documents))

    def logits(self, states: Tensor) -> Tensor:
        """[..., dim] -> [..., V]."""
        return states @ self.embeddings.T

    # Many texts, when nothing is trained.

    def read(self, vectors: np.ndarray, documents: bool = False) -> Tensor:
        """The states of texts, [n, L, dim]."""
        device = self.embeddings.device
        blocks = [torch.from_numpy(np.ascontiguousarray(vectors[at : at + BLOCK])) for at in _starts(len(vectors))]
        with torch.inference_mode():
            return torch.cat([self.states(block.to(device), documents=documents) for block in blocks])

    def likeliest_words(self, vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` likeliest words of each level for documents, the likeliest first, and their logits: int32 and
        float32 [n, L, count]."""
        tokens, weights = [], []
        for at in _starts(len(vectors)):
            with torch.inference_mode():
                logits = self.logits(self.read(vectors[at : at + BLOCK], documents=True))
                best = logits.topk(min(count, logits.shape[-1]), dim=-1)
            tokens.append(best.indices.int().cpu().numpy())
            weights.append(best.values.cpu().numpy())
        return np.concatenate(tokens), np.concatenate(weights)

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


def _starts(count: int) -> range:
    return range(0, max(1, count), BLOCK)


def _step(layer: Any, x: Tensor, cross: tuple[Tensor, Tensor], before: list[tuple[Tensor, Tensor]]) -> Tensor:
    """One position through a layer: attention to those before it and to itself, to the memory, feed-forward."""
    normed = layer.self_norm(x)
    before.append(layer.itself.keys_values(normed))
    keys, values = (torch.cat(parts, dim=-2) for parts in zip(*before, strict=True))
    x = x + layer.dropout(layer.itself.attend(normed, keys, values))
    x = x + layer.dropout(layer.cross.attend(layer.cross_norm(x), *cross))
    return x + layer.dropout(layer.feed(layer.feed_norm(x)))


def word_weights(cosines: np.ndarray) -> np.ndarray:
    """Weights of the words that make up unit vectors by matching pursuit, [n, L], given the cosine of each word with
    what was left of the vector before it: a word that is taken leaves √(1 − cos²) of the length."""
    left = np.cumprod(np.sqrt(np.clip(1 - cosines**2, 0, 1)), axis=1)
    return cosines * np.concatenate([np.ones_like(left[:, :1]), left[:, :-1]], axis=1)


def _projection(x: Tensor, direction: Tensor) -> Tensor:
    """The part of each x that lies along the direction, [B, D] each."""
    share = (x * direction).sum(-1, keepdim=True) / direction.square().sum(-1, keepdim=True).clamp(min=1e-9)
    return share * direction
