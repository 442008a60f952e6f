"""BM25, the lexical baseline: scores as the bm25s library has them, over postings that take new documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting
from callslip.index.retriever import Found, Retriever
from callslip.search.nearest import best_rows
from callslip.search.postings import Postings
from callslip.settings import check_range
from callslip.storage.rows import Parts

WORDS = "words"
SCORED_WORDS = "bm25"
"""Words as earlier versions saved them: with scores, which a later document would change."""


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
        self._words = self._new_words()

    def _new_words(self) -> Postings:
        s = self.settings
        return Postings(k1=s.k1, b=s.b, formula=s.formula, language=s.language, stopwords=s.stopwords)

    def build(self, corpus: Corpus) -> None:
        self._words = self._new_words().index(document.content for document in corpus)

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        found = []
        for stems in self._words.tokenize([query.text for query in queries]):
            scores = self._words.scores(stems)
            rows = best_rows(scores, k, mask)
            rows = rows[scores[rows] > 0]  # documents without a common word are not hits
            found.append(Found(rows, scores[rows], why=self._reasons(stems, rows) if explain else None))
        return found

    def _reasons(self, stems: list[str], rows: np.ndarray) -> list[dict[str, Any]]:
        """What each word of a query adds to the scores of documents."""
        parts = {stem: self._words.scores([stem])[rows].tolist() for stem in dict.fromkeys(stems)}
        return [{"words": {stem: of[at] for stem, of in parts.items() if of[at] > 0}} for at in range(len(rows))]

    def prepare(self, documents: list[Document]) -> Parts:
        return {}

    def extend(self, documents: list[Document], parts: Parts) -> None:
        self._words.extend([document.content for document in documents])

    def forget(self, rows: list[int]) -> None:
        self._words.drop(rows)

    def keep(self, rows: np.ndarray) -> None:
        self._words = self._words.kept(rows)

    def save_files(self, folder: Path) -> None:
        self._words.save(folder / WORDS)

    def load_files(self, folder: Path) -> None:
        self._words = self._new_words()
        if (folder / SCORED_WORDS).exists():
            self._words.index(document.content for document in self.documents)
        else:
            self._words.load(folder / WORDS)
