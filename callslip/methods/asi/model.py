"""The model of ASI: an encoder head, an indexer that assigns codes to texts, and a code writer, in one module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.decoders.histories import Read
from callslip.decoders.t5 import T5CodeWriter
from callslip.decoders.wrapped import WrappedWriter
from callslip.decoders.writer import CodeWriter

NARROW = -11.0
"""Initial log-variance of the representations: in 384 dimensions, noise of a twelfth of the unit vector. Noise 4.5
times as large (-8) made codes coarser."""


class GaussianHead(nn.Module):
    """Maps an encoder's vector to the mean and log-variance of a Gaussian, [B, D] each. The mean is a unit vector,
    initially the given one."""

    def __init__(self, dim: int, hidden: int = 512) -> None:
        super().__init__()
        self.more = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.log_variance = nn.Linear(dim, dim)
        for last, bias in ((self.more[2], 0.0), (self.log_variance, NARROW)):
            nn.init.zeros_(last.weight)  # type: ignore[arg-type]
            nn.init.constant_(last.bias, bias)  # type: ignore[arg-type]

    def mean(self, vectors: Tensor) -> Tensor:
        return functional.normalize(vectors + self.more(vectors), dim=-1)

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(vectors), self.log_variance(vectors)


class IndexedWriter(WrappedWriter):
    """Reads texts as vectors or, where the decoder reads an encoder's states, as vectors and states: `codes` assigns
    codes to documents, `start` and `advance` write codes for queries."""

    writer: CodeWriter | T5CodeWriter  # type: ignore[assignment]

    def __init__(self, head: GaussianHead, indexer: nn.Module, writer: CodeWriter | T5CodeWriter) -> None:
        super().__init__()
        self.head, self.indexer, self.writer = head, indexer, writer

    def memory(self, texts: Any) -> Any:
        """What the writer reads: the dense representation of a text, or the states of the encoder as they are."""
        if isinstance(texts, Tensor):
            return self.represent(texts)
        return texts.states if isinstance(texts, Read) else texts

    def represent(self, texts: Tensor | Read) -> Tensor:
        """The dense representations of texts, unit vectors [B, D]."""
        return self.head.mean(_vectors(texts))

    def sample(self, texts: Tensor | Read) -> tuple[Tensor, Tensor, Tensor]:
        """Representations sampled from their Gaussians, as unit vectors, with means and log-variances, [B, D] each."""
        mean, log_variance = self.head(_vectors(texts))
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return functional.normalize(drawn, dim=-1), mean, log_variance

    @torch.no_grad()
    def codes(self, texts: Tensor | Read) -> Tensor:
        """The code of each text, [B, L]."""
        training = self.training
        self.eval()
        found = self.indexer.codes(self.represent(texts))  # type: ignore[operator]
        self.train(training)
        return found


def _vectors(texts: Tensor | Read) -> Tensor:
    return texts if isinstance(texts, Tensor) else texts.vector
