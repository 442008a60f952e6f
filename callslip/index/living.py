"""Living: documents that are added, deleted and updated, in memory or in a folder.

An index that was saved to a folder or loaded from one lives there. A change is on disk before the call returns; only
then is it read back and applied in memory, by the same path as the changes of other processes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from callslip.corpus.documents import Document
from callslip.errors import BadSetting, CallslipError, Unsupported
from callslip.index.rows import Rows
from callslip.storage import folder as folders
from callslip.storage.home import Home
from callslip.storage.rows import (
    Changes,
    Documents,
    Gone,
    MemoryDocuments,
    NewRow,
    Parts,
    StoredDocuments,
    already,
    missing,
)

if TYPE_CHECKING:
    from callslip.storage.drift import Drift

TRIES = 5
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

    def prepare(self, documents: list[Document]) -> Parts:
        """What `extend` needs of new documents besides their texts: arrays of one row a document."""

    def extend(self, documents: list[Document], parts: Parts) -> None:
        """Append new documents to the present rows. `rows.documents` still holds the present ones only."""

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
        self.version = 0
        """Version of the store that is in memory."""
        self.gate = Gate()

    @property
    def rows(self) -> Rows:
        return self._contents.rows

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
        new, seen = list(documents), set()
        for document in new:
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
                self._append(new, parts, MemoryDocuments([*self.rows.documents, *new]))
            self.rows.delete(deleted, gone)

    def _append(self, new: list[Document], parts: Parts, documents: Documents) -> None:
        self._contents.extend(new, parts)
        self.rows.append(new, documents)

    # The folder.

    def open(self, home: Home) -> None:
        """Read everything from a folder, and live there."""
        self._home = home
        deleted = _places(home.sequence, home.store.deleted())
        self.rows.replace(StoredDocuments(home.store, home.sequence), deleted)
        self.version = home.version
        self._contents.take_description(home.manifest)
        self._contents.read_files(home.snapshot)
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
        with self.gate.changing():
            home = self.home  # another thread may have opened the next generation meanwhile
            changes = home.store.changes(self.version)
            # What happened meanwhile is only in a snapshot that we do not have.
            if changes.purged > self.version or changes.generation > self.generation:
                # The old store is closed when the last thread that reads it lets go of it.
                self.open(Home.open(home.path))
            elif changes.version > self.version:
                self._apply(home, changes)

    def _apply(self, home: Home, changes: Changes) -> None:
        sequence = self._sequence(home)
        places = _places(sequence, [seq for seq, _ in changes.deleted], -1)
        known = [(row, doc_id) for row, (_, doc_id) in zip(places, changes.deleted, strict=True) if row >= 0]
        self.rows.delete([row for row, _ in known], [doc_id for _, doc_id in known])
        if changes.added:
            names = changes.added[0].parts.keys()
            parts = {name: np.stack([row.parts[name] for row in changes.added]) for name in names}
            longer = np.concatenate([sequence, [row.seq for row in changes.added]])
            self._append([row.document for row in changes.added], parts, StoredDocuments(home.store, longer))
        self.version = changes.version

    def _sequence(self, home: Home) -> np.ndarray:
        """The store's number of each row."""
        return getattr(self.rows.documents, "sequence", home.sequence)

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
                    sequence = sequence[rows]
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
                documents, alive, new = self.rows.documents, self.rows.alive.copy(), plan()
            if new is None:
                return False
            with self.gate.changing():
                if self.rows.documents is not documents or not np.array_equal(self.rows.alive, alive):
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


def _places(sequence: np.ndarray, seqs: Sequence[int], otherwise: int | None = None) -> np.ndarray:
    """The rows of the store's numbers `seqs`; unknown numbers are left out, or become `otherwise`."""
    wanted = np.asarray(seqs, dtype=np.int64)
    if not len(sequence):
        return np.full(len(wanted) if otherwise is not None else 0, otherwise or 0, np.int64)
    at = np.minimum(np.searchsorted(sequence, wanted), len(sequence) - 1)
    known = sequence[at] == wanted
    return at[known] if otherwise is None else np.where(known, at, otherwise)


def _code_in(parts: Parts, row: int) -> tuple[int, ...] | None:
    """The code among a method's parts; for an ensemble, that of the first part that has one."""
    names = sorted(name for name in parts if name.rpartition(".")[2] == "codes")
    return _without_end(parts[names[0]], row) if names else None


def _without_end(codes: np.ndarray | None, row: int) -> tuple[int, ...] | None:
    return None if codes is None else tuple(int(token) for token in codes[row] if token >= 0)
