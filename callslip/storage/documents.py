"""The documents of an index: in memory after `fit`, in a store after `save`. Both answer alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from callslip.corpus.documents import NO_METADATA, Document
from callslip.errors import IndexCorrupt

if TYPE_CHECKING:
    from callslip.storage.rows import Store

NO_DOCUMENT = Document("", "", "", NO_METADATA)
"""Stands in the row of a deleted document whose text is gone."""


class Documents(Protocol):
    """Documents by row number, which is the order in which they were given."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Document]: ...
    def rows(self, rows: Sequence[int]) -> list[Document]: ...
    def doc_ids(self) -> Iterator[str]: ...
    def metadata(self) -> Iterator[Mapping[str, Any]]: ...


class MemoryDocuments:
    """Documents held in a list."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = list(documents)

    def __len__(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[Document]:
        return iter(self._documents)

    def rows(self, rows: Sequence[int]) -> list[Document]:
        return [self._documents[row] for row in rows]

    def doc_ids(self) -> Iterator[str]:
        return (document.doc_id for document in self._documents)

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        return (document.metadata for document in self._documents)


class StoredDocuments:
    """Documents read from a store when they are asked for. `sequence` holds the store's number of each row, rising."""

    def __init__(self, store: Store, sequence: np.ndarray) -> None:
        self.store, self.sequence = store, sequence

    def __len__(self) -> int:
        return len(self.sequence)

    def __iter__(self) -> Iterator[Document]:
        yield from self._in_order(self.store.rows(), lambda row: row.seq, lambda row: row.document, NO_DOCUMENT)

    def rows(self, rows: Sequence[int]) -> list[Document]:
        try:
            return self.store.read([int(self.sequence[row]) for row in rows])
        except IndexError:
            raise IndexCorrupt(self.store.place, "the snapshot has rows that it gives no number of the store") from None

    # Filters ask these of every row; titles and texts, nearly all of the file's bytes, are not decoded for them.

    def doc_ids(self) -> Iterator[str]:
        yield from self._in_order(self.store.outline(), lambda row: row[0], lambda row: row[1], "")

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        found = self._in_order(self.store.outline(), lambda row: row[0], lambda row: row[2], None)
        yield from (json.loads(text) if text else NO_METADATA for text in found)

    def _in_order(self, rows: Iterable[Any], seq: Callable[[Any], int], value: Callable[[Any], Any], no: Any) -> Any:
        """The value of each row of ours; `no` where the store has dropped a deleted one meanwhile."""
        stored = iter(rows)
        row = next(stored, None)
        for wanted in self.sequence.tolist():
            while row is not None and seq(row) < wanted:
                row = next(stored, None)
            yield value(row) if row is not None and seq(row) == wanted else no
