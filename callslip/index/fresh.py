"""Fresh documents: those added since the fit, which the model never learned to write.

Their codes may lie outside of every beam, so they are also searched by their words and, where the index has vectors, by
similarity. A fresh document takes the place that it has among the beam's first hits by the mean of the two, both scaled
over these hits and the fresh candidates. The order of the other hits stays as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from callslip.index.retriever import Found
from callslip.index.rows import Rows
from callslip.search.bm25 import WordIndex
from callslip.search.fusion import scaled
from callslip.search.nearest import best_rows
from callslip.search.postings import Postings

FRESH = "fresh.npy"
DEPTH = 50
"""Hits of the beam that fresh documents are compared with, and fresh candidates of each kind. It does not depend on k,
so that more hits never change the order of the first ones."""
K1, B = 0.9, 0.4
"""Of BM25, as in `WordIndex`."""
REASON = "added since the fit; found by its own words"


@dataclass
class Asked:
    """A query: its text, its vector, and the documents' vectors that it is compared with; None if there are none."""

    text: str
    vector: np.ndarray
    documents: np.ndarray | None

    def similarity(self, rows: np.ndarray) -> np.ndarray | None:
        """Inner products of the query with rows."""
        return None if self.documents is None else np.asarray(self.documents[rows] @ self.vector, np.float64)


@dataclass
class Candidates:
    """Fresh candidates for one query, with the number of the beam's hits that each stands behind."""

    rows: np.ndarray
    places: np.ndarray
    evidence: np.ndarray
    words: np.ndarray
    similarity: np.ndarray | None

    @classmethod
    def none(cls) -> Candidates:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0), None)

    def some(self, which: np.ndarray) -> Candidates:
        similarity = None if self.similarity is None else self.similarity[which]
        return Candidates(self.rows[which], self.places[which], self.evidence[which], self.words[which], similarity)

    def reason(self, at: int) -> dict[str, Any]:
        near: dict[str, Any] = {} if self.similarity is None else {"similarity": float(self.similarity[at])}
        return {"fresh": REASON, "bm25": float(self.words[at])} | near


