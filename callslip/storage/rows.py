"""Rows: how a store keeps documents, with digests that reveal damage; the store's number of each row; and the documents
of an index by row, in memory after `fit` or in a store after `save`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from callslip.corpus.documents import ID_CHARACTERS, NO_METADATA, Document
from callslip.errors import BadSetting, CallslipError, IndexCorrupt, closest

DIGEST = 16
"""Length of a digest in bytes."""
COMPARED = 50_000
"""Maximum number of doc_ids searched for the nearest to a mistyped one."""
NO_DOCUMENT = Document("", "", "", NO_METADATA)
"""Placeholder for a deleted document whose text has been removed."""

Parts = Mapping[str, np.ndarray]
"""Arrays that a method needs for a document besides its text, by name: its vector, its code, …"""


@dataclass(frozen=True)
class NewRow:
    """A document to add."""

    document: Document
    code: tuple[int, ...] | None = None
    parts: Parts = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A document of a store. `seq` is its permanent number; `added` and `deleted` are versions of the store."""

    seq: int
    added: int
    deleted: int | None
    document: Document
    code: tuple[int, ...] | None
    parts: Parts


@dataclass(frozen=True)
class Changes:
    """Changes to a store between two versions."""

    version: int
    purged: int
    """Readers behind this version must read a snapshot: earlier deletions may have been purged from the store."""
    added: list[Row]
    """Documents that were added and not deleted since, ordered by `seq`."""
    deleted: list[tuple[int, str]]
    """`seq` and doc_id of deleted documents."""
    generation: int = 0
    """Readers of an earlier generation must read the present one: it holds more than the documents' changes."""
    updated: frozenset[int] = frozenset()
    """`seq` of the deleted documents that updates have replaced by one that is still there."""


def updated(gone: Iterable[tuple[int, str, int, int]], added: Iterable[Row]) -> frozenset[int]:
    """Which of the deleted rows (seq, doc_id, added, deleted) were replaced by updates: an update deletes and adds in
    one version. A document that was deleted, and added again later, is another one."""
    gone, until = list(gone), {}
    for row in added:
        until[row.document.doc_id, row.added] = 0
    for _, doc_id, since, deleted in gone:
        until[doc_id, since] = deleted

    def replaced(doc_id: str, version: int) -> bool:
        while version and (doc_id, version) in until:
            version = until[doc_id, version]
        return version == 0

    return frozenset(seq for seq, doc_id, _, deleted in gone if replaced(doc_id, deleted))


