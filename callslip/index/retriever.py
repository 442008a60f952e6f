"""Retriever: the contract that every method keeps, from BM25 to the five papers.

A retriever is fitted to a corpus, searches it, and is saved to and loaded from one folder. Everything that is
the same for all methods is here or, for documents that come and go and the folder they are in, in `living.py`; a
subclass fills in `_fit`, `_search`, `_save`, `_load`, and for new documents `_prepare`, `_extend` and `_keep`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from callslip import settings as settings_of
from callslip.corpus.documents import Corpus, Query
from callslip.corpus.sequences import Users
from callslip.errors import BadSetting, CallslipError, Unsupported
from callslip.filters.filter import Filter, group_by_filter
from callslip.index.living import TRIES, Living
from callslip.search.hits import Hit, Hits
from callslip.search.nearest import best_rows as best_rows  # methods that score every row take it from here
from callslip.storage import documents as stored
from callslip.storage.rows import Gone

if TYPE_CHECKING:
    from callslip.training.checkpoints import Checkpoints


@dataclass
class Found:
    """What `_search` gives for one query: rows of documents, best first, with scores; codes and reasons if any."""

    rows: Sequence[int] | np.ndarray
    scores: Sequence[float] | np.ndarray
    codes: Sequence[tuple[int, ...]] | np.ndarray | None = None
    why: Sequence[dict[str, Any]] | None = None


class Retriever(Living):
    """Finds documents for a query."""

    Settings: ClassVar[type] = object
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Named sets of settings for `--preset`; a method may have `quick` and `paper`."""
    search_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings that act when searching, so that they can be changed without fitting again."""

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__()
        self.settings = settings if settings is not None else self.Settings()
        self.method = method or type(self).__name__.lower()
        self.fit_seconds = 0.0
        self.corpus_fingerprint: dict[str, Any] = {}
        self.checkpoints: Checkpoints | None = None
        self._known_names: tuple[stored.Documents, list[str]] | None = None

    # What a subclass fills in.

    def _fit(self, corpus: Corpus) -> None:
        raise NotImplementedError

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        """Rank rows for each query. `mask` tells which rows may be returned; None means all of them."""
        raise NotImplementedError

    @property
    def reads_histories(self) -> bool:
        """Whether queries are histories of items, and not texts."""
        return False

    def could_read(self, *, histories: bool) -> bool:
        """Whether a fit on a corpus of such queries would give an index that answers them; asked before the fit."""
        return not histories

    # The contract.

    def fit(self, corpus: Corpus, checkpoints: Checkpoints | None = None) -> Self:
        """Build the index (and train whatever has to be trained) on a corpus, saving the training as it goes on."""
        if not len(corpus):
            raise CallslipError("the corpus is empty", "Give at least one document.")
        began = time.perf_counter()
        self._home = None  # an earlier index in a folder stays as it is
        self._remember(stored.MemoryDocuments(corpus.documents))
        self._trained = len(corpus)
        self.corpus_fingerprint = corpus.fingerprint()
        self.users = Users.of(corpus)
        self.checkpoints = checkpoints
        if checkpoints is not None:
            checkpoints.claim(self.method, settings_of.to_dict(self.settings), self.corpus_fingerprint)
        self._fit(corpus)
        self.fit_seconds = time.perf_counter() - began if checkpoints is None else checkpoints.spent()
        return self

    def search(
        self,
        query: str | Query,
        k: int = 10,
        filter: Filter | None = None,
        explain: bool = False,
        *,
        exclude_history: bool = False,
    ) -> Hits:
        """The k best documents for a query, best first."""
        return self.search_batch([query], k, filter, explain, exclude_history=exclude_history)[0]

    def search_batch(
        self,
        queries: Iterable[str | Query],
        k: int = 10,
        filter: Filter | Sequence[Filter | None] | None = None,
        explain: bool = False,
        *,
        exclude_history: bool = False,
        texts: bool = True,
    ) -> list[Hits]:
        """Search many queries at once; the same hits as one by one, faster. One filter for all, or one per query.

        `exclude_history` leaves out the items that a query's history holds. Without `texts` hits bear neither title nor
        text, which saves reading the documents: an evaluation looks at ids only.
        """
        if isinstance(queries, str):
            raise BadSetting("search_batch takes a list of queries, not one string", "Use search for one query.")
        asked = [self._as_query(number, query) for number, query in enumerate(queries)]
        self._fitted()
        self._check_queries(asked)
        if k < 1:
            raise BadSetting(f"k is {k}", "Ask for at least one hit.")
        for attempt in range(TRIES):
            self.refresh(now=attempt > 0)
            try:
                with self._gate.searching():
                    return self._answer(asked, k, filter, explain, exclude_history, texts)
            except Gone:  # another process deleted a hit under our hands: without it there is room for another
                continue
        raise CallslipError("documents are deleted faster than they can be read", "Search again.")

    def _answer(
        self,
        asked: list[Query],
        k: int,
        filter: Filter | Sequence[Filter | None] | None,
        explain: bool,
        exclude_history: bool = False,
        texts: bool = True,
    ) -> list[Hits]:
        hits = [Hits() for _ in asked]
        # All masks before any search: a mistake in the last filter should not cost the work of the others.
        groups = [(self.mask(one), numbers) for one, numbers in group_by_filter(filter, len(asked))]
        for mask, numbers in groups:
            possible = len(self._alive) if mask is None else int(np.count_nonzero(mask))
            if possible and numbers:
                some = [asked[number] for number in numbers]
                # So many more that k are left without the longest history.
                more = max(len(set(query.history)) for query in some) if exclude_history else 0
                found = self._search(some, min(k + more, possible), mask, explain)
                for number, one in zip(numbers, found, strict=True):
                    hits[number] = self._hits(self._without(one, asked[number]) if more else one, k, texts)
        return hits

    def _without(self, found: Found, query: Query) -> Found:
        """What was found, without the items of the query's history."""
        row_of = self.row_of()
        had = {row_of[item] for item in query.history if item in row_of}
        kept = [place for place, row in enumerate(found.rows) if int(row) not in had]
        return Found(
            [found.rows[place] for place in kept],
            [found.scores[place] for place in kept],
            None if found.codes is None else [found.codes[place] for place in kept],
            None if found.why is None else [found.why[place] for place in kept],
        )

    def adjust(self, values: Mapping[str, Any]) -> Self:
        """Change settings that act when searching, such as the beam, without fitting again."""
        for name in values:
            if name in settings_of.to_dict(self.settings) and name not in self.search_settings:
                can = ", ".join(sorted(self.search_settings)) or "none"
                raise BadSetting(
                    f"setting {name!r} acts when the index is fitted",
                    f"Fit again with it. Settings of a search: {can}.",
                )
        before = self.settings
        self.settings = settings_of.make(self.Settings, settings_of.to_dict(self.settings) | dict(values))
        try:
            self._adjusted(frozenset(values))
        except CallslipError:
            self.settings = before
            raise
        return self

    def _adjusted(self, names: frozenset[str]) -> None:
        """Follow settings that have just changed, if something was made with the old ones."""

    def _loaded(self, manifest: dict[str, Any]) -> None:
        self.fit_seconds = manifest.get("fit_seconds", 0.0)
        self.corpus_fingerprint = manifest.get("corpus", {})

    # What the command line, the reports and subclasses ask for.

    def describe(self) -> dict[str, Any]:
        """Method, settings, corpus and cost: what a manifest or a report says of this index."""
        return {
            "method": self.method,
            "settings": settings_of.to_dict(self.settings),
            "corpus": self.corpus_fingerprint,
            "fit_seconds": round(self.fit_seconds, 3),
        }

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
        return query if isinstance(query, Query) else Query(str(number), query)

    def _names(self) -> list[str]:
        """The doc_id of every row, deleted ones included, read once for as long as the rows are these."""
        documents = self._fitted()
        if self._known_names is None or self._known_names[0] is not documents:
            self._known_names = (documents, list(documents.doc_ids()))
        return self._known_names[1]

    def _hits(self, found: Found, k: int, texts: bool = True) -> Hits:
        rows = [int(row) for row in found.rows[:k]]
        if texts:
            hits = Hits.ranked(
                Hit(document.doc_id, float(score), title=document.title, text=document.text)
                for document, score in zip(self._fitted().rows(rows), found.scores, strict=False)
            )
        else:
            names = self._names()
            hits = Hits.ranked(Hit(names[row], float(score)) for row, score in zip(rows, found.scores, strict=False))
        for position, hit in enumerate(hits):
            if found.codes is not None:
                hit.code = tuple(int(token) for token in found.codes[position])
            if found.why is not None:
                hit.why = found.why[position]
        return hits
