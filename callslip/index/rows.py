"""Rows: the documents of an index in memory, by row number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from callslip.corpus.documents import Document
from callslip.errors import CallslipError
from callslip.filters.filter import Filter
from callslip.filters.masks import Masks
from callslip.storage.rows import Documents, Gone, StoredDocuments

MANY = 1000
"""Doc_ids of a filter above which all names are read into memory, instead of looking them up in the store."""


class Rows:
    """Which documents there are, which of them are deleted, and which a filter accepts.

    A deleted document keeps its row until the index is compacted. A change costs what it weighs: nothing here is
    copied or read again for all rows.
    """

    def __init__(self) -> None:
        self._documents: Documents | None = None
        self._row_of: dict[str, int] | None = None
        self._masks: Masks | None = None
        self._doc_ids: list[str] | None = None
        self._alive = np.zeros(0, dtype=bool)
        self.alive = self._alive
        """False in the rows of deleted documents, [rows]."""
        self._deleted: dict[str, list[int]] = {}
        self._count = 0
        self._live: np.ndarray | None = None
        self.changes = 0
        """Rises with every change."""
        self.version = 0
        """Version of the store that is in memory."""
        self.trained = 0
        """Number of documents that the index was fitted on; they come first."""

    def __len__(self) -> int:
        """Number of documents that are not deleted."""
        return self._count

    @property
    def documents(self) -> Documents:
        if self._documents is None:
            raise CallslipError("this retriever is not fitted", "Call fit(corpus) first, or load a saved index.")
        return self._documents

    def replace(self, documents: Documents, deleted: Mapping[int, str] | None = None) -> None:
        """Take other documents; `deleted` has the rows that are deleted, and their doc_ids."""
        self._documents = documents
        self._masks = self._row_of = self._doc_ids = None
        self._deleted = {}
        self._alive = np.ones(len(documents), dtype=bool)
        self._count = len(documents)
        self._set_alive(len(documents))
        self.delete(list(deleted or ()), list((deleted or {}).values()))

    def _set_alive(self, count: int) -> None:
        self.alive = self._alive[:count]
        self._changed()

    def _changed(self) -> None:
        self.changes += 1
        # Another view after every change: callers cache by identity.
        self._live = None if self._count == len(self.alive) else self.alive.view()
        if self._live is not None:
            self._live.flags.writeable = False

    def move(self, documents: Documents) -> None:
        """Read the same documents from another place: from a store instead of from memory."""
        self._documents, self._masks, self._doc_ids, self._row_of = documents, None, None, None
        self._changed()

    def append(self, new: Sequence[Document]) -> None:
        """Take note of new documents, which `documents` has already."""
        first = len(self.alive)
        if first + len(new) > len(self._alive):
            longer = np.ones(first + len(new) + max(16, first >> 3), dtype=bool)  # room for those that come next
            longer[:first] = self.alive
            self._alive = longer
        self._count += len(new)
        self._set_alive(first + len(new))
        if self._masks is not None:
            self._masks.extend(new)
        if self._doc_ids is not None:
            self._doc_ids.extend(document.doc_id for document in new)
        if self._row_of is not None:
            self._row_of.update({document.doc_id: row for row, document in enumerate(new, start=first)})

    def delete(self, rows: Sequence[int], doc_ids: Sequence[str]) -> None:
        """Mark rows as deleted; `doc_ids` are those of the rows."""
        if not len(rows):
            return
        self._count -= int(self.alive[list(rows)].sum())
        self.alive[list(rows)] = False
        self._changed()
        for row, doc_id in zip(rows, doc_ids, strict=True):
            self._deleted.setdefault(doc_id, []).append(int(row))
            # A new document may have the doc_id of a deleted one.
            if self._row_of is not None and self._row_of.get(doc_id) == row:
                del self._row_of[doc_id]
        if self._masks is not None:
            self._masks.forget()

    def row_of(self) -> Mapping[str, int]:
        """doc_id -> row, for the documents that are not deleted."""
        if self._row_of is None and isinstance(self.documents, StoredDocuments):
            return StoredNames(self, self.documents)
        return self.names_in_memory()

    def names_in_memory(self) -> dict[str, int]:
        """`row_of` as a dictionary of all documents, which is kept from now on: for whoever looks up many at each
        search."""
        if self._row_of is None:
            alive = self.alive
            self._row_of = {doc_id: row for row, doc_id in enumerate(self.documents.doc_ids()) if alive[row]}
        return self._row_of

    def rows_named(self, doc_id: str) -> list[int]:
        """All rows that this doc_id has had, deleted or not."""
        row = self.row_of().get(doc_id)
        return [*self._deleted.get(doc_id, ()), *(() if row is None else (row,))]

    def doc_ids(self) -> list[str]:
        """The doc_id of every row, deleted ones included; read once for as long as the rows stay the same."""
        if self._doc_ids is None:
            self._doc_ids = list(self.documents.doc_ids())
        return self._doc_ids

    def mask(self, filter: Filter | None) -> np.ndarray | None:
        """Rows that may be returned: not deleted, and accepted by the filter. None means every row.

        The array is read-only, and the same one for the same filter until documents are added or deleted (or until
        many other filters came between): callers may cache what they derive from it.
        """
        if filter is None or filter.empty:
            return self._live
        many = len(filter.allow or ()) + len(filter.deny) > MANY
        return self._masks_of_documents().of(filter, self.alive, self.names_in_memory if many else self.row_of)

    def _masks_of_documents(self) -> Masks:
        if self._masks is None:
            self._masks = Masks(self.documents)
        return self._masks


class StoredNames(Mapping[str, int]):
    """doc_id -> row by the store's own index, so that a process need not hold the names of all documents."""

    def __init__(self, rows: Rows, documents: StoredDocuments) -> None:
        self._rows, self._documents = rows, documents

    def __getitem__(self, doc_id: str) -> int:
        numbers = self._documents.store.numbers_of(doc_id, self._rows.version)
        rows = self._documents.sequence.rows_of(numbers).tolist()
        for row in rows:
            if row >= 0 and self._rows.alive[row]:
                return row
        if numbers and int(self._documents.store.facts()["purged"]) > self._rows.version:
            raise Gone(numbers[0])  # another process may have replaced the document that we know by this name
        raise KeyError(doc_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows.names_in_memory())

    def __len__(self) -> int:
        return len(self._rows)
