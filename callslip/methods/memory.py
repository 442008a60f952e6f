"""Memory, a control: dense retrieval that knows by heart which judged train queries each document answered.

It learns nothing beyond that. A method that is trained on judged queries has to beat it, or its gain over dense
retrieval is that of a lookup.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.encoders.encoder import TextVectors
from callslip.errors import BadSetting
from callslip.identifiers.vector_table import VectorTable
from callslip.index.retriever import Found, Retriever
from callslip.index.settings import EncoderSettings
from callslip.search.nearest import best_rows, inner_products
from callslip.storage.rows import Parts

ASKED, ANSWERS, TEXTS = "asked.npy", "answers.npy", "asked.json"


@dataclass(frozen=True)
class MemorySettings(EncoderSettings):
    """How far earlier queries are trusted."""

    heading: ClassVar[str] = "Memory"

    margin: float = 0.0
    """Similarity that an earlier query loses against the document's own text."""

    def check(self) -> None:
        if not math.isfinite(self.margin):
            raise BadSetting(f"setting 'margin' is {self.margin}", "Use a finite number.")


class Memory(Retriever):
    """Scores a document by the nearest of its own text and of the judged train queries that it answered."""

    Settings = MemorySettings
    search_settings = frozenset({"margin", "backend", "device"})
    settings: MemorySettings
    vectors: VectorTable
    """The vector of every document, by row."""
    asked: np.ndarray
    """The vector of every remembered query."""
    answers: np.ndarray
    """Pairs of a remembered query and the row of a document that answered it, [pairs, 2]."""
    asked_texts: list[str]

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.texts = TextVectors(self.settings)

    def build(self, corpus: Corpus) -> None:
        self.vectors = VectorTable.of(self.texts.documents(corpus, "encoding documents"))
        queries, judgements = corpus.split("train")
        row_of = corpus.rows()
        known = {
            qid: [row_of[doc_id] for doc_id, grade in judgements[qid].items() if grade > 0 and doc_id in row_of]
            for qid, query in queries.items()
            if query.text
        }
        known = {qid: rows for qid, rows in known.items() if rows}
        self.asked_texts = [queries[qid].text for qid in known]
        pairs = [(number, row) for number, rows in enumerate(known.values()) for row in rows]
        self.answers = np.asarray(pairs, np.int64).reshape(-1, 2)
        self.asked = np.zeros((0, self.vectors.shape[1]), np.float32)
        if self.asked_texts:
            self.asked = self.texts.training(self.asked_texts)

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        vectors = self.texts.queries(queries)
        found = []
        both = zip(inner_products(vectors, self.vectors), inner_products(vectors, self.asked), strict=True)
        for own, earlier in both:
            scores = remembered_scores(own, earlier, self.answers, self.settings.margin)
            rows = best_rows(scores, k, mask)
            why = [self.reason(int(row), own, earlier) for row in rows] if explain else None
            found.append(Found(rows, scores[rows], why=why))
        return found

    def reason(self, row: int, own: np.ndarray, earlier: np.ndarray) -> dict[str, Any]:
        """Similarity of the document's text, and the earlier query that is nearer, if one is."""
        why: dict[str, Any] = {"similarity": float(own[row])}
        numbers = self.answers[self.answers[:, 1] == row, 0]
        if len(numbers):
            nearest = int(numbers[np.argmax(earlier[numbers])])
            if earlier[nearest] - self.settings.margin > own[row]:
                why |= {"earlier_query": self.asked_texts[nearest], "earlier_similarity": float(earlier[nearest])}
        return why

    def adjusted(self, names: frozenset[str]) -> None:
        if names & {"device", "backend"}:
            self.texts.adjust(self.settings)

    # Changes, and the saved folder.

    def prepare(self, documents: list[Document]) -> Parts:
        return {"vectors": self.texts.documents(documents, "encoding new documents").astype(self.vectors.stored)}

    def extend(self, documents: list[Document], parts: Parts) -> None:
        self.vectors = self.vectors.extended(parts["vectors"])

    def keep(self, rows: np.ndarray) -> None:
        number = np.full(len(self.vectors), -1, np.int64)
        number[rows] = np.arange(len(rows))
        self.vectors = self.vectors.kept(rows)
        answers = np.stack([self.answers[:, 0], number[self.answers[:, 1]]], axis=1)
        answers = answers[answers[:, 1] >= 0]
        left, answers[:, 0] = np.unique(answers[:, 0], return_inverse=True)  # queries without an answer are forgotten
        self.answers, self.asked = answers, self.asked[left]
        self.asked_texts = [self.asked_texts[one] for one in left.tolist()]

    def save_files(self, folder: Path) -> None:
        self.vectors.save(folder)
        for name, array in ((ASKED, self.asked), (ANSWERS, self.answers)):
            np.save(folder / name, array, allow_pickle=False)
        (folder / TEXTS).write_text(json.dumps(self.asked_texts, ensure_ascii=False) + "\n", encoding="utf-8")

    def load_files(self, folder: Path) -> None:
        self.vectors = VectorTable.load(folder)
        self.asked, self.answers = (np.load(folder / name, allow_pickle=False) for name in (ASKED, ANSWERS))
        self.asked_texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))


def remembered_scores(own: np.ndarray, earlier: np.ndarray, answers: np.ndarray, margin: float) -> np.ndarray:
    """The scores of documents: the maximum of their own similarity [N] and, over the pairs [P, 2] of an earlier query
    and a row that answered it, of the query's similarity [M] less the margin."""
    scores = own.copy()
    np.maximum.at(scores, answers[:, 1], (earlier[answers[:, 0]] - margin).astype(scores.dtype))
    return scores
