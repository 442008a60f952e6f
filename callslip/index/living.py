"""Living: documents that are added, deleted and updated, in memory or in a folder.

An index that was saved to a folder or loaded from one lives there. A change is on disk before the call returns; only
then is it read back and applied in memory, by the same path as the changes of other processes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np

from callslip.corpus.documents import Document
from callslip.errors import BadSetting, CallslipError, Unsupported
from callslip.index.rows import Rows
from callslip.storage import folder as folders
from callslip.storage.home import Home
from callslip.storage.rows import (
    Changes,
    Gone,
    MemoryDocuments,
    NewRow,
    Numbers,
    Parts,
    StoredDocuments,
    already,
    missing,
)

if TYPE_CHECKING:
    from callslip.storage.drift import Drift

TRIES = 5
A_DOCUMENT = 'callslip.Document("an id", "a text")'
T = TypeVar("T")


class Gate:
    """A readers-writer lock: many may search, or one may change what is searched."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._searching = self._waiting = 0

    @contextmanager
    def searching(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._waiting)  # or a change would wait as long as there are searches
            self._searching += 1
        try:
            yield
        finally:
            with self._condition:
                self._searching -= 1
                self._condition.notify_all()

    @contextmanager
    def changing(self) -> Iterator[None]:
        with self._condition:
            self._waiting += 1
            try:
                self._condition.wait_for(lambda: not self._searching)
            finally:
                self._waiting -= 1
            try:
                yield
            finally:
                self._condition.notify_all()


class Contents(Protocol):
    """What changes need of a method: its `Retriever`."""

    rows: Rows
    writes_codes: ClassVar[bool]

    def prepare(self, documents: list[Document]) -> Parts:
        """What `extend` needs of new documents besides their texts: arrays of one row a document."""

    def extend(self, documents: list[Document], parts: Parts) -> None:
        """Append new documents to the present rows. `rows.documents` still holds the present ones only."""

    def forget(self, rows: list[int]) -> None:
        """Follow the deletion of rows, which stay until the next `keep`."""

    def keep(self, rows: np.ndarray) -> None:
        """Drop all rows but these, and number them anew from 0. `rows.documents` still holds all."""

    def codes_by_row(self) -> np.ndarray | None:
        """The code of every row, padded with -1; None for a method without codes."""

    def write_files(self, folder: Path) -> None:
        """Write all files of a generation."""

    def read_files(self, folder: Path) -> None:
        """Read what `write_files` wrote."""

    def describe(self) -> dict[str, Any]:
        """Method, settings, corpus and cost, for the manifest."""

    def take_description(self, manifest: dict[str, Any]) -> None:
        """Read what `describe` wrote."""


