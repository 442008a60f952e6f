"""Nearest-neighbour search: brute force, or a faiss HNSW graph for more than a million vectors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from callslip.errors import IndexCorrupt, MissingExtra
from callslip.identifiers.vector_table import VectorTable

EXACT_UP_TO = 1_000_000
WIDENED = 2048
"""Vectors of half precision that are widened at once: all of them would be read from memory twice."""
BESIDE = 16_384
"""Vectors beside a graph before they are added to it."""


class Nearest:
    """Rows of `vectors` by inner product with a query's vector, best first.

    A graph is built once, and saved. Vectors that were added since lie beside it, and are compared one by one; when
    there are many, they are added to the graph.
    """

    def __init__(
        self,
        vectors: VectorTable,
        index: Literal["auto", "exact", "faiss"] = "auto",
        neighbours: int = 32,
        effort: int = 128,
        saved: Path | None = None,
    ) -> None:
        """`neighbours` and `effort` are the graph's links per vector, and its number of candidates in construction.
        `saved` is the file of a graph of the first of these vectors; without such a file, the graph is built."""
        self.vectors = vectors
        self._index, self._neighbours, self._effort = index, neighbours, effort
        self._graph: Any = None
        self._mapped = False
        """Whether the graph is mapped from a file: nothing can be added to it then."""
        if self._wanted:
            if saved is not None and saved.exists():
                self._graph, self._mapped = _mapped_graph(saved, vectors), True
            else:
                self._graph = _graph_of(vectors, neighbours, effort)

    @property
    def exact(self) -> bool:
        return self._graph is None

    @property
    def _wanted(self) -> bool:
        """Whether there should be a graph."""
        return self._index == "faiss" or (self._index == "auto" and len(self.vectors) > EXACT_UP_TO)

    def extend(self, vectors: VectorTable) -> None:
        """Take a table that has more vectors behind the present ones."""
        self.vectors = vectors
        if self._graph is not None and len(vectors) - self._graph.ntotal > BESIDE:
            self._fold(copy=self._mapped)

    def _fold(self, copy: bool) -> None:
        """Add the vectors beside the graph to it, or to a copy that takes its place."""
        import faiss

        graph = faiss.deserialize_index(faiss.serialize_index(self._graph)) if copy else self._graph
        graph.add(np.ascontiguousarray(self.vectors[np.arange(graph.ntotal, len(self.vectors))]))
        self._graph, self._mapped = graph, False

    def save(self, path: Path) -> None:
        """Write the graph of all vectors to a file; no file if the search is exact. Searches may go on."""
        if not self._wanted:
            return
        import faiss

        if self._graph is None:
            self._graph = _graph_of(self.vectors, self._neighbours, self._effort)
        if self._graph.ntotal < len(self.vectors):
            self._fold(copy=True)
        faiss.write_index(self._graph, str(path))

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

        graph = self._graph
        known = graph.ntotal
        parameters = faiss.SearchParametersHNSW(efSearch=max(effort, k))  # type: ignore[attr-defined]
        if mask is not None:
            parameters.sel = faiss.IDSelectorBatch(np.flatnonzero(mask[:known]))
        queries = np.ascontiguousarray(queries)
        scores, rows = graph.search(queries, k, params=parameters)
        found = [(r[r >= 0], s[r >= 0]) for r, s in zip(rows, scores, strict=True)]
        if known == len(self.vectors):
            return found
        beside, allowed = self.vectors[np.arange(known, len(self.vectors))], None if mask is None else mask[known:]
        both = []
        for (near, near_scores), more in zip(found, inner_products(queries, beside), strict=True):
            later = best_rows(more, k, allowed)
            rows, scores = np.concatenate([near, known + later]), np.concatenate([near_scores, more[later]])
            order = np.lexsort((rows, -scores))[:k]
            both.append((rows[order], scores[order]))
        return both


def _graph_of(vectors: VectorTable, neighbours: int, effort: int) -> Any:
    faiss = _faiss()
    graph = faiss.IndexHNSWFlat(vectors.shape[1], neighbours, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = max(effort, 40)
    for block in vectors.blocks():
        graph.add(np.ascontiguousarray(block))
    return graph


def _mapped_graph(path: Path, vectors: VectorTable) -> Any:
    """A saved graph, mapped into memory."""
    faiss = _faiss()
    try:
        graph = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:  # faiss's own
        raise IndexCorrupt(path, f"is no graph that faiss can read ({str(error).splitlines()[0]})") from None
    fits = isinstance(graph, faiss.IndexHNSWFlat) and graph.d == vectors.shape[1] and graph.ntotal == len(vectors)
    if not fits or graph.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise IndexCorrupt(path, "is not the graph of the vectors beside it")
    links = faiss.vector_to_array(graph.hnsw.neighbors)
    if len(links) and not (int(links.min()) >= -1 and int(links.max()) < graph.ntotal):
        raise IndexCorrupt(path, "links vectors that are not there")
    return graph


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("dense search in more than a million documents", "dense") from None
    return faiss


def inner_products(queries: np.ndarray, documents: np.ndarray | VectorTable, block: int = 256) -> Iterator[np.ndarray]:
    """Yield one vector of inner products per query, computed in blocks, on an accelerator if there is one."""
    import torch

    from callslip.runtime.device import best_device

    device = best_device()
    tables = documents.parts() if isinstance(documents, VectorTable) else [documents]
    held = [_tensor(np.ascontiguousarray(table)).to(device) for table in tables]
    for start in range(0, len(queries), block):
        batch = torch.from_numpy(np.ascontiguousarray(queries[start : start + block])).to(device)
        found = [batch @ part.T for table in held for part in _widened(table)]
        yield from (found[0] if len(found) == 1 else torch.cat(found, dim=1)).cpu().numpy()


def _widened(table: Any) -> Iterator[Any]:
    """A tensor of vectors as float32: in pieces that stay in the processor's cache, if it is in half precision."""
    yield from [table] if table.dtype.itemsize == 4 else (part.float() for part in table.split(WIDENED))


def _tensor(array: np.ndarray) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # the tensor is never written to
        return torch.from_numpy(array)


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
