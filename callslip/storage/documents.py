"""The documents of an index: in memory after `fit`, in SQLite after `save`. Both answer alike."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from callslip.corpus.documents import NO_METADATA, Document
from callslip.errors import IndexCorrupt

FILE = "documents.sqlite"


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


class SqliteDocuments:
    """Documents read from a saved index when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / FILE
        try:
            # immutable: a saved index is never changed in place, so no lock or journal file is needed beside it.
            self._connection = sqlite3.connect(
                f"file:{_quoted(self.path)}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            self._count = self._connection.execute("SELECT count(*) FROM documents").fetchone()[0]
        except sqlite3.Error as error:
            raise IndexCorrupt(self.path, f"cannot be read: {error}") from None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Document]:
        for values in self._connection.execute("SELECT doc_id, title, text, metadata FROM documents ORDER BY row"):
            yield _document(values)

    def rows(self, rows: Sequence[int]) -> list[Document]:
        query = "SELECT doc_id, title, text, metadata FROM documents WHERE row = ?"
        return [_document(self._connection.execute(query, (int(row),)).fetchone()) for row in rows]

    # Filters ask these of every row; titles and texts, nearly all of the file's bytes, are not decoded for them.

    def doc_ids(self) -> Iterator[str]:
        for (doc_id,) in self._connection.execute("SELECT doc_id FROM documents ORDER BY row"):
            yield doc_id

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        for (metadata,) in self._connection.execute("SELECT metadata FROM documents ORDER BY row"):
            yield json.loads(metadata) if metadata else NO_METADATA

    def close(self) -> None:
        self._connection.close()


def write_documents(folder: Path, documents: Iterable[Document]) -> None:
    """Write the documents, in order, into a new database in the folder."""
    connection = sqlite3.connect(folder / FILE)
    try:
        connection.execute(
            "CREATE TABLE documents (row INTEGER PRIMARY KEY, doc_id TEXT NOT NULL, "
            "title TEXT NOT NULL, text TEXT NOT NULL, metadata TEXT)"
        )
        connection.executemany(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?)",
            (
                (
                    row,
                    d.doc_id,
                    d.title,
                    d.text,
                    json.dumps(dict(d.metadata), ensure_ascii=False) if d.metadata else None,
                )
                for row, d in enumerate(documents)
            ),
        )
        connection.commit()
    finally:
        connection.close()


def _document(values: tuple[Any, ...]) -> Document:
    doc_id, title, text, metadata = values
    return Document(doc_id, text, title, json.loads(metadata) if metadata else NO_METADATA)


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path.resolve()))
