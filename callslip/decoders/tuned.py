"""A code writer together with the encoder that it reads, so that the encoder can be fine-tuned.

The encoder is a copy: similarity and codes made from vectors keep using the frozen encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from callslip.decoders.histories import Read
from callslip.decoders.t5 import Tokens
from callslip.decoders.wrapped import WrappedWriter
from callslip.decoders.writer import CodeWriter, States
from callslip.encoders.encoder import TransformerEncoder, load_encoder
from callslip.encoders.pooling import PooledModel
from callslip.errors import Unsupported

Trained = Literal["top", "all"]
TOP = 2
"""Number of layers trained by `top`."""


class TunedWriter(WrappedWriter):
    """Reads `Tokens`: the encoder turns them into a vector or into states, and the writer turns these into a code."""

    def __init__(
        self,
        encoder: str,
        writer: CodeWriter,
        trained: Trained,
    ) -> None:
        super().__init__()
        loaded = load_encoder(encoder, device="cpu", backend="torch")
        if not isinstance(loaded, TransformerEncoder):
            raise Unsupported(f"the encoder {encoder!r} has no layers to train", "Use minilm, or train_encoder=none.")
        self.tokens_of, self.filler, self.longest = loaded.tokens, loaded.pad_id, loaded.max_length
        self.dim = loaded.dim
        self.encoder: PooledModel = loaded.runner.model  # type: ignore[attr-defined]
        self.writer = writer
        for part in [self.encoder] if trained == "all" else layers_of(self.encoder)[-TOP:]:
            part.requires_grad_(True)

    def tokenize(self, texts: Sequence[str], longest: int = 512) -> list[list[int]]:
        """Ids of each text, truncated to `longest` or the encoder's own limit."""
        cut = min(longest, self.longest)
        # A truncated text keeps its last id, the end of sequence.
        return [ids if len(ids) <= cut else [*ids[: cut - 1], ids[-1]] for ids in self.tokens_of(list(texts))]

    def batch(self, rows: Sequence[Sequence[int]]) -> Tokens:
        return Tokens.padded([row or [self.filler] for row in rows], self.filler)

    def memory(self, texts: Tokens) -> Tensor | States:
        """What the writer reads: the encoder's unit vectors, [B, dim], or the states of all tokens."""
        read = self.read(texts)
        return read.vector if read.states is None else read.states

    def read(self, texts: Tokens) -> Read:
        """The encoder's unit vectors and, if the writer reads them, the states of all tokens."""
        states = self.encoder.states(texts.ids, texts.mask)
        vector = functional.normalize(self.encoder.pooled(states, texts.mask)[:, : self.dim], dim=-1)
        return Read(vector, States(states, texts.mask.bool()) if self.reads == "states" else None)


def layers_of(model: nn.Module) -> Sequence[nn.Module]:
    """A transformer's layers, bottom to top: the longest list of modules in it."""
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    if not lists:
        raise Unsupported("cannot find the encoder's layers", "Use train_encoder=all.")
    return max((list(one) for one in lists), key=len)
