"""Recommender: what methods share that read histories of items and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from callslip.corpus.documents import Corpus, Query, has_histories
from callslip.corpus.logs import training_sequences
from callslip.corpus.sequences import Sequences
from callslip.errors import Unsupported
from callslip.index.retriever import Found, Retriever
from callslip.search.nearest import best_rows

BLOCK = 256
"""Histories that are scored at once: each takes a number for every item."""


class Recommender(Retriever):
    """Gives every item a score for a history."""

    @property
    def reads_histories(self) -> bool:
        return True

    def could_read(self, *, histories: bool) -> bool:
        return histories

    def learn(self, corpus: Corpus, sequences: Sequences) -> None:
        """Take from a log what scores need."""
        raise NotImplementedError

    def scores(self, histories: Sequence[np.ndarray]) -> np.ndarray:
        """A score of every item for each history, given as rows of items in order of time: [B, N]."""
        raise NotImplementedError

    def reasons(self, history: np.ndarray, rows: np.ndarray) -> list[dict[str, object]] | None:
        """Why each of these rows was found."""
        return None

    def build(self, corpus: Corpus) -> None:
        if not has_histories(corpus):
            raise Unsupported(
                f"{self.method} recommends items to users, and this corpus has none with three items or more",
                f"Fit it on a log (callslip fit LOG --items ITEMS --method {self.method} --out DIR), or use bm25.",
            )
        self.learn(corpus, training_sequences(corpus))

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        row_of, found = self.row_of(), []
        known = [np.array([row_of[i] for i in query.history if i in row_of], dtype=np.int64) for query in queries]
        for start in range(0, len(known), BLOCK):
            some = known[start : start + BLOCK]
            for history, scores in zip(some, self.scores(some), strict=True):
                rows = best_rows(scores, k, mask)
                found.append(Found(rows, scores[rows], why=self.reasons(history, rows) if explain else None))
        return found
