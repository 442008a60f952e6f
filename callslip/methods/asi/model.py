"""The model of ASI: an encoder head, an indexer that assigns codes to texts, and a code writer, in one module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

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
    """Reads a vector: `codes` assigns codes to documents, `start` and `advance` write codes for queries."""

    def __init__(self, input_dim: int, widths: Sequence[int], *, indexer: nn.Module, **shape: Any) -> None:
        super().__init__()
        self.head = GaussianHead(input_dim)
        self.indexer = indexer
        self.writer = CodeWriter(input_dim, widths, **shape)

    def memory(self, vectors: Tensor) -> Tensor:
        """The dense representation of a text, which the writer reads."""
        return self.represent(vectors)

    def represent(self, vectors: Tensor) -> Tensor:
        """The dense representations of texts, unit vectors [B, D]."""
        return self.head.mean(vectors)

    def sample(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Representations sampled from their Gaussians, as unit vectors, with means and log-variances, [B, D] each."""
        mean, log_variance = self.head(vectors)
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return functional.normalize(drawn, dim=-1), mean, log_variance

    @torch.no_grad()
    def codes(self, vectors: Tensor) -> Tensor:
        """The code of each text, [B, L]."""
        training = self.training
        self.eval()
        found = self.indexer.codes(self.represent(vectors))  # type: ignore[operator]
        self.train(training)
        return found
