"""Retriever: the contract that every method keeps, from BM25 to the five papers.

A retriever is fitted to a corpus, searches it, and is saved to and loaded from one folder. Everything that is
the same for all methods (documents, deletions, filters, the saved folder) is here; a subclass fills in
`_fit`, `_search`, `_save` and `_load`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from callslip import settings as settings_of
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, CallslipError, Unsupported
from callslip.search.filters import Filter, group_by_filter
from callslip.search.hits import Hit, Hits
from callslip.search.masks import Masks
from callslip.search.nearest import best_rows as best_rows  # methods that score every row take it from here
from callslip.storage import documents as stored
from callslip.storage import folder as saved

if TYPE_CHECKING:
    from callslip.training.checkpoints import Checkpoints

ALIVE = "alive.npy"


@dataclass
class Found:
    """What `_search` gives for one query: rows of documents, best first, with scores; codes and reasons if any."""

    rows: Sequence[int] | np.ndarray
    scores: Sequence[float] | np.ndarray
    codes: Sequence[tuple[int, ...]] | np.ndarray | None = None
    why: Sequence[dict[str, Any]] | None = None


class Retriever:
    """Finds documents for a query."""

    Settings: ClassVar[type] = object
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Named sets of settings for `--preset`; a method may have `quick` and `paper`."""
    reads_histories: ClassVar[bool] = False
    """Whether a query may be a history of items instead of a text."""
    search_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings that act when searching, so that they can be changed without fitting again."""

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        self.settings = settings if settings is not None else self.Settings()
        self.method = method or type(self).__name__.lower()
        self.fit_seconds = 0.0
        self.corpus_fingerprint: dict[str, Any] = {}
        self.checkpoints: Checkpoints | None = None
        self._documents: stored.Documents | None = None
        self._alive = np.zeros(0, dtype=bool)
        self._row_of: dict[str, int] | None = None
        self._masks: Masks | None = None

    # What a subclass fills in.

    def _fit(self, corpus: Corpus) -> None:
        raise NotImplementedError

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        """Rank rows for each query. `mask` tells which rows may be returned; None means all of them."""
        raise NotImplementedError

    def _save(self, folder: Path) -> None:
        raise NotImplementedError

    def _load(self, folder: Path) -> None:
        raise NotImplementedError

    def _add(self, documents: list[Document]) -> None:
        raise Unsupported(
            f"{self.method} cannot take new documents",
            f"Fit again: callslip fit CORPUS --method {self.method} --out DIR.",
        )

    # The contract.

    def fit(self, corpus: Corpus, checkpoints: Checkpoints | None = None) -> Self:
        """Build the index (and train whatever has to be trained) on a corpus, saving the training as it goes on."""
        if not len(corpus):
            raise CallslipError("the corpus is empty", "Give at least one document.")
        began = time.perf_counter()
        self._remember(stored.MemoryDocuments(corpus.documents))
        self.corpus_fingerprint = corpus.fingerprint()
        self.checkpoints = checkpoints
        if checkpoints is not None:
            checkpoints.claim(self.method, settings_of.to_dict(self.settings), self.corpus_fingerprint)
        self._fit(corpus)
        self.fit_seconds = time.perf_counter() - began
        return self

    def search(self, query: str | Query, k: int = 10, filter: Filter | None = None, explain: bool = False) -> Hits:
        """The k best documents for a query, best first."""
        return self.search_batch([query], k, filter, explain)[0]

    def search_batch(
        self,
        queries: Iterable[str | Query],
        k: int = 10,
        filter: Filter | Sequence[Filter | None] | None = None,
        explain: bool = False,
    ) -> list[Hits]:
        """Search many queries at once; the same hits as one by one, faster. One filter for all, or one per query."""
        if isinstance(queries, str):
            raise BadSetting("search_batch takes a list of queries, not one string", "Use search for one query.")
        asked = [self._as_query(number, query) for number, query in enumerate(queries)]
        self._fitted()
        if not self.reads_histories and any(query.history and not query.text for query in asked):
            raise Unsupported(
                f"{self.method} searches by text, and this query is a history of items without any",
                "Give the query a text, or use a method that reads histories.",
            )
        if k < 1:
            raise BadSetting(f"k is {k}", "Ask for at least one hit.")
        hits = [Hits() for _ in asked]
        # All masks before any search: a mistake in the last filter should not cost the work of the others.
        groups = [(self.mask(one), numbers) for one, numbers in group_by_filter(filter, len(asked))]
        for mask, numbers in groups:
            possible = len(self._alive) if mask is None else int(np.count_nonzero(mask))
            if possible and numbers:
                found = self._search([asked[number] for number in numbers], min(k, possible), mask, explain)
                for number, one in zip(numbers, found, strict=True):
                    hits[number] = self._hits(one, k)
        return hits

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

    def add(self, documents: Iterable[Document]) -> None:
        """Make new documents findable without fitting again, or raise `Unsupported` with the remedy."""
        new = list(documents)
        held = self._fitted()
        known = self.row_of()
        seen: set[str] = set()
        for document in new:
            if document.doc_id in known or document.doc_id in seen:
                raise CallslipError(
                    f"document {document.doc_id!r} is in the index already", "Delete it first, or leave it out."
                )
            seen.add(document.doc_id)
        self._add(new)
        alive = self._alive
        self._remember(stored.MemoryDocuments([*held, *new]))
        self._alive[: len(alive)] = alive

    def delete(self, doc_ids: Iterable[str]) -> None:
        """Stop returning these documents. Model weights may still remember them until the next fit."""
        if isinstance(doc_ids, str):
            raise BadSetting(f"delete takes a list of doc_ids, not {doc_ids!r}", f"Write delete([{doc_ids!r}]).")
        known = self.row_of()
        wanted = list(doc_ids)
        for doc_id in wanted:
            if doc_id not in known:
                raise CallslipError(f"there is no document {doc_id!r} in the index")
        for doc_id in dict.fromkeys(wanted):
            self._alive[known.pop(doc_id)] = False
        self._masks_of_documents().forget()

    def save(self, path: str | Path) -> None:
        """Write the index into one folder, whole or not at all."""
        documents = self._fitted()
        with saved.writing(path, self.describe()) as folder:
            stored.write_documents(folder, documents)
            np.save(folder / ALIVE, self._alive, allow_pickle=False)
            self._save(folder)

    @classmethod
    def load(cls, path: str | Path) -> Retriever:
        """Open a saved index. The folder knows its method; any subclass may be asked."""
        from callslip.methods import make

        manifest = saved.read_manifest(path)
        retriever = make(manifest["method"], manifest["settings"])
        folder = Path(path)
        retriever._remember(stored.SqliteDocuments(folder))
        retriever._alive = np.load(folder / ALIVE, allow_pickle=False)
        retriever.fit_seconds = manifest.get("fit_seconds", 0.0)
        retriever.corpus_fingerprint = manifest.get("corpus", {})
        retriever._load(folder)
        return retriever

    # What the command line, the reports and subclasses ask for.

    def describe(self) -> dict[str, Any]:
        """Method, settings, corpus and cost: what a manifest or a report says of this index."""
        return {
            "method": self.method,
            "settings": settings_of.to_dict(self.settings),
            "corpus": self.corpus_fingerprint,
            "fit_seconds": round(self.fit_seconds, 3),
        }

    def mask(self, filter: Filter | None) -> np.ndarray | None:
        """Rows that may be returned: not deleted, and accepted by the filter. None means every row.

        The array is read-only, and the same one for the same filter until documents are added or deleted (or until
        many other filters came between): what is derived from it may be kept beside it.
        """
        return self._masks_of_documents().of(filter, self._alive, self.row_of)

    def row_of(self) -> dict[str, int]:
        """doc_id -> row, of the documents that are not deleted."""
        if self._row_of is None:
            self._row_of = {doc_id: row for row, doc_id in enumerate(self._fitted().doc_ids()) if self._alive[row]}
        return self._row_of

    def __len__(self) -> int:
        return int(self._alive.sum())

    @property
    def documents(self) -> stored.Documents:
        return self._fitted()

    def _fitted(self) -> stored.Documents:
        if self._documents is None:
            raise CallslipError("this retriever is not fitted", "Call fit(corpus) first, or load a saved index.")
        return self._documents

    def _masks_of_documents(self) -> Masks:
        if self._masks is None:
            self._masks = Masks(self._fitted())
        return self._masks

    def _remember(self, documents: stored.Documents) -> None:
        self._documents = documents
        self._masks = None
        self._alive = np.ones(len(documents), dtype=bool)
        self._row_of = None

    def _as_query(self, number: int, query: str | Query) -> Query:
        if not isinstance(query, (str, Query)):
            raise BadSetting(f"a query is a text or a Query, not {type(query).__name__}")
        return query if isinstance(query, Query) else Query(str(number), query)

    def _hits(self, found: Found, k: int) -> Hits:
        rows = [int(row) for row in found.rows[:k]]
        hits = Hits.ranked(
            Hit(document.doc_id, float(score), title=document.title, text=document.text)
            for document, score in zip(self._fitted().rows(rows), found.scores, strict=False)
        )
        for position, hit in enumerate(hits):
            if found.codes is not None:
                hit.code = tuple(int(token) for token in found.codes[position])
            if found.why is not None:
                hit.why = found.why[position]
        return hits
