"""Which texts to train on: made from documents, written by a model, asked by people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from callslip.corpus.documents import Corpus, Pair
from callslip.corpus.pseudo_queries import pseudo_queries
from callslip.training import batches
from callslip.training.negatives import Answers, number_texts

Inputs = np.ndarray | list[list[int]]
"""Texts as a model reads them: vectors [n, dim], or token ids of each."""
Drawn = tuple[np.ndarray, np.ndarray]
"""A batch: rows of documents, and for each the number of one of its queries."""


def training_pairs(
    corpus: Corpus,
    *,
    kinds: Sequence[str] = ("title", "sentences"),
    doc2query: str | None = None,
    doc2query_per_document: int = 5,
    judged: bool = True,
    repeat: int | None = 1,
    seed: int = 0,
    device: str | None = None,
) -> list[Pair]:
    """Texts, each with its document: pseudo-queries, then `repeat` times the judged queries of the train split.

    Without `repeat`, as many times as makes them about a third as many as the others, and once at least.
    """
    pairs = pseudo_queries(corpus, kinds=kinds, seed=seed) if kinds else []
    if doc2query is not None:
        from callslip.corpus.doc2query import doc2query as written

        pairs += written(corpus, doc2query, doc2query_per_document, device=device, seed=seed)
    asked = corpus.pairs("train") if judged else []
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
