"""Rows: the documents of an index in memory, by row number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from callslip.corpus.documents import Document
from callslip.errors import CallslipError
from callslip.filters.filter import Filter
from callslip.filters.masks import Masks
from callslip.storage.rows import Documents


class Rows:
    """Which documents there are, which of them are deleted, and which a filter accepts.

    A deleted document keeps its row until the index is compacted.
    """

    def __init__(self) -> None:
        self._documents: Documents | None = None
        self._row_of: dict[str, int] | None = None
        self._masks: Masks | None = None
        self._doc_ids: list[str] | None = None
        self.alive = np.zeros(0, dtype=bool)
        """False in the rows of deleted documents, [rows]."""
        self._all_alive = True
        self.trained = 0
        """Number of documents that the index was fitted on; they come first."""

    def __len__(self) -> int:
        """Number of documents that are not deleted."""
        return int(self.alive.sum())

    @property
    def documents(self) -> Documents:
        if self._documents is None:
            raise CallslipError("this retriever is not fitted", "Call fit(corpus) first, or load a saved index.")
        return self._documents

    def replace(self, documents: Documents, deleted: Sequence[int] | np.ndarray = ()) -> None:
        """Take other documents, of which the rows `deleted` are deleted."""
        self._documents = documents
        self._masks = self._row_of = self._doc_ids = None
        self.alive = np.ones(len(documents), dtype=bool)
        self.alive[np.asarray(deleted, dtype=np.int64)] = False
        self._all_alive = not len(deleted)

    def move(self, documents: Documents) -> None:
        """Read the same documents from another place: from a store instead of from memory."""
        self._documents, self._masks, self._doc_ids = documents, None, None

    def append(self, new: Sequence[Document], documents: Documents) -> None:
        """Take `documents`: the present ones and, after them, the new ones."""
        alive, known = self.alive, self._row_of
        self.replace(documents)
        self.alive[: len(alive)] = alive
        self._all_alive = bool(alive.all())
        if known is not None:
            known.update({document.doc_id: row for row, document in enumerate(new, start=len(alive))})
            self._row_of = known

    def delete(self, rows: Sequence[int], doc_ids: Sequence[str]) -> None:
        """Mark rows as deleted; `doc_ids` are those of the rows."""
        if not len(rows):
            return
        self.alive[list(rows)] = False
        self._all_alive = False
        if self._row_of is not None:
            for row, doc_id in zip(rows, doc_ids, strict=True):
                if self._row_of.get(doc_id) == row:  # a new document may have the doc_id of a deleted one
                    del self._row_of[doc_id]
        self._masks_of_documents().forget()

    def row_of(self) -> dict[str, int]:
        """doc_id -> row, for the documents that are not deleted."""
        if self._row_of is None:
            self._row_of = {doc_id: row for row, doc_id in enumerate(self.documents.doc_ids()) if self.alive[row]}
        return self._row_of

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
        if filter is None and self._all_alive:
            return None
        return self._masks_of_documents().of(filter, self.alive, self.row_of)

    def _masks_of_documents(self) -> Masks:
        if self._masks is None:
            self._masks = Masks(self.documents)
        return self._masks
