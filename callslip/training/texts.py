"""Which texts to train on: made from documents, written by a model, asked by people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from callslip.corpus.documents import Corpus, Pair
from callslip.corpus.pseudo_queries import pseudo_queries
from callslip.training import batches
from callslip.training.examples import Inputs
from callslip.training.negatives import Answers, number_texts

Drawn = tuple[np.ndarray, np.ndarray]
"""A batch: rows of documents, and for each the number of one of its queries."""


class TextChoice(Protocol):
    """The settings that say which texts to train on."""

    @property
    def pseudo_queries(self) -> Sequence[str]: ...
    @property
    def doc2query(self) -> str | None: ...
    @property
    def doc2query_per_document(self) -> int: ...
    @property
    def train_on_queries(self) -> bool: ...
    @property
    def query_repeat(self) -> int | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def device(self) -> str | None: ...


def training_pairs(corpus: Corpus, s: TextChoice) -> list[Pair]:
    """Texts, each with its document: pseudo-queries, then the judged queries of the train split, repeated.

    Where `query_repeat` is None, judged queries are repeated until they are about a third as many as the others.
    """
    pairs = pseudo_queries(corpus, kinds=s.pseudo_queries, seed=s.seed) if s.pseudo_queries else []
    if s.doc2query is not None:
        from callslip.corpus.doc2query import doc2query

        pairs += doc2query(corpus, s.doc2query, s.doc2query_per_document, device=s.device, seed=s.seed)
    asked, repeat = corpus.pairs("train") if s.train_on_queries else [], s.query_repeat
    if repeat is None:
        repeat = max(1, round(len(pairs) / 3 / max(1, len(asked))))
    return pairs + asked * repeat


@dataclass
class Texts:
    """What is trained on: documents and queries as the model reads them, and which queries are each document's."""

    documents: Inputs
    queries: Inputs
    of: list[np.ndarray]

    @classmethod
    def of_documents(cls, documents: Inputs, queries: Inputs, rows: np.ndarray) -> Texts:
        """`rows` says which document each query belongs to."""
        sizes = np.bincount(rows, minlength=len(documents))
        return cls(documents, queries, np.split(np.argsort(rows, kind="stable"), np.cumsum(sizes)[:-1]))

    def rounds(self, least: int) -> int:
        """How often each document comes in an epoch: as often as it has texts, on average, and no less than `least`."""
        return max(1, least, round(len(self.queries) / len(self.of)))

    def steps(self, batch_size: int) -> int:
        """Batches that hold every document with queries once."""
        return batches.steps(sum(len(some) > 0 for some in self.of), batch_size)

    def drawn(
        self, batch_size: int, seed: int, epoch: int, rounds: int, groups: np.ndarray | None = None
    ) -> Iterator[Drawn]:
        """An epoch's batches: documents with one of their queries each, none twice in a batch; those of a group side by
        side, if there are `groups` [N]."""
        groups = np.zeros(len(self.of), np.int64) if groups is None else groups
        return batches.by_group(groups, self.of, batch_size, seed, epoch, rounds)

    def answered(self, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Whether document `rows[j]` answers query `queries[i]`, bool [len(queries), len(rows)]."""
        numbers, answers = self._answers
        return answers.among(numbers[queries], rows)

    @cached_property
    def _answers(self) -> tuple[np.ndarray, Answers]:
        """The number of each query's text, the same for those that read alike, and what answers each text."""
        alike = [one.tobytes() if isinstance(one, np.ndarray) else tuple(one) for one in self.queries]
        _, numbers = number_texts(alike)
        owner = np.repeat(np.arange(len(self.of)), [len(some) for some in self.of])
        return numbers, Answers(numbers[np.concatenate(self.of)], owner, len(self.of))
