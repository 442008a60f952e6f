"""Nearest-neighbour search: brute force, or a faiss HNSW graph for more than a million vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from callslip.errors import MissingExtra

EXACT_UP_TO = 1_000_000


class Nearest:
    """Rows of `vectors` by inner product with a query's vector, best first."""

    def __init__(
        self,
        vectors: np.ndarray,
        index: Literal["auto", "exact", "faiss"] = "auto",
        neighbours: int = 32,
        effort: int = 128,
    ) -> None:
        """`neighbours` and `effort` are the graph's links per vector, and its number of candidates in construction."""
        self.vectors = vectors
        self._graph: Any = None
        if index == "faiss" or (index == "auto" and len(vectors) > EXACT_UP_TO):
            self._graph = _graph_of(vectors, neighbours, effort)

    @property
    def exact(self) -> bool:
        return self._graph is None

    def search(
        self, queries: np.ndarray, k: int, mask: np.ndarray | None = None, effort: int = 128
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows and inner products of the k best for each query; rows outside the mask are never returned.

        `effort` is the number of candidates in a search of the graph.
        """
        if self._graph is not None:
            return self._walk(queries, k, mask, effort)
        found = []
        for scores in inner_products(queries, self.vectors):
            rows = best_rows(scores, k, mask)
            found.append((rows, scores[rows]))
        return found

    def _walk(
        self, queries: np.ndarray, k: int, mask: np.ndarray | None, effort: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        import faiss

        parameters = faiss.SearchParametersHNSW(efSearch=max(effort, k))  # type: ignore[attr-defined]
        if mask is not None:
            parameters.sel = faiss.IDSelectorBatch(np.flatnonzero(mask))
        scores, rows = self._graph.search(np.ascontiguousarray(queries), k, params=parameters)
        return [(r[r >= 0], s[r >= 0]) for r, s in zip(rows, scores, strict=True)]


def _graph_of(vectors: np.ndarray, neighbours: int, effort: int) -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("dense search in more than a million documents", "dense") from None
    graph = faiss.IndexHNSWFlat(vectors.shape[1], neighbours, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = max(effort, 40)
    graph.add(np.ascontiguousarray(vectors))
    return graph


def inner_products(queries: np.ndarray, documents: np.ndarray, block: int = 256) -> Iterator[np.ndarray]:
    """Yield one vector of inner products per query, computed in blocks, on an accelerator if there is one."""
    import torch

    from callslip.runtime.device import best_device

    device = best_device()
    table = torch.from_numpy(np.ascontiguousarray(documents)).to(device)
    for start in range(0, len(queries), block):
        batch = torch.from_numpy(np.ascontiguousarray(queries[start : start + block])).to(device)
        yield from (batch @ table.T).cpu().numpy()


def best_rows(scores: np.ndarray, k: int, mask: np.ndarray | None = None) -> np.ndarray:
    """The k best rows of one score vector, best first, ties by row; masked rows are never returned."""
    rows = np.arange(len(scores)) if mask is None else np.flatnonzero(mask)
    values = scores[rows]
    if k < len(rows):
        # All rows above the k-th value, then its ties in row order; argpartition alone would pick arbitrary ties.
        threshold = np.partition(values, len(values) - k)[len(values) - k]
        above = np.flatnonzero(values > threshold)
        ties = np.flatnonzero(values == threshold)[: k - len(above)]
        chosen = np.concatenate([above, ties])
    else:
        chosen = np.arange(len(rows))
    order = np.lexsort((rows[chosen], -values[chosen]))
    return rows[chosen][order]
