"""VectorRetriever: one vector per text, ranked by inner product. Dense retrieval, and Tied-Atomic, which is that too.

A subclass says by `query_vectors` and `document_vectors` what is compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.encoders.encoder import TextVectors
from callslip.identifiers.vector_table import VectorTable
from callslip.index.retriever import Found, Retriever
from callslip.index.settings import EncoderSettings
from callslip.search.nearest import Nearest
from callslip.settings import check_range
from callslip.storage.rows import Parts

GRAPH = "graph.faiss"


@dataclass(frozen=True)
class VectorSettings(EncoderSettings):
    """How the nearest vectors are found."""

    heading: ClassVar[str] = "Nearest vectors"

    index: Literal["auto", "exact", "faiss"] = "auto"
    """`exact` compares with every vector; `faiss` walks an HNSW graph (extra `dense`); auto is exact up to a
    million."""
    neighbours: int = 32
    """faiss: number of links per vector in the graph."""
    effort: int = 128
    """faiss: number of candidates kept while walking the graph; more is slower and closer to exact."""

    def check(self) -> None:
        check_range(self, neighbours=1, effort=1)


class VectorRetriever(Retriever):
    """Ranks documents by the inner product of their vectors with the query's."""

    search_settings = frozenset({"effort", "backend", "device"})
    settings: Any
    vectors: VectorTable
    """What is searched: one row per document."""

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.texts = TextVectors(self.settings)

    def query_vectors(self, queries: list[Query]) -> np.ndarray:
        """The vectors of queries, [n, dim]: here, the encoder's."""
        return self.texts.queries(queries)

    def document_vectors(self, documents: Iterable[Document], progress: str) -> np.ndarray:
        """The vectors of documents, [n, dim]: here, the encoder's."""
        return self.texts.documents(documents, progress)

    def index(self, vectors: np.ndarray | VectorTable, graph: Path | None = None) -> None:
        """Make these vectors the ones that are searched; `graph` is the file of their graph, if there is one."""
        self.vectors = VectorTable.of(vectors)
        s = self.settings
        self._nearest = Nearest(self.vectors, s.index, s.neighbours, s.effort, graph)

    def build(self, corpus: Corpus) -> None:
        self.index(self.document_vectors(corpus, "encoding documents"))

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        vectors = self.query_vectors(queries)
        return [Found(*one) for one in self._nearest.search(vectors, k, mask, self.settings.effort)]

    def adjusted(self, names: frozenset[str]) -> None:
        if names & {"device", "backend"}:
            self.texts.adjust(self.settings)

    def prepare(self, documents: list[Document]) -> Parts:
        return {"vectors": self.document_vectors(documents, "encoding new documents").astype(self.vectors.stored)}

    def extend(self, documents: list[Document], parts: Parts) -> None:
        self.vectors = self.vectors.extended(parts["vectors"])
        self._nearest.extend(self.vectors)

    def keep(self, rows: np.ndarray) -> None:
        self.index(self.vectors.kept(rows))

    def save_files(self, folder: Path) -> None:
        self.vectors.save(folder)
        self._nearest.save(folder / GRAPH)

    def load_files(self, folder: Path) -> None:
        self.index(VectorTable.load(folder), folder / GRAPH)
