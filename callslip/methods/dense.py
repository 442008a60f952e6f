"""Dense retrieval: one vector per document, nearest to the query's. Exact up to a million documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import MissingExtra
from callslip.retriever import Found, Retriever, best_rows

if TYPE_CHECKING:
    from callslip.model.encoders import Encoder

EXACT_UP_TO = 1_000_000
VECTORS = "vectors.npy"


@dataclass(frozen=True)
class DenseSettings:
    """Which encoder, and how to find the nearest vectors."""

    encoder: str = "minilm"
    """minilm (embedded), granite, or any Hugging Face encoder by name or path."""
    max_length: int | None = None
    """Word pieces read of each text; none is the encoder's own limit."""
    backend: Literal["auto", "torch", "onnx"] = "auto"
    """How the encoder runs: torch in float32, onnx in int8 (extra `onnx`); auto takes int8 on a CPU where it can."""
    index: Literal["auto", "exact", "faiss"] = "auto"
    """exact compares with every vector; faiss walks a graph (extra `dense`); auto is exact up to a million."""
    neighbours: int = 32
    """faiss: links per vector in the graph."""
    effort: int = 128
    """faiss: candidates kept while walking the graph; more is slower and nearer to exact."""


class Dense(Retriever):
    """Ranks documents by the inner product of their vectors with the query's."""

    Settings = DenseSettings
    search_settings = frozenset({"effort", "backend"})
    settings: DenseSettings

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self._encoder: Encoder | None = None
        self._faiss: Any = None

    @property
    def encoder(self) -> Encoder:
        if self._encoder is None:
            from callslip.model.encoders import load_encoder

            s = self.settings
            self._encoder = load_encoder(s.encoder, max_length=s.max_length, backend=s.backend)
        return self._encoder

    def _fit(self, corpus: Corpus) -> None:
        self.vectors = self._encode([document.content for document in corpus])
        self._build()

    def _encode(self, texts: list[str]) -> np.ndarray:
        from callslip.model.features import cached_encode

        return cached_encode(self.encoder, texts, progress="encoding documents")

    def _build(self) -> None:
        s = self.settings
        self._faiss = None
        if s.index == "faiss" or (s.index == "auto" and len(self.vectors) > EXACT_UP_TO):
            try:
                import faiss
            except ImportError:
                raise MissingExtra("dense search in more than a million documents", "dense") from None
            self._faiss = faiss.IndexHNSWFlat(self.vectors.shape[1], s.neighbours, faiss.METRIC_INNER_PRODUCT)
            self._faiss.hnsw.efConstruction = max(s.effort, 40)
            self._faiss.add(np.ascontiguousarray(self.vectors))

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        vectors = self.encoder.encode([query.text for query in queries])
        if self._faiss is not None:
            return self._search_faiss(vectors, k, mask)
        return [
            Found(rows, scores[rows])
            for scores in exact_scores(vectors, self.vectors)
            for rows in (best_rows(scores, k, mask),)
        ]

    def _search_faiss(self, vectors: np.ndarray, k: int, mask: np.ndarray | None) -> list[Found]:
        import faiss

        parameters = faiss.SearchParametersHNSW(  # type: ignore[attr-defined]
            efSearch=max(self.settings.effort, k)
        )
        if mask is not None:
            parameters.sel = faiss.IDSelectorBatch(np.flatnonzero(mask))
        scores, rows = self._faiss.search(np.ascontiguousarray(vectors), k, params=parameters)
        return [Found(r[r >= 0], s[r >= 0]) for r, s in zip(rows, scores, strict=True)]

    def _add(self, documents: list[Document]) -> None:
        self.vectors = np.concatenate([self.vectors, self._encode([d.content for d in documents])])
        self._build()

    def _save(self, folder: Path) -> None:
        np.save(folder / VECTORS, self.vectors, allow_pickle=False)

    def _load(self, folder: Path) -> None:
        self.vectors = np.load(folder / VECTORS, allow_pickle=False)
        self._build()


def exact_scores(queries: np.ndarray, documents: np.ndarray, block: int = 256) -> Any:
    """Yield one vector of inner products per query. On an accelerator if there is one, a block at a time."""
    import torch

    from callslip.device import best_device

    device = best_device()
    table = torch.from_numpy(np.ascontiguousarray(documents)).to(device)
    for start in range(0, len(queries), block):
        batch = torch.from_numpy(np.ascontiguousarray(queries[start : start + block])).to(device)
        yield from (batch @ table.T).cpu().numpy()
