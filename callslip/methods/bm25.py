"""BM25, the lexical baseline, with the bm25s library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting
from callslip.index.retriever import Found, Retriever
from callslip.search.bm25 import WordIndex
from callslip.search.nearest import best_rows
from callslip.settings import check_range
from callslip.storage.rows import Parts


@dataclass(frozen=True)
class BM25Settings:
    """Term weighting and tokenisation."""

    k1: float = 0.9
    """Term-frequency saturation. 0.9 with b=0.4 is usual with Lucene, 1.5 with b=0.75 elsewhere."""
    b: float = 0.4
    """Document-length normalisation, from 0 (none) to 1 (full)."""
    formula: Literal["lucene", "robertson", "atire", "bm25l", "bm25+"] = "lucene"
    """Variant of the BM25 formula."""
    language: str = "english"
    """Language of the Snowball stemmer; `none` for no stemming."""
    stopwords: str = "en"
    """Language of the stop word list of bm25s, such as `en`; `none` for no stop words."""

    def __post_init__(self) -> None:
        check_range(self, k1=0, b=0)
        if self.b > 1:
            raise BadSetting(f"setting 'b' is {self.b}", "Use 0 to 1.")


class BM25(Retriever):
    """Ranks documents by the words they share with the query."""

    Settings = BM25Settings
    learns_from_queries = False
    settings: BM25Settings

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        s = self.settings
        self._words = WordIndex(k1=s.k1, b=s.b, formula=s.formula, language=s.language, stopwords=s.stopwords)

    def build(self, corpus: Corpus) -> None:
        self._words.index([document.content for document in corpus])

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        found = []
        for tokens in self._words.tokenize([query.text for query in queries]):
            known = self._words.known(tokens)
            scores = self._words.scores(known)
            rows = best_rows(scores, k, mask)
            rows = rows[scores[rows] > 0]  # documents without a common word are not hits
            why = [self._explain(known, row) for row in rows] if explain else None
            found.append(Found(rows, scores[rows], why=why))
        return found

    def _explain(self, tokens: list[str], row: int) -> dict[str, Any]:
        """Contribution of each query word to the document's score."""
        parts = {token: float(self._words.scores([token])[row]) for token in dict.fromkeys(tokens)}
        return {"words": {token: part for token, part in parts.items() if part > 0}}

    def prepare(self, documents: list[Document]) -> Parts:
        return {}

    def extend(self, documents: list[Document], parts: Parts) -> None:
        # Word statistics change with every document, so the index is rebuilt, which is fast.
        self._words.index([d.content for d in (*self.documents, *documents)])

    def keep(self, rows: np.ndarray) -> None:
        kept = np.zeros(len(self.documents), dtype=bool)
        kept[rows] = True
        self._words.index([d.content for d, keep in zip(self.documents, kept, strict=True) if keep])

    def save_files(self, folder: Path) -> None:
        self._words.save(folder / "bm25")

    def load_files(self, folder: Path) -> None:
        self._words.load(folder / "bm25")
