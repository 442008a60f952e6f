"""VectorRetriever: one vector per text, ranked by inner product. Dense retrieval, and Tied-Atomic, which is that too.

A subclass says by `project` what becomes of the encoder's vectors before they are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.index.retriever import Found, Retriever
from callslip.search.nearest import Nearest
from callslip.storage.rows import Parts

if TYPE_CHECKING:
    from callslip.encoders.encoder import Encoder

VECTORS = "vectors.npy"


@dataclass(frozen=True)
class VectorSettings:
    """Which encoder, and how to find the nearest vectors."""

    encoder: str = "minilm"
    """minilm (embedded), granite, or any Hugging Face encoder by name or path. It is not trained."""
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


class VectorRetriever(Retriever):
    """Ranks documents by the inner product of their vectors with the query's."""

    Settings = VectorSettings
    search_settings = frozenset({"effort", "backend"})
    settings: VectorSettings
    vectors: np.ndarray
    """What is searched: one row per document, as `project` gave it."""

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self._encoder: Encoder | None = None

    @property
    def encoder(self) -> Encoder:
        if self._encoder is None:
            from callslip.encoders.encoder import load_encoder

            s = self.settings
            device = getattr(s, "device", None)
            self._encoder = load_encoder(s.encoder, device=device, max_length=s.max_length, backend=s.backend)
        return self._encoder

    def encode(self, texts: list[str], progress: str) -> np.ndarray:
        """The encoder's vectors, each text encoded once, ever."""
        from callslip.encoders.vector_cache import cached_encode

        return cached_encode(self.encoder, texts, progress=progress)

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """What is compared, given the encoder's vectors of queries or documents: here, those themselves."""
        return vectors

    def index(self, vectors: np.ndarray) -> None:
        """Make these vectors the ones that are searched."""
        self.vectors = vectors
        s = self.settings
        self._nearest = Nearest(vectors, s.index, s.neighbours, s.effort)

    def _fit(self, corpus: Corpus) -> None:
        self.index(self.project(self.encode([document.content for document in corpus], "encoding documents")))

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        vectors = self.project(self.encoder.encode([query.text for query in queries]))
        return [Found(*one) for one in self._nearest.search(vectors, k, mask, self.settings.effort)]

    def _adjusted(self, names: frozenset[str]) -> None:
        if names & {"device", "backend"}:
            self._encoder = None

    def _prepare(self, documents: list[Document]) -> Parts:
        texts = [document.content for document in documents]
        return {"vectors": self.project(self.encode(texts, "encoding new documents"))}

    def _extend(self, documents: list[Document], parts: Parts) -> None:
        self.index(np.concatenate([self.vectors, parts["vectors"]]))

    def _keep(self, rows: np.ndarray) -> None:
        self.index(self.vectors[rows])

    def _save(self, folder: Path) -> None:
        np.save(folder / VECTORS, self.vectors, allow_pickle=False)

    def _load(self, folder: Path) -> None:
        self.index(np.load(folder / VECTORS, allow_pickle=False))
