"""A code writer behind a module that reads the queries: a tuned encoder, a history encoder, an indexer's head."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from callslip.decoders.engines.engine import State
from callslip.decoders.writer import CodeWriter, States


class WrappedWriter(nn.Module):
    """Computes the memory that its `writer` attends to, and has the interface of a code writer itself."""

    writer: CodeWriter

    def memory(self, queries: Any) -> Tensor | States:
        """The representation of the queries that the writer reads: vectors [B, dim], or states."""
        raise NotImplementedError

    @property
    def widths(self) -> tuple[int, ...]:
        return self.writer.widths

    @property
    def reads(self) -> Literal["vector", "states"]:
        return self.writer.reads

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
