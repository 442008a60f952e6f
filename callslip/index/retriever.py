"""Retriever: the contract that every method keeps, from BM25 to the five papers.

A retriever is fitted to a corpus, searches it, and is saved to and loaded from one folder. It holds the `Rows` of its
documents and a `Living`, which changes them. A method implements `build`, `find`, `save_files` and `load_files`, and
for new documents `prepare`, `extend` and `keep`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.corpus.sequences import USERS, Users
from callslip.errors import BadSetting, CallslipError, Unsupported
from callslip.filters.filter import Filter, group_by_filter
from callslip.index.living import Living
from callslip.index.rows import Rows
from callslip.runtime.plugins import package_of
from callslip.search.diversity import POOL, Diversity
from callslip.search.hits import Hit, Hits
from callslip.settings import make, to_dict
from callslip.storage.rows import Documents, MemoryDocuments, Parts

if TYPE_CHECKING:
    from callslip.storage.drift import Drift
    from callslip.training.checkpoints import Checkpoints


@dataclass
class Found:
    """What `find` returns for one query: rows of documents, best first, with scores; codes and reasons if any."""

    rows: Sequence[int] | np.ndarray
    scores: Sequence[float] | np.ndarray
    codes: Sequence[tuple[int, ...]] | np.ndarray | None = None
    why: Sequence[dict[str, Any]] | None = None
    confidence: float | None = None
    unsure: bool = False
    """Whether the evidence is weaker than for almost all queries that have an answer: `callslip.search.confidence`."""

    def without(self, left_out: set[int]) -> Found:
        """The same without some rows."""
        return self.at([place for place, row in enumerate(self.rows) if int(row) not in left_out])

    def at(self, places: Sequence[int]) -> Found:
        """What is at these places."""
        return Found(
            [self.rows[place] for place in places],
            [self.scores[place] for place in places],
            None if self.codes is None else [self.codes[place] for place in places],
            None if self.why is None else [self.why[place] for place in places],
            self.confidence,
            self.unsure,
        )


@dataclass(frozen=True)
class Learned:
    """What `learn_answers` has changed."""

    queries: int
    """Queries that were new."""
    answers: int
    """Answers that were new, to new or to known queries."""
    remembered: int
    """All queries that the index remembers now."""
    users: bool = False
    """Whether queries are users of a log, and answers their interactions."""


class Retriever:
    """Finds documents for a query."""

    Settings: ClassVar[type] = object
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Named sets of settings for `--preset`. The preset `paper` is a recipe, see `callslip.methods`."""
    search_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings that act when searching, so that they can be changed without fitting again."""
    learns_from_queries: ClassVar[bool] = True
    """Whether a fit may learn from judged train queries, which then say nothing about unknown ones."""
    writes_codes: ClassVar[bool] = True
    """Whether a model was trained to write the codes, so that codes of documents added later are strange to it."""

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        self.settings = settings if settings is not None else self.Settings()
        self.method = method or type(self).__name__.lower()
        self.rows = Rows()
        self.living = Living(self)
        self.users = Users()
        self.fit_seconds = 0.0
        self.corpus_fingerprint: dict[str, Any] = {}
        self.checkpoints: Checkpoints | None = None

    # What a method implements.

    def build(self, corpus: Corpus) -> None:
        """Build the index, and train what has to be trained."""
        raise NotImplementedError

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        """Rank rows for each query. `mask` marks the rows that may be returned; None means all of them."""
        raise NotImplementedError

    def prepare(self, documents: list[Document]) -> Parts:
        """What `extend` needs of new documents besides their texts: arrays of one row a document."""
        raise Unsupported(
            f"{self.method} cannot take new documents",
            f"Fit again: callslip fit CORPUS --method {self.method} --out DIR.",
        )

    def extend(self, documents: list[Document], parts: Parts) -> None:
        """Append new documents to the present rows. `self.documents` still holds the present ones only."""
        raise NotImplementedError

    def forget(self, rows: list[int]) -> None:
        """Follow the deletion of rows. They stay until the next `keep`, and search never returns them; a method whose
        statistics count documents may leave them out."""

    def keep(self, rows: np.ndarray) -> None:
        """Drop all rows but these, and number them anew from 0. `self.documents` still holds all."""
        raise NotImplementedError

    def learn_answers(self, answers: Mapping[str, Sequence[str]]) -> Learned:
        """Remember which documents (doc_ids) answered which queries, without training: durable when this returns, and
        found from the next search on. Learning the same again changes nothing."""
        raise Unsupported(
            f"{self.method} has no memory of queries, so it cannot learn from them without training",
            "Fit a method that has one: callslip fit CORPUS --method tied-residual --out DIR.",
        )

    def remembers(self, text: str) -> bool:
        """Whether the index has learned the answers of this query, so that finding them is no achievement."""
        return False

    def codes_by_row(self) -> np.ndarray | None:
        """The code of every row, padded with -1; None for a method without codes."""
        return None

    @property
    def code_settings(self) -> Mapping[str, Any] | None:
        """Search settings under which codes alone order the hits, and documents that their codes do not tell apart have
        the same score; empty if that is always so, None for a method without such an order."""
        return None

    def save_files(self, folder: Path) -> None:
        """Write the method's own files."""
        raise NotImplementedError

    def load_files(self, folder: Path) -> None:
        """Read the method's own files."""
        raise NotImplementedError

    def adjusted(self, names: frozenset[str]) -> None:
        """Follow search settings that have just changed."""

    @property
    def reads_histories(self) -> bool:
        """Whether queries are histories of items rather than texts."""
        return False

    def could_read(self, *, histories: bool) -> bool:
        """Whether an index fitted on a corpus of such queries would answer them; asked before the fit."""
        return not histories

    # Fit and search.

    def fit(self, corpus: Corpus, checkpoints: Checkpoints | None = None) -> Self:
        """Build the index on a corpus, saving the training at intervals if there are `checkpoints`."""
        if not len(corpus):
            raise CallslipError("the corpus is empty", "Give at least one document.")
        began = time.perf_counter()
        self.living.detach()
        held = corpus.documents
        self.rows.replace(held if isinstance(held, Documents) else MemoryDocuments(held))
        self.rows.trained = len(corpus)
        self.corpus_fingerprint = corpus.fingerprint()
        self.users = Users.of(corpus) if any(query.history for query in corpus.queries.values()) else Users()
        self.checkpoints = checkpoints
        if checkpoints is not None:
            checkpoints.claim(self.method, to_dict(self.settings), self.corpus_fingerprint)
        self.build(corpus)
        self.fit_seconds = time.perf_counter() - began if checkpoints is None else checkpoints.spent()
        return self

    def search(
        self,
        query: str | Query,
        k: int = 10,
        filter: Filter | None = None,
        explain: bool = False,
        *,
        keep_history: bool = False,
    ) -> Hits:
        """The k best documents for a query, best first; without the items of its own history unless `keep_history`."""
        return self.search_batch([query], k, filter, explain, keep_history=keep_history)[0]

    def search_batch(
        self,
        queries: Iterable[str | Query],
        k: int = 10,
        filter: Filter | Sequence[Filter | None] | None = None,
        explain: bool = False,
        *,
        keep_history: bool = False,
        texts: bool = True,
    ) -> list[Hits]:
        """Search many queries at once; the same hits as one by one, faster. One filter for all, or one per query.

        Recommendations leave out the items of a query's own history unless `keep_history`. Without `texts` hits have
        neither title nor text, which saves reading the documents: an evaluation needs the ids only.
        """
        if isinstance(queries, str):
            raise BadSetting("search_batch takes a list of queries, not one string", "Use search for one query.")
        asked = [self._as_query(number, query) for number, query in enumerate(queries)]
        _ = self.documents  # an index that is not fitted says so
        self._check_queries(asked)
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
            raise BadSetting(f"k is {k!r}, no whole number", "Give the number of hits, such as k=10.")
        if k < 1:
            raise BadSetting(f"k is {k}", "Ask for at least one hit.")
        return self.living.read(lambda: self._answer(asked, k, filter, explain, keep_history, texts))

    def _answer(
        self,
        asked: list[Query],
        k: int,
        filter: Filter | Sequence[Filter | None] | None,
        explain: bool,
        keep_history: bool,
        texts: bool,
    ) -> list[Hits]:
        hits = [Hits() for _ in asked]
        # All masks before any search: an error in the last filter must not cost the work of the others.
        parts = [(None, list(range(len(asked))))] if filter is None else group_by_filter(filter, len(asked))
        groups = [(self.rows.mask(one), numbers) for one, numbers in parts]
        for mask, numbers in groups:
            possible = len(self.rows.alive) if mask is None else int(np.count_nonzero(mask))
            if possible and numbers:
                some = [asked[number] for number in numbers]
                # Enough hits that k are left without the longest history.
                had = [set() if keep_history else self.rows_had(query) for query in some]
                more = max(map(len, had))
                spread = self.diversity()
                pool = k if spread is None else POOL * k
                found = self.find(some, min(pool + more, possible), mask, explain)
                for number, one, left_out in zip(numbers, found, had, strict=True):
                    listed = one.without(left_out) if left_out else one
                    if spread is not None:
                        listed = listed.at(range(min(pool, len(listed.rows))))
                        listed = listed.at(spread.order(listed.rows, listed.scores, k))
                    hits[number] = self._hits(listed, k, texts)
        return hits

    def diversity(self) -> Diversity | None:
        """How lists of hits are made diverse; None keeps the order of the scores."""
        return None

    def rows_had(self, query: Query) -> set[int]:
        """The rows of the items of a history; none where queries are texts, whatever else they carry."""
        if not self.reads_histories:
            return set()
        row_of = self.rows.names_in_memory()
        return {row_of[item] for item in query.history if item in row_of}

    def adjust(self, values: Mapping[str, Any]) -> Self:
        """Change settings that act when searching, such as the beam, without fitting again."""
        for name in values:
            if name in to_dict(self.settings) and name not in self.search_settings:
                can = ", ".join(sorted(self.search_settings)) or "none"
                raise BadSetting(
                    f"setting {name!r} acts when the index is fitted",
                    f"Fit again with it. Search settings: {can}.",
                )
        before = self.settings
        self.settings = make(self.Settings, to_dict(self.settings) | dict(values))
        try:
            self.adjusted(frozenset(values))
        except CallslipError:
            self.settings = before
            raise
        return self

    # Changes and the folder.

    def add(self, documents: Iterable[Document]) -> None:
        """Make new documents findable without fitting again, or raise `Unsupported` with the remedy."""
        self.living.add(documents)

    def delete(self, doc_ids: Iterable[str]) -> None:
        """Stop returning these documents. Model weights may still remember them until the next fit."""
        self.living.delete(doc_ids)

    def update(self, documents: Iterable[Document]) -> None:
        """Replace documents by doc_id, in one atomic change; unknown doc_ids are added."""
        self.living.update(documents)

    def save(self, path: str | Path) -> None:
        """Write the index into one folder, whole or not at all. An index without a folder lives there from then on."""
        _ = self.documents  # an index that is not fitted says so
        self.living.save(path)

    def refresh(self, now: bool = False) -> Self:
        """Apply what other processes have changed. Every search does this by itself."""
        self.living.refresh(now)
        return self

    def compact(self) -> None:
        """Write a new snapshot without the deleted documents, so that opening has no changes to replay."""
        self.living.compact()

    def drift(self) -> Drift:
        """How far the index has moved from what the model was trained on."""
        return self.living.drift()

    def novelty(self, doc_ids: Iterable[str] | None = None) -> dict[str, str]:
        """What each document is to the model: `existing` (trained on), `new content` (added, with the code of a trained
        document) or `new semantic` (added, with a code of its own). Empty for a method without codes."""
        return self.living.novelty(doc_ids)

    def close(self) -> None:
        """Close the folder; load the index again to use it."""
        self.living.close()

    @property
    def documents(self) -> Documents:
        return self.rows.documents

    def row_of(self) -> Mapping[str, int]:
        """doc_id -> row, for the documents that are not deleted."""
        return self.rows.row_of()

    def __len__(self) -> int:
        return len(self.rows)

    def write_files(self, folder: Path) -> None:
        """All files of a generation: the method's, and the users of a log."""
        self.save_files(folder)
        if self.users.lines:
            self.users.save(folder)

    def read_files(self, folder: Path) -> None:
        self.load_files(folder)
        if (folder / USERS).exists():
            self.users = Users.load(folder)

    def describe(self) -> dict[str, Any]:
        """Method, settings, corpus and cost, for manifests and reports."""
        said = {
            "method": self.method,
            "settings": to_dict(self.settings),
            "corpus": self.corpus_fingerprint,
            "fit_seconds": round(self.fit_seconds, 3),
        }
        if not self.writes_codes:
            said["writes_codes"] = False
        if not type(self).__module__.startswith("callslip."):
            said["plugin"] = package_of(type(self))  # for whoever opens the index without it
        return said

    def take_description(self, manifest: dict[str, Any]) -> None:
        """Read what `describe` wrote."""
        self.fit_seconds = manifest.get("fit_seconds", 0.0)
        self.corpus_fingerprint = manifest.get("corpus", {})

    # Queries and hits.

    def _check_queries(self, queries: list[Query]) -> None:
        if self.reads_histories:
            if any(query.text and not query.history for query in queries):
                raise Unsupported(
                    f"this index ({self.method}) was fitted on histories of items, and this query is a text",
                    "Give items: --history id,id,id, or --user; to search by text, fit with queries=text or bm25.",
                )
        elif any(query.history and not query.text for query in queries):
            raise Unsupported(
                f"this index ({self.method}) searches by text, and this query is a history of items without any",
                "Give the query a text, or fit a method that reads histories, such as item-knn or tiger, on a log.",
            )

    def _as_query(self, number: int, query: str | Query) -> Query:
        if not isinstance(query, (str, Query)):
            raise BadSetting(f"a query is a text or a Query, not {type(query).__name__}")
        return query if isinstance(query, Query) else Query(f"#{number}", query)  # no id of a corpus

    def _hits(self, found: Found, k: int, texts: bool = True) -> Hits:
        rows = [int(row) for row in found.rows[:k]]
        if texts:
            hits = Hits.ranked(
                Hit(document.doc_id, float(score), title=document.title, text=document.text)
                for document, score in zip(self.documents.rows(rows), found.scores, strict=False)
            )
        else:
            names = self.rows.doc_ids()
            hits = Hits.ranked(Hit(names[row], float(score)) for row, score in zip(rows, found.scores, strict=False))
        hits.confidence, hits.unsure = found.confidence, found.unsure
        for position, hit in enumerate(hits):
            if found.codes is not None:
                hit.code = tuple(int(token) for token in found.codes[position])
            if found.why is not None:
                hit.why = found.why[position]
        return hits
