"""Our own code writer: from a query's vector to the tokens of a code, level by level.

A pre-norm transformer decoder whose cross-attention reads `memory_slots` vectors made from the query's vector,
with one output head per level. Small enough to train on a CPU in minutes, because the encoder's vectors are
computed once and kept. For search it speaks the two verbs `start` and `advance`; the cross-attention's keys and
values are held once per query, not once per beam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.errors import BadSetting


@dataclass
class DecoderState:
    """What `advance` needs to go on: per layer the keys and values of tokens so far (per beam) and of the memory
    (per query), and the number of tokens written."""

    memory: list[tuple[Tensor, Tensor]]  # each [B, heads, slots, head_width]
    past: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # each [B, beams, heads, written, head_width]
    written: int = 0


class CodeWriter(nn.Module):
    """Writes codes of `widths` (tokens per level) for queries given as vectors of `input_dim`."""

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
    ) -> None:
        super().__init__()
        if width % heads:
            raise BadSetting(
                f"decoder width {width} is not a multiple of {heads} heads", "Change decoder_width or decoder_heads."
            )
        self.widths = tuple(int(w) for w in widths)
        self.with_end = with_end
        self.slots = memory_slots
        outputs = [w + 1 if with_end else w for w in self.widths]  # the last output of a level means: the code ends
        self.to_memory = nn.Linear(input_dim, memory_slots * width)
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

    @property
    def length(self) -> int:
        return len(self.widths)

    def token_index(self, tokens: Tensor, level: int) -> Tensor:
        """Tokens as the model numbers them: END (-1) is the level's last output."""
        return torch.where(tokens < 0, self.widths[level], tokens) if self.with_end else tokens

    def memory(self, queries: Tensor) -> Tensor:
        """[B, input_dim] -> [B, slots, width]."""
        return self.memory_norm(self.to_memory(queries).unflatten(-1, (self.slots, -1)))

    def forward(self, queries: Tensor, codes: Tensor) -> list[Tensor]:
        """Teacher forcing: logits of every level, each [B, outputs of the level], given the true tokens before it."""
        states = self.hidden(queries, codes)
        return [head(states[:, level]) for level, head in enumerate(self.heads)]

    def hidden(self, queries: Tensor, codes: Tensor) -> Tensor:
        """Decoder states [B, L, width] under teacher forcing."""
        memory = self.memory(queries)
        before = [self.begin.expand(len(queries), -1)]
        before += [table(self.token_index(codes[:, level], level)) for level, table in enumerate(self.tokens)]
        x = torch.stack(before, dim=1) + self.levels.weight
        for layer in self.layers:
            x = layer(x, memory)
        return self.norm(x)

    # The two verbs of search.

    def start(self, queries: Tensor) -> tuple[DecoderState, Tensor]:
        """Read the queries. Returns the state and the log-probabilities of the first level, [B, 1, outputs]."""
        memory = self.memory(queries)
        state = DecoderState([layer.cross.keys_values(memory) for layer in self.layers])
        x = (self.begin + self.levels.weight[0]).expand(len(queries), 1, -1)
        return state, self._step(state, x)

    def advance(self, state: DecoderState, parents: Tensor, tokens: Tensor) -> Tensor:
        """Write one token on each beam and give the next level's log-probabilities, [B, beams, outputs].

        `parents` [B, beams] says which earlier beam each new beam continues; `tokens` [B, beams] what it writes.
        """
        rows = torch.arange(len(parents), device=parents.device)[:, None]
        state.past = [(keys[rows, parents], values[rows, parents]) for keys, values in state.past]
        level = state.written
        x = self.tokens[level - 1](self.token_index(tokens, level - 1)) + self.levels.weight[level]
        return self._step(state, x)

    def _step(self, state: DecoderState, x: Tensor) -> Tensor:
        level = state.written
        past: list[tuple[Tensor, Tensor] | None] = list(state.past) or [None] * len(self.layers)
        state.past = []
        for layer, before, memory in zip(self.layers, past, state.memory, strict=True):
            x, kept = layer.step(x, before, memory)
            state.past.append(kept)
        state.written += 1
        return functional.log_softmax(self.heads[level](self.norm(x)), dim=-1)


class Attention(nn.Module):
    """Multi-head attention with keys and values that can be computed once and kept."""

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

    def attend(self, x: Tensor, keys: Tensor, values: Tensor, causal: bool = False) -> Tensor:
        mixed = functional.scaled_dot_product_attention(self.split(self.query(x)), keys, values, is_causal=causal)
        return self.out(mixed.transpose(-2, -3).flatten(-2))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory, feed-forward; each after its own layer norm."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.self_norm, self.cross_norm, self.feed_norm = (nn.LayerNorm(width) for _ in range(3))
        self.itself = Attention(width, heads)
        self.cross = Attention(width, heads)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        normed = self.self_norm(x)
        x = x + self.dropout(self.itself.attend(normed, *self.itself.keys_values(normed), causal=True))
        x = x + self.dropout(self.cross.attend(self.cross_norm(x), *self.cross.keys_values(memory)))
        return x + self.dropout(self.feed(self.feed_norm(x)))

    def step(
        self, x: Tensor, past: tuple[Tensor, Tensor] | None, memory: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One token per beam, x [B, beams, width], after the `past` of each beam."""
        alone = self.self_norm(x).unsqueeze(-2)  # [B, beams, 1, width]: beams do not see one another
        keys, values = self.itself.keys_values(alone)
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=-2), torch.cat([past[1], values], dim=-2)
        x = x + self.itself.attend(alone, keys, values).squeeze(-2)
        # Here the beams stand where the tokens of a sequence stood: all of them read the one memory of their query.
        x = x + self.cross.attend(self.cross_norm(x), *memory)
        return x + self.feed(self.feed_norm(x)), (keys, values)
