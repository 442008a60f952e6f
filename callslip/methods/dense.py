"""Dense retrieval: one vector per document, nearest to the query's. Exact up to a million documents."""

from __future__ import annotations

from dataclasses import dataclass

from callslip.index.vectors import VectorRetriever, VectorSettings


@dataclass(frozen=True)
class DenseSettings(VectorSettings):
    """Which encoder, and how to find the nearest vectors."""


class Dense(VectorRetriever):
    """Ranks documents by the inner product of their vectors with the query's, as the encoder gave them."""

    Settings = DenseSettings
    settings: DenseSettings
