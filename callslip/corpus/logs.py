"""Corpora of interaction logs: the sequences to train on, and histories as item numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from callslip.corpus.documents import Corpus, Query, has_histories
from callslip.corpus.sequences import Examples, Sequences, padded
from callslip.errors import CallslipError


def training_sequences(corpus: Corpus) -> Sequences:
    """The histories to train on; raises an error that explains why if there are none."""
    found = corpus.sequences()
    if not len(found) and not has_histories(corpus):
        raise CallslipError(
            "this corpus has no histories of items to train on", "Give a log of users and items, or queries=text."
        )
    if not len(found):
        raise CallslipError(
            "no user of this log has enough items to train on: each user's last two are held out",
            "Give a log with users that have four or more items.",
        )
    return found


def training_examples(sequences: Sequences, kind: Literal["set", "sequence"], longest: int) -> Examples:
    """Histories and their targets: the next item of a sequence, or another item of a set."""
    return sequences.sequential(longest) if kind == "sequence" else sequences.general(longest)


def has_texts(corpus: Corpus) -> bool:
    return any(document.content for document in corpus)


def numbers_of(
    queries: Sequence[Query], row_of: Mapping[str, int], longest: int, known: np.ndarray | None = None
) -> np.ndarray:
    """The queries' histories as padded item numbers (row + 1), [n, T], without rows that are not `known`."""
    asked = {item for query in queries for item in query.history}
    rows = {item: row_of[item] for item in asked if item in row_of}
    return padded(
        (query.history for query in queries),
        {item: row + 1 for item, row in rows.items() if known is None or known[row]},
        longest,
    )
