"""A document as a row of a store: what is kept of it, and the digest that shows when any of it has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from callslip.corpus.documents import ID_CHARACTERS, NO_METADATA, Document
from callslip.errors import BadSetting, CallslipError, IndexCorrupt, closest

DIGEST = 16
"""Bytes of a digest."""
COMPARED = 50_000
"""Names that are read to find the one which a mistyped name may mean."""
NO_DOCUMENT = Document("", "", "", NO_METADATA)
"""Stands in the row of a deleted document whose text is gone."""

Parts = Mapping[str, np.ndarray]
"""What a method needs of a document besides its text, by name: its vector, its code, …"""


@dataclass(frozen=True)
class NewRow:
    """A document that is to be added."""

    document: Document
    code: tuple[int, ...] | None = None
    parts: Parts = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A document of a store. `seq` is its number for ever; `added` and `deleted` are versions of the store."""

    seq: int
    added: int
    deleted: int | None
    document: Document
    code: tuple[int, ...] | None
    parts: Parts


@dataclass(frozen=True)
class Changes:
    """What happened to a store between two versions."""

    version: int
    purged: int
    """Who knows less than this version must read a snapshot: what happened by then may have left no trace."""
    added: list[Row]
    """Documents that are new and still there, in the order of `seq`."""
    deleted: list[tuple[int, str]]
    """`seq` and doc_id of documents that are gone."""


class Gone(CallslipError):
    """A row that was deleted, perhaps by another process, since it was heard of."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"row {seq} was deleted")


class Store(Protocol):
    """Documents, codes and deletions of one living index: what happened last wins, and what is acknowledged lasts.

    Every commit makes the next version. A reader that knows version v asks for what happened since.
    """

    place: str
    """Where it is, for messages."""
    poll_seconds: float
    """How long a reader may rely on the last version that it saw."""
    shared: bool
    """Whether other folders rely on it, too, so that nothing they may need is dropped."""
    read_only: CallslipError | None
    """Why nothing can be written to it; None if something can."""

    @property
    def detached(self) -> bool:
        """Whether it is no longer the store that others see in this place."""

    def facts(self) -> dict[str, str]: ...
    def version(self) -> int: ...
    def commit(self, add: Sequence[NewRow], delete: Sequence[str] = ()) -> int: ...
    def changes(self, since: int) -> Changes: ...
    def deleted(self) -> list[int]: ...
    def read(self, seqs: Sequence[int]) -> list[Document]: ...
    def rows(self) -> Any: ...
    def outline(self) -> Any: ...
    def purge(self, version: int, keep: Sequence[int]) -> None: ...
    def verify(self) -> None: ...
    def close(self) -> None: ...


def encoded(row: NewRow) -> tuple[str, str, str, str | None, str | None, bytes | None]:
    """doc_id, title, text, metadata, code and parts as they are stored."""
    d = row.document
    if not d.doc_id:
        raise BadSetting("a document without a doc_id", "Give every document its own doc_id.")
    if len(d.doc_id) > ID_CHARACTERS:
        raise BadSetting(
            f"the doc_id {d.doc_id[:40]!r}… has {len(d.doc_id):,} characters", f"Use at most {ID_CHARACTERS}."
        )
    try:
        for text in (d.doc_id, d.title, d.text):
            text.encode("utf-8")
        metadata = json.dumps(dict(d.metadata), ensure_ascii=False) if d.metadata else None
        (metadata or "").encode("utf-8")
    except (UnicodeEncodeError, ValueError, TypeError) as error:
        raise BadSetting(
            f"document {d.doc_id!r} cannot be stored: {error}", "Use valid Unicode, and metadata that JSON can hold."
        ) from None
    code = None if row.code is None else json.dumps([int(token) for token in row.code], separators=(",", ":"))
    return d.doc_id, d.title, d.text, metadata, code, pack(row.parts) if row.parts else None


def pack(parts: Parts) -> bytes:
    """Arrays as safetensors, after a digest of their own: they leave the row when a snapshot has them."""
    from safetensors.numpy import save

    contents = save({name: np.ascontiguousarray(value) for name, value in parts.items()})
    return hashlib.sha256(contents).digest()[:DIGEST] + contents


def unpack(contents: bytes | None) -> Parts:
    """The arrays again; ValueError if they are not what was packed."""
    from safetensors.numpy import load

    if contents is None:
        return {}
    if hashlib.sha256(contents[DIGEST:]).digest()[:DIGEST] != contents[:DIGEST]:
        raise ValueError("what the method keeps of the document is damaged")
    return load(contents[DIGEST:])


def digest(seq: int, added: int, deleted: int | None, *texts: str | None) -> bytes:
    """Of all that a row says except its parts. Lengths keep neighbours apart."""
    found = hashlib.sha256(f"{seq} {added} {deleted}".encode())
    for text in texts:
        data = b"" if text is None else text.encode("utf-8")
        found.update(f" {None if text is None else len(data)}:".encode() + data)
    return found.digest()[:DIGEST]


def decoded(values: Sequence[Any]) -> Row:
    """A stored row as it was; ValueError if its digest or its parts do not fit.

    The values: seq, added, deleted, doc_id, title, text, metadata, code, parts, digest.
    """
    checked(values)
    seq, added, deleted, *_, code, parts, _ = values
    return Row(seq, added, deleted, document_of(values), tuple(json.loads(code)) if code else None, unpack(parts))


def checked(values: Sequence[Any]) -> None:
    """ValueError if the digest of a stored row does not fit."""
    try:
        if digest(*values[:8]) != bytes(values[9]):
            raise ValueError(f"the row of document {values[3]!r} is not what was written")
    except (AttributeError, TypeError):
        raise ValueError(f"row {values[0]} is not what was written") from None


def document_of(values: Sequence[Any]) -> Document:
    """The document of a stored row, and nothing else of it."""
    _, _, _, doc_id, title, text, metadata, *_ = values
    return Document(doc_id, text, title, json.loads(metadata) if metadata else NO_METADATA)


def checked_facts(facts: Mapping[str, str]) -> None:
    """ValueError if what a store says about itself is not what was written, or makes no sense."""
    if facts.get("digest") != facts_digest(facts):
        raise ValueError("what the store says of itself is damaged")
    for name in ("version", "purged", "last", "rows"):
        if not facts.get(name, "").isdecimal():
            raise ValueError(f"what the store says of itself makes no sense: {name} is {facts.get(name)!r}")


def facts_digest(facts: Mapping[str, str]) -> str:
    """Of what a store says about itself."""
    whole = json.dumps({name: facts[name] for name in sorted(facts) if name != "digest"})
    return hashlib.sha256(whole.encode()).hexdigest()[: 2 * DIGEST]


def already(doc_id: str) -> CallslipError:
    return CallslipError(f"document {doc_id!r} is in the index already", "Delete it first, update it, or leave it out.")


def missing(doc_id: str, known: Collection[str] = ()) -> CallslipError:
    """The error that names a document which is not there, and the one of `known` that may be meant."""
    close = closest(doc_id, known)
    hint = f" The nearest name there is {close[0]!r}." if close else ""
    return CallslipError(
        f"there is no document {doc_id!r} in the index", f"It may be deleted already; check the doc_id.{hint}"
    )


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