class Gone(CallslipError):
    """A requested row has been deleted, possibly by another process."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"row {seq} was deleted")


class Store(Protocol):
    """Documents, codes and deletions of one index: the last change wins, and an acknowledged change is durable.

    Every commit creates the next version. A reader at version v asks for the changes since v.
    """

    place: str
    """Its location, for messages."""
    poll_seconds: float
    """Seconds for which a reader may assume that the version has not changed."""
    shared: bool
    """Whether other folders use it too, so that nothing they may need is deleted."""
    read_only: CallslipError | None
    """The reason why it is read-only; None if it is writable."""

    @property
    def detached(self) -> bool:
        """Whether its files were replaced, so that others see another store at this location."""

    def facts(self) -> dict[str, str]: ...
    def version(self) -> int: ...
    def commit(self, add: Sequence[NewRow], delete: Sequence[str] = ()) -> int: ...
    def changes(self, since: int) -> Changes: ...
    def deleted(self) -> list[int]: ...
    def deleted_names(self, until: int | None = None) -> list[tuple[int, str]]: ...
    def numbers_of(self, doc_id: str, version: int) -> list[int]: ...
    def read(self, seqs: Sequence[int]) -> list[Document]: ...
    def rows(self) -> Any: ...
    def outline(self) -> Any: ...
    def purge(self, version: int, keep: Iterable[int], generation: int | None = None) -> None: ...
    def verify(self) -> None: ...
    def close(self) -> None: ...


def encoded(row: NewRow) -> tuple[str, str, str, str | None, str | None, bytes | None]:
    """doc_id, title, text, metadata, code and parts in their stored form."""
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
    """Arrays as safetensors, preceded by their own digest: they are dropped from the row once a snapshot has them."""
    from safetensors.numpy import save

    contents = save({name: np.ascontiguousarray(value) for name, value in parts.items()})
    return hashlib.sha256(contents).digest()[:DIGEST] + contents


def unpack(contents: bytes | None) -> Parts:
    """The arrays of `pack`; ValueError if their digest does not match."""
    from safetensors.numpy import load

    if contents is None:
        return {}
    if hashlib.sha256(contents[DIGEST:]).digest()[:DIGEST] != contents[:DIGEST]:
        raise ValueError("the arrays of the document are damaged")
    return load(contents[DIGEST:])


def digest(seq: int, added: int, deleted: int | None, *texts: str | None) -> bytes:
    """Digest of all fields of a row except its parts. Length prefixes keep adjacent fields apart."""
    found = hashlib.sha256(f"{seq} {added} {deleted}".encode())
    for text in texts:
        data = b"" if text is None else text.encode("utf-8")
        found.update(f" {None if text is None else len(data)}:".encode() + data)
    return found.digest()[:DIGEST]


def decoded(values: Sequence[Any]) -> Row:
    """Decode a stored row; ValueError if the digest of the row or of its parts does not match.

    The values: seq, added, deleted, doc_id, title, text, metadata, code, parts, digest.
    """
    checked(values)
    seq, added, deleted, *_, code, parts, _ = values
    return Row(seq, added, deleted, document_of(values), tuple(json.loads(code)) if code else None, unpack(parts))


def checked(values: Sequence[Any]) -> None:
    """ValueError if the digest of a stored row does not match."""
    try:
        if digest(*values[:8]) != bytes(values[9]):
            raise ValueError(f"the row of document {values[3]!r} is not what was written")
    except (AttributeError, TypeError):
        raise ValueError(f"row {values[0]} is not what was written") from None


def document_of(values: Sequence[Any]) -> Document:
    """Only the document of a stored row."""
    _, _, _, doc_id, title, text, metadata, *_ = values
    return Document(doc_id, text, title, json.loads(metadata) if metadata else NO_METADATA)


def checked_facts(facts: Mapping[str, str]) -> None:
    """ValueError if the facts of a store (its version, counts, …) are damaged or invalid."""
    if facts.get("digest") != facts_digest(facts):
        raise ValueError("what the store says of itself is damaged")
    for name in ("version", "purged", "last", "rows"):
        if not facts.get(name, "").isdecimal():
            raise ValueError(f"what the store says of itself makes no sense: {name} is {facts.get(name)!r}")


def facts_digest(facts: Mapping[str, str]) -> str:
    """Digest of the facts of a store."""
    whole = json.dumps({name: facts[name] for name in sorted(facts) if name != "digest"})
    return hashlib.sha256(whole.encode()).hexdigest()[: 2 * DIGEST]


def already(doc_id: str) -> CallslipError:
    return CallslipError(f"document {doc_id!r} is in the index already", "Delete it first, update it, or leave it out.")


def missing(doc_id: str, known: Collection[str] = ()) -> CallslipError:
    """The error for an unknown doc_id, with the nearest of `known`."""
    close = closest(doc_id, known)
    hint = f" The nearest name there is {close[0]!r}." if close else ""
    return CallslipError(
        f"there is no document {doc_id!r} in the index", f"It may be deleted already; check the doc_id.{hint}"
    )


class Numbers:
    """The store's number of each row: ascending numbers from 1, as runs, so that a fresh index has one run. Appending
    does not copy those that are there."""

    def __init__(self, firsts: np.ndarray | Sequence[int] = (), counts: np.ndarray | Sequence[int] = ()) -> None:
        """`firsts` are the first numbers of the runs, and `counts` how many each has, at least one."""
        self._runs = len(firsts)
        self._firsts = np.array(firsts, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)
        """Row at which each run begins; after the last, the number of rows."""

    @classmethod
    def of(cls, numbers: np.ndarray | Sequence[int]) -> Numbers:
        values = np.asarray(numbers, np.int64)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(values) != 1) + 1])[: len(values)]
        return cls(values[starts], np.diff(np.append(starts, len(values))))

    def __len__(self) -> int:
        return int(self._starts[self._runs])

    def __iter__(self) -> Iterator[int]:
        for run in range(self._runs):
            first = int(self._firsts[run])
            yield from range(first, first + int(self._starts[run + 1] - self._starts[run]))

    def of_rows(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """The numbers of these rows; IndexError if there is no such row."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"no row {int(rows.max())}")
        run = np.searchsorted(self._starts[: self._runs + 1], rows, side="right") - 1
        return self._firsts[run] + rows - self._starts[run]

    def rows_of(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """The row of each number; -1 for a number that is not there."""
        wanted = np.asarray(numbers, np.int64)
        if not self._runs:
            return np.full(len(wanted), -1, np.int64)
        run = np.searchsorted(self._firsts[: self._runs], wanted, side="right") - 1
        rows = self._starts[np.maximum(run, 0)] + wanted - self._firsts[np.maximum(run, 0)]
        return np.where((run >= 0) & (rows < self._starts[run + 1]), rows, -1)

    def last(self) -> int:
        """The last number, or 0."""
        return 0 if not len(self) else int(self.of_rows([len(self) - 1])[0])

    def extend(self, numbers: Iterable[int]) -> None:
        """Append numbers above the last."""
        for number in numbers:
            if number == self.last() + 1 and self._runs:
                self._starts[self._runs] += 1
                continue
            if self._runs == len(self._firsts):
                room = max(16, self._runs)
                self._firsts = np.concatenate([self._firsts, np.zeros(room, np.int64)])
                self._starts = np.concatenate([self._starts, np.zeros(room, np.int64)])
            self._firsts[self._runs] = number
            self._starts[self._runs + 1] = self._starts[self._runs] + 1
            self._runs += 1

    def copy(self) -> Numbers:
        return Numbers(self._firsts[: self._runs], np.diff(self._starts[: self._runs + 1]))

    def taken(self, rows: np.ndarray) -> Numbers:
        """The numbers of these rows, which ascend."""
        return Numbers.of(self.of_rows(rows))

    def tolist(self) -> list[int]:
        return list(self)

    def array(self) -> np.ndarray:
        """As they are saved: first number and length of each run, [runs, 2]; or every number, if that is shorter."""
        if 2 * self._runs < len(self):
            return np.stack([self._firsts[: self._runs], np.diff(self._starts[: self._runs + 1])], axis=1)
        return np.fromiter(self, np.int64, len(self))


def read_numbers(path: Path) -> Numbers:
    """Read what `Numbers.array` gives, and refuse anything else."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a wrong length allocates nothing
        whole = isinstance(found, np.ndarray) and found.ndim in (1, 2) and found.dtype == np.int64
    except (ValueError, EOFError, SyntaxError, OverflowError, TypeError) as error:
        raise IndexCorrupt(path, f"is not an array of row numbers ({error})") from None
    if not whole or (found.ndim == 2 and found.shape[1] != 2):
        raise IndexCorrupt(path, "is not an array of row numbers")
    if found.ndim == 1:
        if len(found) and (found[0] < 1 or (np.diff(found) <= 0).any()):
            raise IndexCorrupt(path, "the numbers of rows do not rise")
        return Numbers.of(found)
    firsts, counts = found[:, 0], found[:, 1]
    wrong = (counts < 1).any() or (counts > 1 << 48).any() or (firsts > 1 << 48).any()
    if wrong or (len(found) and firsts[0] < 1) or (firsts[1:] < firsts[:-1] + counts[:-1]).any():
        raise IndexCorrupt(path, "the numbers of rows do not rise")
    return Numbers(firsts, counts)


@runtime_checkable
class Documents(Protocol):
    """Documents by row number, in the order in which they were added."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Document]: ...
    def rows(self, rows: Sequence[int]) -> list[Document]: ...
    def doc_ids(self) -> Iterator[str]: ...
    def metadata(self) -> Iterator[Mapping[str, Any]]: ...


class MemoryDocuments:
    """Documents in a list."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = list(documents)

    def __len__(self) -> int:
        return len(self._documents)

    def extend(self, documents: Sequence[Document]) -> None:
        """Take more documents after the present ones."""
        self._documents.extend(documents)

    def __iter__(self) -> Iterator[Document]:
        return iter(self._documents)

    def rows(self, rows: Sequence[int]) -> list[Document]:
        return [self._documents[row] for row in rows]

    def doc_ids(self) -> Iterator[str]:
        return (document.doc_id for document in self._documents)

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        return (document.metadata for document in self._documents)


class StoredDocuments:
    """Documents read from a store on demand. `sequence` holds the store's number of each row, in ascending order."""

    def __init__(self, store: Store, sequence: Numbers) -> None:
        self.store, self.sequence = store, sequence.copy()

    def extend(self, numbers: Iterable[int]) -> None:
        """Take more documents of the store after the present ones, by their numbers."""
        self.sequence.extend(numbers)

    def __len__(self) -> int:
        return len(self.sequence)

    def __iter__(self) -> Iterator[Document]:
        yield from self._in_order(self.store.rows(), lambda row: row.seq, lambda row: row.document, NO_DOCUMENT)

    def rows(self, rows: Sequence[int]) -> list[Document]:
        try:
            return self.store.read(self.sequence.of_rows(rows).tolist())
        except IndexError:
            raise IndexCorrupt(self.store.place, "the snapshot has rows that it gives no number of the store") from None

    # Filters need these for every row; titles and texts, most of the file, are not decoded for them.

    def doc_ids(self) -> Iterator[str]:
        yield from self._in_order(self.store.outline(), lambda row: row[0], lambda row: row[1], "")

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        found = self._in_order(self.store.outline(), lambda row: row[0], lambda row: row[2], None)
        yield from (json.loads(text) if text else NO_METADATA for text in found)

    def _in_order(self, rows: Iterable[Any], seq: Callable[[Any], int], value: Callable[[Any], Any], no: Any) -> Any:
        """The value of each of our rows; `no` if the row was deleted and has been purged from the store."""
        stored = iter(rows)
        row = next(stored, None)
        for wanted in self.sequence:
            while row is not None and seq(row) < wanted:
                row = next(stored, None)
            yield value(row) if row is not None and seq(row) == wanted else no