@dataclass
class Fresh:
    """Rows of the documents added since the fit, in ascending order, and their codes [n, L]."""

    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    codes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    _words: Postings | None = None
    """Their words, from the first query on; those of documents added later are indexed by the next query."""
    _live: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """Which of the indexed documents are counted there: deleted ones are not."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self.rows)

    def extend(self, first: int, codes: np.ndarray) -> None:
        """Append documents with these codes, whose rows begin at `first`."""
        self.codes = np.concatenate([self.codes, codes]) if len(self) else codes
        self.rows = np.concatenate([self.rows, first + np.arange(len(codes))])

    def keep(self, rows: np.ndarray) -> None:
        """Keep these rows of the index only, numbered anew from 0."""
        self.codes = self.codes[np.isin(self.rows, rows)]
        self.rows = np.flatnonzero(np.isin(rows, self.rows))
        self._words = None

    def save(self, folder: Path) -> None:
        if len(self):
            np.save(folder / FRESH, self.rows, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, codes: Callable[[], np.ndarray]) -> Fresh:
        """Read what `save` wrote; `codes` gives the codes of all rows."""
        if not (folder / FRESH).exists():
            return cls()
        rows = np.load(folder / FRESH, allow_pickle=False)
        return cls(rows, codes()[rows])

    def merged(self, asked: Asked, found: Found, rows: Rows, mask: np.ndarray | None, explain: bool) -> Found:
        """The beam's hits for a query, and the fresh documents in their places among them."""
        candidates = self._candidates(asked, found, rows, mask)
        if not len(candidates.rows):
            return found
        hits, scores = np.asarray(found.rows, np.int64), np.asarray(found.scores, np.float64)
        where = {row: at for at, row in enumerate(hits.tolist())}
        # A document that the beam has reached, too, keeps the better of its two places.
        now = np.array([where.get(row, len(hits)) for row in candidates.rows.tolist()], np.int64)
        places = np.where(candidates.places < min(len(hits), DEPTH), candidates.places, len(hits))
        better = (places < now) | (now == len(hits))
        candidates, places, now = candidates.some(better), places[better], now[better]
        stay = np.flatnonzero(~np.isin(hits, candidates.rows))
        late = np.repeat([1, 0], [len(stay), len(places)])
        evidence = np.concatenate([np.zeros(len(stay)), -candidates.evidence])
        merged_rows = np.concatenate([hits[stay], candidates.rows])
        order = np.lexsort((merged_rows, evidence, late, np.concatenate([stay, places])))
        # The score of the hit whose place it takes: two kinds of scores cannot be compared, but their order can.
        new_scores = scores[np.minimum(places, len(hits) - 1)] if len(hits) else candidates.evidence
        why = None
        if explain and found.why is not None:
            theirs = [found.why[at] if at < len(hits) else {} for at in now.tolist()]
            told = [*(found.why[at] for at in stay.tolist())]
            told += [candidates.reason(at) | why for at, why in enumerate(theirs)]
            why = [told[at] for at in order.tolist()]
        codes = None
        if found.codes is not None:
            own = self.codes[np.searchsorted(self.rows, candidates.rows)]
            codes = np.concatenate([np.asarray(found.codes).reshape(len(hits), -1)[stay], own])[order]
        return Found(merged_rows[order], np.concatenate([scores[stay], new_scores])[order], codes, why)

    def _candidates(self, asked: Asked, found: Found, rows: Rows, mask: np.ndarray | None) -> Candidates:
        """The fresh documents that are nearest by words or by similarity, compared with the beam's first hits."""
        words = self._indexed(rows)
        allowed = self._live if mask is None else self._live & mask[self.rows]
        if not allowed.any():
            return Candidates.none()
        scores = words.scores(words.tokenize([asked.text])[0])
        by_words = best_rows(scores, DEPTH, allowed)
        chosen = np.sort(self.rows[by_words[scores[by_words] > 0]])
        possible = self.rows[allowed]
        near = asked.similarity(possible)
        if near is not None:
            chosen = np.union1d(chosen, possible[best_rows(near, DEPTH)])
        if not len(chosen):
            return Candidates.none()
        head = np.asarray(found.rows[:DEPTH], np.int64)
        pool = np.concatenate([head, chosen[~np.isin(chosen, head)]])
        similarity = asked.similarity(pool)
        pool_words = _scores(asked.text, [document.content for document in rows.documents.rows(pool.tolist())])
        kinds = [pool_words] if similarity is None else [pool_words, similarity]
        evidence = np.mean([scaled(kind, kind) for kind in kinds], axis=0)
        at = np.array([int(np.flatnonzero(pool == row)[0]) for row in chosen])
        ahead = (evidence[None, : len(head)] >= evidence[at, None]) & (head[None] != chosen[:, None])
        return Candidates(
            chosen, ahead.sum(axis=1), evidence[at], pool_words[at], None if similarity is None else similarity[at]
        )

    def _indexed(self, rows: Rows) -> Postings:
        """The words of the fresh documents, with the statistics of those that are not deleted."""
        alive = rows.alive[self.rows]
        with self._lock:  # of several searches at once, the first one indexes
            words = Postings(k1=K1, b=B).index([]) if self._words is None else self._words
            known = len(words)
            there = alive[known:]
            documents = iter(rows.documents.rows(self.rows[known:][there].tolist()) if there.any() else ())
            words.extend([next(documents).content if one else "" for one in there.tolist()])
            before = np.concatenate([self._live[:known], np.ones(len(there), bool)])
            words.drop(np.flatnonzero(before & ~alive))
            self._words, self._live = words, alive
        return words


def _scores(text: str, texts: list[str]) -> np.ndarray:
    """BM25 of a query over a few texts."""
    return next(WordIndex().index(texts).scores_of([text])).astype(np.float64)
