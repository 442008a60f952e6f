"""BM25: the lexical baseline, by the bm25s library."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, UnknownName
from callslip.retriever import Found, Retriever, best_rows
from callslip.settings import check_range


@dataclass(frozen=True)
class BM25Settings:
    """How words are counted and weighed."""

    k1: float = 0.9
    """How soon repeated words stop counting. 0.9 with b=0.4 is the habit of Lucene's users, 1.5 with 0.75 of others."""
    b: float = 0.4
    """How much long documents are held back, from 0 (not at all) to 1."""
    formula: Literal["lucene", "robertson", "atire", "bm25l", "bm25+"] = "lucene"
    """The variant of the formula."""
    language: str = "english"
    """Snowball stemmer; `none` leaves words as they are."""
    stopwords: str = "en"
    """List of words to ignore, as bm25s names it; `none` keeps them all."""

    def __post_init__(self) -> None:
        check_range(self, k1=0, b=0)
        if self.b > 1:
            raise BadSetting(f"setting 'b' is {self.b}", "Use 0 to 1.")


class BM25(Retriever):
    """Ranks documents by the words they share with the query."""

    Settings = BM25Settings
    settings: BM25Settings

    def _fit(self, corpus: Corpus) -> None:
        self._index([document.content for document in corpus])

    def _index(self, texts: list[str]) -> None:
        import bm25s

        s = self.settings
        self._bm25 = bm25s.BM25(k1=s.k1, b=s.b, method=s.formula)
        tokens = self._tokenize(texts)
        # bm25s cannot index a corpus without a single word; one that nobody can type stands in.
        if not any(tokens):
            tokens = [["\x00"], *tokens[1:]]
        self._bm25.index(tokens, show_progress=False)

    def _tokenize(self, texts: list[str]) -> list[list[str]]:
        import bm25s
        import Stemmer

        logging.getLogger("bm25s").setLevel(logging.WARNING)
        s = self.settings
        if s.language != "none" and s.language not in Stemmer.algorithms():
            raise UnknownName("stemmer language", s.language, ["none", *Stemmer.algorithms()])
        try:
            return bm25s.tokenize(
                texts,
                stopwords=None if s.stopwords == "none" else s.stopwords,
                stemmer=None if s.language == "none" else Stemmer.Stemmer(s.language),
                return_ids=False,
                show_progress=False,
            )
        except ValueError as error:
            raise BadSetting(f"setting 'stopwords': {error}", "Use a language of bm25s, such as en, or none.") from None

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        found = []
        tokenized = self._tokenize([query.text for query in queries])
        for tokens in tokenized:
            known = [token for token in tokens if token in self._bm25.vocab_dict]
            scores = self._bm25.get_scores(known) if known else np.zeros(self._bm25.scores["num_docs"], np.float32)
            rows = best_rows(scores, k, mask)
            rows = rows[scores[rows] > 0]  # no word in common is not a hit
            why = [self._explain(known, row) for row in rows] if explain else None
            found.append(Found(rows, scores[rows], why=why))
        return found

    def _explain(self, tokens: list[str], row: int) -> dict[str, Any]:
        """What each word of the query adds to this document's score."""
        parts = {token: float(self._bm25.get_scores([token])[row]) for token in dict.fromkeys(tokens)}
        return {"words": {token: part for token, part in parts.items() if part > 0}}

    def _add(self, documents: list[Document]) -> None:
        # Word statistics change with every document, so the index is made anew; that is quick.
        self._index([d.content for d in (*self.documents, *documents)])

    def _save(self, folder: Path) -> None:
        self._bm25.save(str(folder / "bm25"), show_progress=False)

    def _load(self, folder: Path) -> None:
        import bm25s

        self._bm25 = bm25s.BM25.load(str(folder / "bm25"), mmap=True, show_progress=False)
