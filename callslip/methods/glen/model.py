"""GLEN's model: a decoder that is fed its own last hidden state and writes words.

The input is a text, the output one hidden state per level, whose dot products with the word embeddings are the level's
logits. A query's logits do not depend on the words written, so a table of log-probabilities, [L, V], scores every code.
With `feedback="token"`, for comparison, the decoder is fed the word it wrote, and there is no such table.

`WordWriter` is what all such models have in common. `LexicalWriter` here reads the vector of a text by a frozen
encoder; `pretrained.py` has the models that read the text itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from callslip.decoders.scores import ChildScores
from callslip.decoders.writer import DecoderLayer
from callslip.errors import BadSetting
from callslip.training.batches import Inputs

BLOCK = 1024
"""Batch size of inference on vectors."""


@dataclass
class TableScores:
    """Log-probabilities of a level, shared by all beams of a query, [queries, V]."""

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
    """Search state: the queries, and the words each beam has written so far, [B, beams, levels]."""

    read: Any
    tokens: Tensor

    def fork(self) -> Written:
        return replace(self)

    def append(self, parents: Tensor, tokens: Tensor) -> None:
        """Continue the earlier beams `parents` [B, beams] with one token each, [B, beams]."""
        before = self.tokens.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.tokens.shape[-1]))
        self.tokens = torch.cat([before, tokens.unsqueeze(-1)], dim=-1)


class WordWriter:
    """A model that writes words: what follows from its `states`, whatever it reads."""

    feedback: Literal["hidden", "token"]
    length: int
    """Words of a code."""
    embeddings: Tensor
    """The word embeddings, [V, D]."""
    batch: Callable[[Any], Any]
    """Some inputs as `states` takes them."""
    block = BLOCK
    """Texts of a batch of inference."""

    def states(
        self, texts: Any, tokens: Tensor | None = None, *, documents: bool = False, among: Tensor | None = None
    ) -> Tensor:
        """Hidden states [B, L, D] of texts, scaled for the products with word embeddings.

        With token feedback, a level is fed the previous word of `tokens` [B, L], or by default the most likely word,
        restricted to the words `among` [B, L, S] of each level if given. A model may read `documents` differently.
        """
        raise NotImplementedError

    def start_fed(self, queries: Any) -> tuple[Any, ChildScores]:
        """Begin a search with token feedback."""
        raise NotImplementedError

    def advance_fed(self, state: Any, parents: Tensor, tokens: Tensor) -> Any:
        """Continue a search with token feedback."""
        raise NotImplementedError

    def forward(self, texts: Any, tokens: Tensor | None = None, *, documents: bool = False) -> Tensor:
        """Logits of every level, [B, L, V]."""
        return self.logits(self.states(texts, tokens, documents=documents))

    def logits(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., V]."""
        return states @ self.embeddings.T

    @torch.no_grad()
    def likeliest(self, states: Tensor, among: Tensor | None = None) -> Tensor:
        """The most likely word of each state, [n, D] -> [n]; of all words, or of its row of `among` [n, S]."""
        if among is None:
            return self.logits(states).argmax(-1)
        some = nn.functional.embedding(among, self.embeddings)  # [n, S, D]
        best = (some @ states.unsqueeze(-1)).squeeze(-1).argmax(-1, keepdim=True)
        return among.gather(-1, best).squeeze(-1)

    # Inference on many texts.

    def all_states(self, inputs: Inputs, documents: bool = False) -> Tensor:
        """The states of texts, [n, L, D]."""
        with torch.inference_mode():
            return torch.cat([self.states(some, documents=documents) for some in self._blocks(inputs)])

    def likeliest_words(self, inputs: Inputs, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The `count` most likely words of each level for documents, best first, and their logits: int32 and float32
        [n, L, count]."""
        tokens, weights = [], []
        with torch.inference_mode():
            for some in self._blocks(inputs):
                logits = self.logits(self.states(some, documents=True))
                best = logits.topk(min(count, logits.shape[-1]), dim=-1)
                tokens.append(best.indices.int().cpu().numpy())
                weights.append(best.values.cpu().numpy())
        return np.concatenate(tokens), np.concatenate(weights)

    def _blocks(self, inputs: Inputs) -> Iterator[Any]:
        device, count = self.embeddings.device, len(inputs)
        for at in range(0, max(1, count), self.block):
            rows = range(at, min(at + self.block, count))
            some = inputs[at : rows.stop] if isinstance(inputs, np.ndarray) else [inputs[row] for row in rows]
            yield self.batch(some).to(device)

    # Search. Queries are as `states` takes them, or with hidden feedback their precomputed states [B, L, D].

    def table(self, queries: Any) -> list[Tensor]:
        """The log-probabilities of every word at every level: one [B, V] per level."""
        if self.feedback == "token":
            raise BadSetting("with token feedback there is no table: scores depend on the prefix", "Use beam search.")
        read = isinstance(queries, Tensor) and queries.dim() == 3
        states = queries if read else self.states(queries)
        return list(self.logits(states).log_softmax(-1).unbind(1))

    def start(self, queries: Any) -> tuple[Any, ChildScores]:
        """Begin a search: the state, and the log-probabilities of the first level."""
        if self.feedback == "token":
            return self.start_fed(queries)
        tables = self.table(queries)
        nothing = torch.zeros((len(tables[0]), 1, 0), dtype=torch.long, device=tables[0].device)
        return Written(tables, nothing), TableScores(tables[0], 1)

    def advance(self, state: Any, parents: Tensor, tokens: Tensor) -> Any:
        """Append a word to each beam: the log-probabilities of the next level."""
        if self.feedback == "token":
            return self.advance_fed(state, parents, tokens)
        state.append(parents, tokens)
        return TableScores(state.read[state.tokens.shape[-1]], tokens.shape[1])


class LexicalWriter(WordWriter, nn.Module):
    """Reads vectors of `input_dim`, and writes `length` words of a vocabulary of `words` with embeddings of `dim`.

    Three parts make up for a short training, and are not in the paper. `residual`: the input vector is added to the
    decoder's output. `pursuit`: the component of a document's state along a level's most likely word is projected out
    before the next level, so that the next word differs. `strengths`: each level of a query has a trained weight.
    """

    reads = "vector"

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
        residual: bool = True,
        pursuit: bool = True,
        strengths: bool = True,
    ) -> None:
        super().__init__()
        if width % heads:
            raise BadSetting(
                f"decoder width {width} is not a multiple of {heads} heads", "Change decoder_width or decoder_heads."
            )
        self.widths, self.length, self.slots, self.feedback = (words,) * length, length, memory_slots, feedback
        # Frozen: in a short training of the words a few of them soon attract all documents.
        self.embeddings = nn.Parameter(torch.randn(words, dim), requires_grad=False)
        self.to_memory = nn.Linear(input_dim, memory_slots * width)
        self.memory_norm = nn.LayerNorm(width)
        self.begin = nn.Parameter(0.02 * torch.randn(width))
        self.levels = nn.Parameter(0.02 * torch.randn(length, width))
        self.fed = nn.Linear(dim, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, dim)
        self.skip = nn.Linear(input_dim, dim) if residual else None
        self.taken = nn.Parameter(torch.ones(length)) if pursuit else None
        self.strengths = nn.Parameter(torch.ones(length), requires_grad=strengths)
        self.last_norm = nn.RMSNorm(dim)
        if self.skip is not None:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)
            if input_dim == dim:
                nn.init.eye_(self.skip.weight)
            nn.init.zeros_(self.skip.bias)

    def batch(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows))

    def load_state_dict(self, state_dict: Mapping[str, Any], *arguments: Any, **more: Any) -> Any:
        """Load weights; those saved by versions without strengths get strengths of 1."""
        state_dict = {"strengths": torch.ones(self.length)} | dict(state_dict)
        return super().load_state_dict(state_dict, *arguments, **more)

    def begin_with(self, embeddings: np.ndarray, centre: np.ndarray | None = None) -> None:
        """Initialise the model with the word embeddings [words, dim] and, for the residual connection, the mean of the
        vectors [input_dim]."""
        with torch.no_grad():
            self.embeddings.copy_(torch.from_numpy(embeddings))
            if self.skip is not None and centre is not None:
                self.skip.bias.copy_(-(self.skip.weight @ torch.from_numpy(centre)))

    @torch.no_grad()
    def begin_strengths(self, vectors: np.ndarray) -> None:
        """Initialise the strengths of a query's levels as the square roots of the mean weights of documents' words at
        each level, scaled to mean 1.

        A document's vector is decomposed into its words, the first with the largest weight. A code does not contain the
        weights, but a query can use their mean over all documents. (With the weights themselves, the first words
        dominate all others; square roots found more answers on both data sets tested.)
        """
        tokens, logits = (part[:, :, 0] for part in self.likeliest_words(vectors, 1))
        lengths = self.embeddings.norm(dim=-1).clamp(min=1e-9).cpu().numpy()
        cosines = logits / lengths[tokens]  # the states have norm 1
        strengths = np.sqrt(np.maximum(word_weights(cosines).mean(axis=0), 0))
        if strengths.mean() > 0:
            self.strengths.copy_(torch.from_numpy(strengths / strengths.mean()))

    def states(
        self, vectors: Tensor, tokens: Tensor | None = None, *, documents: bool = False, among: Tensor | None = None
    ) -> Tensor:
        """Hidden states [B, L, dim], scaled by dim^-1/2 as T5 scales them, of texts given as vectors [B, input_dim];
        see `WordWriter.states`. Documents are read with `pursuit`, queries with `strengths`."""
        memory = self.memory_norm(self.to_memory(vectors).unflatten(-1, (self.slots, -1)))
        crossed = [layer.cross.keys_values(memory) for layer in self.layers]  # type: ignore[union-attr, operator]
        kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]
        base = 0.0 if self.skip is None else self.skip(vectors)
        x = self.begin.expand(len(vectors), -1)
        taken = self.taken if documents else None
        found: list[Tensor] = []
        for level in range(self.length):
            x = (x + self.levels[level]).unsqueeze(1)
            for layer, cross, before in zip(self.layers, crossed, kept, strict=True):
                x = _step(layer, x, cross, before)
            whole = base + self.out(self.norm(x[:, 0]))
            state = self.last_norm(whole)
            found.append(state * (1.0 if documents else self.strengths[level]) * state.shape[-1] ** -0.5)
            x = self.fed(state)
            if taken is not None or self.feedback == "token":
                word = self.likeliest(found[-1], None if among is None else among[:, level])
                if tokens is not None and self.feedback == "token":
                    word = tokens[:, level]
                embedding = nn.functional.embedding(word, self.embeddings)
                if taken is not None:
                    base = base - taken[level] * _projection(whole, embedding)
                if self.feedback == "token":
                    x = self.fed(embedding)
        return torch.stack(found, dim=1)

    def start_fed(self, queries: Tensor) -> tuple[Written, ChildScores]:
        nothing = torch.zeros((len(queries), 1, 0), dtype=torch.long, device=queries.device)
        return Written(queries, nothing), TableScores(self._next(queries, nothing[:, 0]), 1)

    def advance_fed(self, state: Written, parents: Tensor, tokens: Tensor) -> ChildScores:
        state.append(parents, tokens)
        queries = state.read.repeat_interleave(tokens.shape[1], dim=0)
        return TableScores(self._next(queries, state.tokens.flatten(0, 1)), 1)

    def _next(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities of the level after the given words, recomputed from the start, since codes are short."""
        level = tokens.shape[1]
        padded = nn.functional.pad(tokens, (0, self.length - level))
        return self.logits(self.states(queries, padded)[:, level]).log_softmax(-1)


def _step(layer: Any, x: Tensor, cross: tuple[Tensor, Tensor], before: list[tuple[Tensor, Tensor]]) -> Tensor:
    """One position through a layer: causal self-attention, cross-attention, feed-forward."""
    normed = layer.self_norm(x)
    before.append(layer.itself.keys_values(normed))
    keys, values = (torch.cat(parts, dim=-2) for parts in zip(*before, strict=True))
    x = x + layer.dropout(layer.itself.attend(normed, keys, values))
    x = x + layer.dropout(layer.cross.attend(layer.cross_norm(x), *cross))
    return x + layer.dropout(layer.feed(layer.feed_norm(x)))


def word_weights(cosines: np.ndarray) -> np.ndarray:
    """Weights of the words in a matching pursuit of unit vectors, [n, L], from the cosine of each word with the
    residual before it: each word leaves √(1 − cos²) of the residual's norm."""
    left = np.cumprod(np.sqrt(np.clip(1 - cosines**2, 0, 1)), axis=1)
    return cosines * np.concatenate([np.ones_like(left[:, :1]), left[:, :-1]], axis=1)


def _projection(x: Tensor, direction: Tensor) -> Tensor:
    """Projection of each x onto its direction, [B, D] each."""
    share = (x * direction).sum(-1, keepdim=True) / direction.square().sum(-1, keepdim=True).clamp(min=1e-9)
    return share * direction
