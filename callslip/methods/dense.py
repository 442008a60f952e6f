"""Dense retrieval: one vector per document, nearest to the query's. Exact up to a million documents."""

from __future__ import annotations

from callslip.index.vectors import VectorRetriever, VectorSettings


class Dense(VectorRetriever):
    """Ranks documents by the inner product of their vectors with the query's, as the encoder gave them."""

    Settings = VectorSettings
    learns_from_queries = False
