"""The model of GenRet: a code writer whose states and codebooks live in the space of the texts' own vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional

from callslip.model.seq2seq import CodeWriter, States
from callslip.model.weights import State


@dataclass
class ResidualState:
    """The decoder's state, and the queries' vectors, [B, 1, input_dim]."""

    decoder: State
    vectors: Tensor

    @property
    def written(self) -> int:
        return self.decoder.written

    def fork(self) -> ResidualState:
        return ResidualState(self.decoder.fork(), self.vectors)


class CodebookWriter(CodeWriter):
    """A code writer whose heads are codebooks: a level's logits are the products of the state with their rows.

    A state is the text's own vector and what the decoder adds to it, which is nothing at first: training sets out from
    the encoder's idea of what is alike. All states have the same length D^¼. Free, their products would grow until
    every softmax is certain of itself, and tokens would be exchanged in every batch.
    """

    def __init__(self, input_dim: int, widths: Sequence[int], **shape: Any) -> None:
        super().__init__(input_dim, widths, **shape)
        self.heads = nn.ModuleList(nn.Linear(input_dim, head.out_features, bias=False) for head in self.heads)  # type: ignore[arg-type]
        self.out = nn.Linear(len(self.begin), input_dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.scale = input_dim**0.25

    def added(self, vectors: Tensor, hidden: Tensor) -> Tensor:
        """States [B, n, input_dim] of texts [B, 1, input_dim], given the decoder's [B, n, width]."""
        return functional.normalize(vectors + self.out(hidden), dim=-1) * self.scale

    def hidden(self, queries: Tensor | States, codes: Tensor) -> Tensor:
        return self.added(cast(Tensor, queries).unsqueeze(1), super().hidden(queries, codes))

    def start(self, queries: Tensor | States) -> tuple[Any, Tensor]:
        decoder, hidden = self.read(queries)
        state = ResidualState(decoder, cast(Tensor, queries).unsqueeze(1))
        return state, self._scores(self.added(state.vectors, hidden), 0)

    def advance(self, state: Any, parents: Tensor, tokens: Tensor) -> Tensor:
        level = state.written
        return self._scores(self.added(state.vectors, self.step(state.decoder, parents, tokens)), level)
