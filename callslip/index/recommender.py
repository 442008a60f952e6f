"""Recommender: what methods share that read histories of items and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from callslip.corpus.documents import Corpus, Query, has_histories
from callslip.corpus.logs import training_sequences
from callslip.corpus.sequences import COUNTED, Sequences, Users
from callslip.errors import Unsupported
from callslip.index.retriever import Found, Learned, Retriever
from callslip.search.nearest import best_rows
from callslip.storage.rows import missing

BLOCK = 256
"""Histories that are scored at once: each takes a number for every item."""


class Recommender(Retriever):
    """Gives every item a score for a history.

    A method that only counts names what it counts (`evidence`) and counts it again (`count`) when interactions are
    learned.
    """

    evidence: ClassVar[str | None] = None
    """The attribute that holds what was counted of a log; None for a method that cannot learn without a fit."""
    counted: Users = Users()
    """The items of each user that were counted."""

    @property
    def reads_histories(self) -> bool:
        return True

    def could_read(self, *, histories: bool) -> bool:
        return histories

    def learn(self, corpus: Corpus, sequences: Sequences) -> None:
        """Take from a log what scores need."""
        assert self.evidence is not None
        setattr(self, self.evidence, self.count(sequences, len(corpus)))

    def count(self, sequences: Sequences, items: int) -> Any:
        """The evidence of a log of so many items."""
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
        sequences, names = training_sequences(corpus), corpus.doc_ids
        self.learn(corpus, sequences)
        if self.evidence is not None:
            each = zip(sequences.users, sequences.each(), strict=True)
            self.counted = Users.named({user: [names[row] for row in rows] for user, rows in each})

    def learn_answers(self, answers: Mapping[str, Sequence[str]]) -> Learned:
        """Count further interactions: of each user, known or new, items in order of time. What was counted before
        stays; the items that were held out when fitting are counted if they are among the answers."""
        if self.evidence is None:
            raise Unsupported(
                f"{self.method} is trained, so it cannot learn interactions without a fit",
                "Fit again with them, or use a method that counts: tied-log, seqrules, transitions or item-knn.",
            )
        if not answers:
            return Learned(0, 0, len(self.counted.histories), users=True)
        new = (0, 0)

        def plan() -> tuple[Users, Users, Any] | None:
            nonlocal new
            known = self.row_of()
            for doc_id in {item for items in answers.values() for item in items}:
                if doc_id not in known:
                    raise missing(doc_id, known)
            held, counted = self.counted, self.counted.with_more(answers)
            new = (len(counted.histories) - len(held.histories), counted.interactions - held.interactions)
            if counted is held:
                return None
            rows = {user: [known[i] for i in items if i in known] for user, items in counted.histories.items()}
            return counted, self.users.with_more(answers), self.count(Sequences.of(rows), len(self.rows.alive))

        def swap(part: tuple[Users, Users, Any]) -> tuple[Users, Users, Any]:
            assert self.evidence is not None
            held = (self.counted, self.users, getattr(self, self.evidence))
            self.counted, self.users = part[:2]
            setattr(self, self.evidence, part[2])
            return held

        self.living.revise(plan, swap)
        return Learned(*new, len(self.counted.histories), users=True)

    def write_files(self, folder: Path) -> None:
        super().write_files(folder)
        self.counted.save(folder, COUNTED)

    def read_files(self, folder: Path) -> None:
        super().read_files(folder)
        self.counted = Users.load(folder, COUNTED)

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        row_of, found = self.rows.names_in_memory(), []
        known = [np.array([row_of[i] for i in query.history if i in row_of], dtype=np.int64) for query in queries]
        for start in range(0, len(known), BLOCK):
            some = known[start : start + BLOCK]
            for history, scores in zip(some, self.scores(some), strict=True):
                rows = best_rows(scores, k, mask)
                found.append(Found(rows, scores[rows], why=self.reasons(history, rows) if explain else None))
        return found