class Living:
    """Applies changes to an index, and reads and writes its folder."""

    def __init__(self, contents: Contents) -> None:
        # The retriever owns this object. With a strong reference back, an unused index would keep its memory and files
        # until the garbage collector finds the cycle.
        self._contents: Contents = weakref.proxy(contents)
        self._home: Home | None = None
        self._looked = 0.0
        self.gate = Gate()

    @property
    def rows(self) -> Rows:
        return self._contents.rows

    @property
    def version(self) -> int:
        """Version of the store that is in memory."""
        return self.rows.version

    @version.setter
    def version(self, version: int) -> None:
        self.rows.version = version

    @property
    def home(self) -> Home:
        """The open folder, or an error for an index that was never saved."""
        if self._home is None:
            raise CallslipError("this index is not in a folder", "Save it first, or load one.")
        return self._home

    @property
    def generation(self) -> int:
        """Number of the snapshot that the folder's manifest names."""
        return int(self.home.manifest["generation"])

    def detach(self) -> None:
        """Leave the folder; the index there stays as it is."""
        self._home = None

    def read(self, ask: Callable[[], T], *, now: bool = False) -> T:
        """Run `ask` on a steady index. Asks again if another process deleted a document that it reads."""
        for attempt in range(TRIES):
            self.refresh(now=now or attempt > 0)
            try:
                with self.gate.searching():
                    return ask()
            except Gone:  # without the deleted document there is room for another
                continue
        raise CallslipError("documents are deleted faster than they can be read", "Try again.")

    # Changes.

    def add(self, documents: Iterable[Document]) -> None:
        new = self._checked(documents)
        known = self.rows.row_of()
        for document in new:
            if document.doc_id in known:
                raise already(document.doc_id)
        self._change(new, [])

    def delete(self, doc_ids: Iterable[str]) -> None:
        if isinstance(doc_ids, str):
            raise BadSetting(f"delete takes a list of doc_ids, not {doc_ids!r}", f"Write delete([{doc_ids!r}]).")
        wanted = list(dict.fromkeys(doc_ids))
        for doc_id in wanted:
            if not isinstance(doc_id, str):
                raise BadSetting(f"the doc_id {doc_id!r} is no string", f"Write {str(doc_id)!r}.")
        known = self.rows.row_of()
        for doc_id in wanted:
            if doc_id not in known:
                raise missing(doc_id, known)
        self._change([], wanted)

    def update(self, documents: Iterable[Document]) -> None:
        new = self._checked(documents)
        known = self.rows.row_of()
        self._change(new, [document.doc_id for document in new if document.doc_id in known])

    def _checked(self, documents: Iterable[Document]) -> list[Document]:
        self.refresh()
        if isinstance(documents, (Document, str, Mapping)) or not isinstance(documents, Iterable):
            given = type(documents).__name__
            raise BadSetting(f"a list of documents is needed, not a {given}", f"Write [{A_DOCUMENT}].")
        new, seen = list(documents), set()
        for number, document in enumerate(new):
            if not isinstance(document, Document):
                raise BadSetting(f"document {number} is a {type(document).__name__}", f"Give {A_DOCUMENT}.")
            if not isinstance(document.doc_id, str) or not isinstance(document.text, str):
                raise BadSetting(f"document {number} has a doc_id or text that is no string", f"Give {A_DOCUMENT}.")
            if document.doc_id in seen:
                raise already(document.doc_id)
            seen.add(document.doc_id)
        return new

    def _change(self, new: list[Document], gone: list[str]) -> None:
        if not new and not gone:
            return
        parts = self._contents.prepare(new) if new else {}
        if self._home is not None:
            rows = [NewRow(d, _code_in(parts, n), {k: v[n] for k, v in parts.items()}) for n, d in enumerate(new)]
            self._home.commit(rows, gone)
            self.refresh(now=True)
            return
        with self.gate.changing():
            deleted = [self.rows.row_of()[doc_id] for doc_id in gone]
            if new:
                self._contents.extend(new, parts)
                documents = self.rows.documents
                assert isinstance(documents, MemoryDocuments)
                documents.extend(new)
                self.rows.append(new)
            self._delete(deleted, gone)

    def _delete(self, rows: list[int], doc_ids: list[str]) -> None:
        self.rows.delete(rows, doc_ids)
        if rows:
            self._contents.forget(rows)

    # The folder.

    def open(self, home: Home) -> None:
        """Read everything from a folder, and live there."""
        self._home = home
        # Later deletions are changes, as are updates.
        deleted = _in_rows(home.sequence, home.store.deleted_names(home.version))
        self.rows.replace(StoredDocuments(home.store, home.sequence), deleted)
        self.version = home.version
        self._contents.take_description(home.manifest)
        self._contents.read_files(home.snapshot)
        if deleted:
            self._contents.forget(list(deleted))
        self.refresh(now=True)

    def save(self, path: str | Path) -> None:
        if self._home is not None and Path(path).resolve() == self._home.path.resolve():
            self.compact()
            return
        self.refresh()
        with self.gate.searching():
            codes, documents = self._contents.codes_by_row(), self.rows.documents
            rows = (
                (NewRow(d if alive else Document(f"deleted {row}", ""), _without_end(codes, row)), bool(alive))
                for row, (d, alive) in enumerate(zip(documents, self.rows.alive, strict=True))
            )
            folders.write_index(path, self._contents.describe(), self._contents.write_files, rows)
        if self._home is None:
            self._home = Home.open(path, verify=False)
            self.rows.move(StoredDocuments(self._home.store, self._home.sequence))
            self.version = self._home.version

    def refresh(self, now: bool = False) -> None:
        """Apply what other processes have changed; looked for every few moments, or `now`."""
        home = self._home
        if home is None or (not now and time.monotonic() - self._looked < home.store.poll_seconds):
            return
        self._looked = time.monotonic()
        if home.store.version() == self.version:
            return
        since = self.version
        changes = home.store.changes(since)  # read while searches go on
        with self.gate.changing():
            if self._home is not home or self.version != since:  # another thread was faster
                home = self.home
                changes = home.store.changes(self.version)
            # What happened meanwhile is only in a snapshot that we do not have.
            if changes.purged > self.version or changes.generation > self.generation:
                # The old store is closed when the last thread that reads it lets go of it.
                self.open(Home.open(home.path))
            elif changes.version > self.version:
                self._apply(home, changes)

    def _apply(self, home: Home, changes: Changes) -> None:
        numbers = dict(changes.deleted)
        known = _in_rows(self._sequence(home), changes.deleted)
        replaced = set(_in_rows(self._sequence(home), [(seq, numbers[seq]) for seq in changes.updated]))
        known = {row: doc_id for row, doc_id in known.items() if self.rows.alive[row]}
        # A method sees in `extend` that a document is updated by the row that is still alive, here as in memory.
        for last in (False, True):
            if last and changes.added:
                names = changes.added[0].parts.keys()
                parts = {name: np.stack([row.parts[name] for row in changes.added]) for name in names}
                new = [row.document for row in changes.added]
                self._contents.extend(new, parts)
                documents = self.rows.documents
                assert isinstance(documents, StoredDocuments)
                documents.extend(row.seq for row in changes.added)
                self.rows.append(new)
            some = {row: doc_id for row, doc_id in known.items() if (row in replaced) is last}
            self._delete(list(some), list(some.values()))
        self.version = changes.version

    def _sequence(self, home: Home) -> Numbers:
        """The store's number of each row."""
        documents = self.rows.documents
        return documents.sequence if isinstance(documents, StoredDocuments) else home.sequence

    def compact(self) -> None:
        home = self.home
        with folders.locked(home.path):
            self._catch_up()
            with self.gate.changing():
                home = self.home
                sequence = self._sequence(home)
                rows = np.flatnonzero(self.rows.alive)
                if 0 < len(rows) < len(self.rows.alive):
                    self._contents.keep(rows)
                    sequence = sequence.taken(rows)
                    self.rows.replace(StoredDocuments(home.store, sequence))
                home.write_generation(self._contents.write_files, sequence, self.version)

    def revise(self, plan: Callable[[], T | None], swap: Callable[[T], T]) -> bool:
        """Change what is no document, such as the memory of earlier queries; when this returns, the change is on disk.

        `plan` computes the new part while searches go on, or returns None if there is nothing to change; `swap` puts a
        part in the place of the present one, which it returns. A new generation is written, and every other process
        opens it before its next search. If it cannot be written, the previous part is put back. Returns whether
        anything changed.
        """
        home = self._home
        if home is None:
            return self._swapped(plan, swap, lambda: None)
        if home.store.shared:
            raise Unsupported(
                "an index that shares its documents in PostgreSQL cannot learn: every machine has its own snapshot",
                "Learn before `callslip share`, and copy the folder to each machine afterwards.",
            )
        if home.read_only is not None:
            raise home.read_only
        with folders.locked(home.path):
            self._catch_up()
            return self._swapped(plan, swap, self._write_revised)

    def _swapped(self, plan: Callable[[], T | None], swap: Callable[[T], T], write: Callable[[], None]) -> bool:
        while True:
            with self.gate.searching():
                changes, new = self.rows.changes, plan()
            if new is None:
                return False
            with self.gate.changing():
                if self.rows.changes != changes:
                    continue  # documents were added or deleted since the plan
                old = swap(new)
                before = self._home and self.generation
                try:
                    write()
                except BaseException:
                    if before == (self._home and self.generation):  # otherwise the generation is in place already
                        swap(old)
                    raise
                return True

    def _write_revised(self) -> None:
        home = self.home
        home.write_generation(self._contents.write_files, self._sequence(home), self.version, revised=True)

    def _catch_up(self) -> None:
        """Apply all changes, and open the folder's generation if another process wrote it and was killed before it
        could tell. The caller must hold the folder's lock."""
        self.refresh(now=True)
        found, held = folders.read_manifest(self.home.path, verify=False), self.home.manifest
        if found["index"] == held["index"] and found["generation"] != held["generation"]:
            with self.gate.changing():
                self.open(Home.open(self.home.path))

    def drift(self) -> Drift:
        from callslip.storage.drift import measure

        return measure(self.home)

    def novelty(self, doc_ids: Iterable[str] | None = None) -> dict[str, str]:
        from callslip.storage.drift import novelty

        if not self._contents.writes_codes:
            return {}
        if self._home is not None:
            rows = ((r.document.doc_id, r.code, r.added == 1, r.deleted is None) for r in self._home.store.rows())
            kinds = novelty(rows)
        else:
            codes, alive, trained = self._contents.codes_by_row(), self.rows.alive, self.rows.trained
            names = enumerate(self.rows.documents.doc_ids())
            kinds = novelty((name, _without_end(codes, n), n < trained, bool(alive[n])) for n, name in names)
        if doc_ids is None:
            return kinds
        known = self.rows.row_of()
        for doc_id in (wanted := list(doc_ids)):
            if doc_id not in known:
                raise missing(doc_id, known)
        return {doc_id: kinds[doc_id] for doc_id in wanted if doc_id in kinds}

    def close(self) -> None:
        if self._home is not None:
            self._home.close()


def _in_rows(sequence: Numbers, named: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Rows and doc_ids of the store's numbers and doc_ids; unknown numbers are left out."""
    rows = sequence.rows_of([number for number, _ in named]).tolist()
    return {row: doc_id for row, (_, doc_id) in zip(rows, named, strict=True) if row >= 0}


def _code_in(parts: Parts, row: int) -> tuple[int, ...] | None:
    """The code among a method's parts; for an ensemble, that of the first part that has one."""
    names = sorted(name for name in parts if name.rpartition(".")[2] == "codes")
    return _without_end(parts[names[0]], row) if names else None


def _without_end(codes: np.ndarray | None, row: int) -> tuple[int, ...] | None:
    return None if codes is None else tuple(int(token) for token in codes[row] if token >= 0)
