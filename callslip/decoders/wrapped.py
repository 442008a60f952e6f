"""A code writer behind something that reads queries for it: a tuned encoder, a history encoder, an indexer's head."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from callslip.decoders.engines.weights import State
from callslip.decoders.writer import CodeWriter, States


class WrappedWriter(nn.Module):
    """Gives its `writer` the memory that it makes of queries, and is a writer of codes itself."""

    writer: CodeWriter

    def memory(self, queries: Any) -> Tensor | States:
        """What the writer reads of queries: their vectors [B, dim], or states."""
        raise NotImplementedError

    @property
    def widths(self) -> tuple[int, ...]:
        return self.writer.widths

    @property
    def with_end(self) -> bool:
        return self.writer.with_end

    @property
    def length(self) -> int:
        return self.writer.length

    @property
    def heads(self) -> nn.ModuleList:
        return self.writer.heads

    def forward(self, queries: Any, codes: Tensor) -> list[Tensor]:
        return self.writer(self.memory(queries), codes)

    def hidden(self, queries: Any, codes: Tensor) -> Tensor:
        return self.writer.hidden(self.memory(queries), codes)

    def start(self, queries: Any) -> tuple[State, Tensor]:
        return self.writer.start(self.memory(queries))

    def advance(self, state: Any, parents: Tensor, tokens: Tensor) -> Tensor:
        return self.writer.advance(state, parents, tokens)
