"""Our own code writer: from a query to the tokens of a code, level by level.

A pre-norm transformer decoder with one output head per level. Its cross-attention reads `memory_slots` vectors made
from the query's vector, or the states of an encoder. Small enough to train on a CPU in minutes, because the encoder's
vectors are computed once and cached. Search uses two operations, `start` and `advance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.decoders.engines.engine import (
    Affine,
    CrossAttentionWeights,
    DecoderWeights,
    Engine,
    EngineName,
    FeedForwardWeights,
    MemoryWeights,
    Norm,
    Searched,
    SelfAttentionWeights,
    State,
    engine_for,
)
from callslip.errors import BadSetting


@dataclass
class States:
    """An encoder's states [B, S, input_dim], and their attention mask [B, S]."""

    values: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, some: slice) -> States:
        return States(self.values[some], self.mask[some])

    def to(self, device: torch.device) -> States:
        return States(self.values.to(device), self.mask.to(device))


class CodeWriter(Searched):
    """Writes codes of `widths` (tokens per level) for queries given as vectors of `input_dim`, or as `States`."""

    _inputs: list[Tensor]

    def __init__(
        self,
        input_dim: int,
        widths: Sequence[int],
        *,
        width: int = 256,
        layers: int = 2,
        heads: int = 4,
        memory_slots: int = 4,
        dropout: float = 0.1,
        with_end: bool = False,
        reads: Literal["vector", "states"] = "vector",
        engine: EngineName = "auto",
    ) -> None:
        super().__init__()
        if width % heads:
            raise BadSetting(
                f"decoder width {width} is not a multiple of {heads} heads", "Change decoder_width or decoder_heads."
            )
        self.widths = tuple(int(w) for w in widths)
        self.with_end = with_end
        self.reads, self.slots = reads, memory_slots if reads == "vector" else 1
        outputs = [w + 1 if with_end else w for w in self.widths]  # the last output of a level is END
        self.to_memory = nn.Linear(input_dim, self.slots * width)
        self.memory_norm = nn.LayerNorm(width)
        self.begin = nn.Parameter(torch.zeros(width))
        self.levels = nn.Embedding(len(outputs), width)
        # The last level's token is never fed back, so it needs no embedding.
        self.tokens = nn.ModuleList(nn.Embedding(n, width) for n in outputs[:-1])
        self.layers: Sequence[DecoderLayer] = nn.ModuleList(  # type: ignore[assignment]
            DecoderLayer(width, heads, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(nn.Linear(width, n) for n in outputs)
        for embedding in (self.levels, *self.tokens):
            nn.init.normal_(embedding.weight, std=0.02)
        nn.init.normal_(self.begin, std=0.02)
        self.engine_name: EngineName = engine

    @property
    def length(self) -> int:
        return len(self.widths)

    def token_index(self, tokens: Tensor, level: int) -> Tensor:
        """Indices of tokens among the outputs of a level: END (-1) is the last output."""
        return torch.where(tokens < 0, self.widths[level], tokens) if self.with_end else tokens

    def memory(self, queries: Tensor | States) -> tuple[Tensor, Tensor | None]:
        """The memory of cross-attention, [B, slots or S, width], and its attention mask."""
        if isinstance(queries, States):
            return self.memory_norm(self.to_memory(queries.values)), queries.mask
        return self.memory_norm(self.to_memory(queries).unflatten(-1, (self.slots, -1))), None

    def forward(self, queries: Tensor | States, codes: Tensor) -> list[Tensor]:
        """Teacher forcing: logits of every level, each [B, outputs of the level], given the true tokens before it."""
        states = self.hidden(queries, codes)
        return [head(states[:, level]) for level, head in enumerate(self.heads)]

    def hidden(self, queries: Tensor | States, codes: Tensor) -> Tensor:
        """Decoder states [B, L, width] under teacher forcing; those of the first n + 1 levels if codes have only n."""
        memory, mask = self.memory(queries)
        seen = None if mask is None else mask[:, None, None, :].bool()
        before = [self.begin.expand(len(memory), -1)]
        for level in range(min(codes.shape[1], self.length - 1)):
            before.append(self.tokens[level](self.token_index(codes[:, level], level)))
        x = torch.stack(before, dim=1) + self.levels.weight[: len(before)]
        for layer in self.layers:
            x = layer(x, memory, seen)
        return self.norm(x)

    # The two operations of search.

    def start(self, queries: Tensor | States) -> tuple[State, Tensor]:
        """Read the queries. Returns the state and the log-probabilities of the first level, [B, 1, outputs]."""
        state, hidden = self.read(queries)
        return state, self._scores(hidden, 0)

    def advance(self, state: State, parents: Tensor, tokens: Tensor) -> Tensor:
        """Append one token to each beam and return the next level's log-probabilities, [B, beams, outputs].

        `parents` [B, beams] is the earlier beam that each new beam continues; `tokens` [B, beams] the token it appends.
        """
        return self._scores(self.step(state, parents, tokens), state.written - 1)

    def read(self, queries: Tensor | States) -> tuple[State, Tensor]:
        """The engine's state after reading the queries, and the decoder's first hidden states, [B, 1, width]."""
        engine = self._ready()
        mask = queries.mask if isinstance(queries, States) else None
        state = engine.read(queries.values if isinstance(queries, States) else queries.unsqueeze(1), mask)
        return state, engine.step(state, self._inputs[0].expand(len(queries), 1, -1), None)

    def step(self, state: State, parents: Tensor, tokens: Tensor) -> Tensor:
        """Append one token to each beam, and return the decoder's next hidden states, [B, beams, width]."""
        engine, level = self._ready(), state.written
        x = functional.embedding(self.token_index(tokens, level - 1), self._inputs[level])
        return engine.step(state, x, parents)

    def _scores(self, hidden: Tensor, level: int) -> Tensor:
        head = cast(nn.Linear, self.heads[level])
        return functional.log_softmax(functional.linear(hidden, head.weight, head.bias), dim=-1)

    def _ready(self) -> Engine:
        """The search engine, rebuilt after the weights have changed."""
        if self._engine is None:
            layers = [layer.weights() for layer in self.layers]
            memory = MemoryWeights(Affine.joined(self.to_memory), self.slots, _norm(self.memory_norm))
            weights = DecoderWeights(layers, _norm(self.norm), self.layers[0].itself.heads, memory=memory)
            # Input embeddings of all tokens, summed once instead of in every search.
            tables = [self.begin, *(cast(nn.Embedding, table).weight for table in self.tokens)]
            self._inputs = [(table + self.levels.weight[at]).detach() for at, table in enumerate(tables)]
            self._engine = engine_for(weights, name=self.engine_name)
        return self._engine


class Attention(nn.Module):
    """Multi-head attention with a key-value cache."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        """[..., n, width] -> [..., heads, n, head_width]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.key_value(x).chunk(2, dim=-1)
        return self.split(keys), self.split(values)

    def attend(
        self, x: Tensor, keys: Tensor, values: Tensor, causal: bool = False, seen: Tensor | None = None
    ) -> Tensor:
        query = self.split(self.query(x))
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen, is_causal=causal)
        return self.out(mixed.transpose(-2, -3).flatten(-2))

    def scaled_query(self) -> Affine:
        """The query projection, with the attention scale folded in."""
        scale = (len(self.query.weight) / self.heads) ** -0.5
        return Affine(self.query.weight.detach() * scale, self.query.bias.detach() * scale)


class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory, feed-forward; each after its own layer norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.self_norm, self.cross_norm, self.feed_norm = (nn.LayerNorm(width) for _ in range(3))
        self.itself = Attention(width, heads)
        self.cross = Attention(width, heads)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, seen: Tensor | None = None) -> Tensor:
        normed = self.self_norm(x)
        x = x + self.dropout(self.itself.attend(normed, *self.itself.keys_values(normed), causal=True))
        x = x + self.dropout(self.cross.attend(self.cross_norm(x), *self.cross.keys_values(memory), seen=seen))
        return x + self.dropout(self.feed(self.feed_norm(x)))

    def weights(self) -> tuple[SelfAttentionWeights, CrossAttentionWeights, FeedForwardWeights]:
        """The layer's weights for a search engine."""
        query, rest = self.itself.scaled_query(), Affine.joined(self.itself.key_value)
        assert query.bias is not None and rest.bias is not None
        qkv = Affine(torch.cat([query.weight, rest.weight]), torch.cat([query.bias, rest.bias]))
        own = SelfAttentionWeights(_norm(self.self_norm), qkv, Affine.joined(self.itself.out))
        cross = CrossAttentionWeights(
            _norm(self.cross_norm),
            self.cross.scaled_query(),
            Affine.joined(self.cross.key_value),
            Affine.joined(self.cross.out),
        )
        up, down = Affine.joined(self.feed[0]), Affine.joined(self.feed[2])
        return own, cross, FeedForwardWeights(_norm(self.feed_norm), up, down, "gelu")


def _norm(module: nn.LayerNorm) -> Norm:
    return Norm("layer", module.weight.detach(), module.bias.detach(), module.eps)
