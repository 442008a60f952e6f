"""Masks of the rows that a filter accepts, cached until the documents change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from callslip.corpus.documents import Document
from callslip.filters.filter import Filter
from callslip.filters.metadata import MetadataIndex

KEPT = 16
"""Maximum number of cached masks, which take one byte per document each; a user interface has only a few filters."""

FEW = 8
"""A predicate reads single documents if at most one in this many is left, and scans all documents otherwise."""


class Source(Protocol):
    """The interface of an index's documents that masks need."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Document]: ...
    def rows(self, rows: Sequence[int]) -> list[Document]: ...
    def metadata(self) -> Iterator[Mapping[str, Any]]: ...


class Masks:
    """Masks over the rows of documents. New documents need `extend`, deletions `forget`."""

    def __init__(self, documents: Source) -> None:
        self._documents = documents
        self._metadata = MetadataIndex(documents.metadata, len(documents))
        self._kept: OrderedDict[Hashable, np.ndarray | None] = OrderedDict()
        # A server searches in several threads. Indexing a field must not block access to cached masks.
        self._lock, self._indexing = threading.Lock(), threading.Lock()

    def of(
        self, filter: Filter | None, alive: np.ndarray, row_of: Callable[[], Mapping[str, int]]
    ) -> np.ndarray | None:
        """Read-only mask of the rows that are alive and accepted; None means all rows. Equal filters share an array."""
        filter = None if filter is None or filter.empty else filter
        key = None if filter is None else filter.key()
        if filter is not None and key is None:
            return self._make(filter, alive, row_of)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = self._make(filter, alive, row_of)
        with self._lock:
            mask = self._kept.setdefault(key, made)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return mask

    def extend(self, documents: Sequence[Document]) -> None:
        """Take new documents: only these are indexed."""
        self._metadata.extend([document.metadata for document in documents])
        self.forget()

    def forget(self) -> None:
        """Drop cached masks after a deletion. The metadata index does not depend on deletions and is kept."""
        with self._lock:
            self._kept.clear()

    def _make(
        self, filter: Filter | None, alive: np.ndarray, row_of: Callable[[], Mapping[str, int]]
    ) -> np.ndarray | None:
        if filter is None and alive.all():
            return None
        mask = alive.copy()
        if filter is not None:
            if filter.fields:
                with self._indexing:
                    mask &= self._metadata.mask(filter)
            if filter.allow is not None:
                allowed = np.zeros(len(mask), dtype=bool)
                allowed[_rows(filter.allow, row_of())] = True
                mask &= allowed
            if filter.deny:
                mask[_rows(filter.deny, row_of())] = False
            if filter.predicate is not None:
                self._ask(filter.predicate, mask)
        mask.flags.writeable = False
        return mask

    def _ask(self, predicate: Callable[[Document], bool], mask: np.ndarray) -> None:
        """Clear the rows that the predicate rejects. Only documents that pass all other conditions are tested."""
        left: list[int] = np.flatnonzero(mask).tolist()
        if len(left) * FEW <= len(mask):
            for row, document in zip(left, self._documents.rows(left), strict=True):
                mask[row] = bool(predicate(document))
            return
        for row, document in enumerate(self._documents):
            if mask[row]:
                mask[row] = bool(predicate(document))


def _rows(doc_ids: frozenset[str], row_of: Mapping[str, int]) -> np.ndarray:
    return np.array([row_of[doc_id] for doc_id in doc_ids if doc_id in row_of], dtype=np.int64)
