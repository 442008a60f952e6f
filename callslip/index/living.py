"""Living: the part of every retriever that has documents and changes: add, delete, update, save, load, compact.

An index that was saved to a folder or loaded from one lives there. A change is on the disk before the call returns;
only then is it read back and taken into memory, by the same path as the changes of other processes. A method fills in
`_prepare` (what must be known of a new document), `_extend`, `_keep`, `_save` and `_load`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from callslip.corpus.documents import Document
from callslip.corpus.sequences import Users
from callslip.errors import BadSetting, CallslipError, UnknownName, Unsupported
from callslip.filters.filter import Filter
from callslip.filters.masks import Masks
from callslip.storage import documents as stored
from callslip.storage import folder as folders
from callslip.storage.home import Home
from callslip.storage.rows import Changes, NewRow, Parts, already, missing

TRIES = 5


class Gate:
    """Many may search, or one may change what is searched."""

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


class Living:
    """Documents that are added, deleted and updated, in memory or in a folder."""

    method: str

    def __init__(self) -> None:
        self._documents: stored.Documents | None = None
        self._alive = np.zeros(0, dtype=bool)
        self._row_of: dict[str, int] | None = None
        self._masks: Masks | None = None
        self._home: Home | None = None
        self._seen, self._looked = 0, 0.0
        self._trained = 0
        self._gate = Gate()
        self.users = Users()

    # What a method fills in.

    def _prepare(self, documents: list[Document]) -> Parts:
        """What `_extend` needs of new documents besides their texts: arrays of one row a document."""
        raise Unsupported(
            f"{self.method} cannot take new documents",
            f"Fit again: callslip fit CORPUS --method {self.method} --out DIR.",
        )

    def _extend(self, documents: list[Document], parts: Parts) -> None:
        """Take new documents after the present rows. `self.documents` are still the present ones."""
        raise NotImplementedError

    def _keep(self, rows: np.ndarray) -> None:
        """Forget all rows but these, and number them anew from 0. `self.documents` are still all."""
        raise NotImplementedError

    def _codes(self) -> np.ndarray | None:
        """The code of every row, filled with -1; None if the method gives none that mean anything by themselves."""
        return None

    def _save(self, folder: Path) -> None:
        raise NotImplementedError

    def _load(self, folder: Path) -> None:
        raise NotImplementedError

    def _write(self, folder: Path) -> None:
        """All files of a generation: the method's, and what is known of users."""
        self._save(folder)
        self.users.save(folder)

    def describe(self) -> dict[str, Any]:
        raise NotImplementedError

    # Changes.

    def add(self, documents: Iterable[Document]) -> None:
        """Make new documents findable without fitting again, or raise `Unsupported` with the remedy."""
        new = self._checked(documents)
        known = self.row_of()
        for document in new:
            if document.doc_id in known:
                raise already(document.doc_id)
        self._change(new, [])

    def delete(self, doc_ids: Iterable[str]) -> None:
        """Stop returning these documents. Model weights may still remember them until the next fit."""
        if isinstance(doc_ids, str):
            raise BadSetting(f"delete takes a list of doc_ids, not {doc_ids!r}", f"Write delete([{doc_ids!r}]).")
        wanted = list(dict.fromkeys(doc_ids))
        known = self.row_of()
        for doc_id in wanted:
            if doc_id not in known:
                raise missing(doc_id, known)
        self._change([], wanted)

    def update(self, documents: Iterable[Document]) -> None:
        """Put documents in the place of those of the same doc_id, at one moment; others are new."""
        new = self._checked(documents)
        known = self.row_of()
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
        parts = self._prepare(new) if new else {}
        if self._home is not None:
            rows = [NewRow(d, _code_in(parts, n), {k: v[n] for k, v in parts.items()}) for n, d in enumerate(new)]
            self._home.commit(rows, gone)
            self.refresh(now=True)
            return
        with self._gate.changing():
            rows_gone = [self.row_of()[doc_id] for doc_id in gone]
            self._grow(new, parts, stored.MemoryDocuments([*self._fitted(), *new]) if new else self._fitted())
            self._bury(rows_gone, gone)

    def _grow(self, new: list[Document], parts: Parts, documents: stored.Documents) -> None:
        if not new:
            return
        count, alive, known = len(self._alive), self._alive, self._row_of
        self._extend(new, parts)
        self._remember(documents)
        self._alive[:count] = alive
        if known is not None:
            known.update({d.doc_id: row for row, d in enumerate(new, start=count)})
            self._row_of = known

    def _bury(self, rows: Sequence[int], doc_ids: Sequence[str]) -> None:
        if not len(rows):
            return
        self._alive[list(rows)] = False
        if self._row_of is not None:
            for row, doc_id in zip(rows, doc_ids, strict=True):
                if self._row_of.get(doc_id) == row:  # a new document may bear the name already
                    del self._row_of[doc_id]
        self._masks_of_documents().forget()

    # The folder.

    @classmethod
    def load(cls, path: str | Path) -> Any:
        """Open a saved index; it lives in its folder from then on. The folder knows its method."""
        from callslip.methods import make

        home = Home.open(path)
        try:
            retriever = make(home.manifest["method"], home.manifest["settings"])
        except (BadSetting, UnknownName) as error:
            made = home.manifest.get("versions", {}).get("callslip", "an unknown version")
            home.close()
            raise CallslipError(
                f"{path} was made by another version of callslip ({made}), and this one cannot use it: {error.problem}",
                "Fit it again, or open it with the version that made it.",
            ) from None
        retriever._move_in(home)
        return retriever

    def _move_in(self, home: Home) -> None:
        """Take everything from a folder."""
        self._home = home
        self._remember(stored.StoredDocuments(home.store, home.sequence))
        self._alive[_places(home.sequence, home.store.deleted())] = False
        self._seen = home.version
        self._loaded(home.manifest)
        self._load(home.snapshot)
        self.users = Users.load(home.snapshot)
        self.refresh(now=True)

    def _loaded(self, manifest: dict[str, Any]) -> None:
        """Take what the manifest says of the fit."""

    def save(self, path: str | Path) -> None:
        """Write the index into one folder, whole or not at all. An index without a folder lives there from then on."""
        self._fitted()
        if self._home is not None and Path(path).resolve() == self._home.path.resolve():
            self.compact()
            return
        self.refresh()
        with self._gate.searching():
            codes, documents = self._codes(), self._fitted()
            rows = (
                (NewRow(d if alive else Document(f"deleted {row}", ""), _without_end(codes, row)), bool(alive))
                for row, (d, alive) in enumerate(zip(documents, self._alive, strict=True))
            )
            folders.write_index(path, self.describe(), self._write, rows)
        if self._home is None:
            alive, known = self._alive, self._row_of
            self._home = Home.open(path, verify=False)
            self._remember(stored.StoredDocuments(self._home.store, self._home.sequence))
            self._alive, self._row_of, self._seen = alive, known, self._home.version

    def refresh(self, now: bool = False) -> Self:
        """Take in what other processes have changed. Every search does this by itself."""
        home = self._home
        if home is None or (not now and time.monotonic() - self._looked < home.store.poll_seconds):
            return self
        self._looked = time.monotonic()
        if home.store.version() == self._seen:
            return self
        with self._gate.changing():
            changes = home.store.changes(self._seen)
            if changes.purged > self._seen:  # a snapshot that we do not have stands for what happened meanwhile
                path = home.path
                home.close()
                self._move_in(Home.open(path))
            elif changes.version > self._seen:
                self._take_in(home, changes)
        return self

    def _take_in(self, home: Home, changes: Changes) -> None:
        sequence = getattr(self._fitted(), "sequence", home.sequence)
        known = [(row, doc_id) for row, doc_id in zip(_places(sequence, [s for s, _ in changes.deleted], -1),
                 [doc_id for _, doc_id in changes.deleted], strict=True) if row >= 0]  # fmt: skip
        self._bury([row for row, _ in known], [doc_id for _, doc_id in known])
        if changes.added:
            names = changes.added[0].parts.keys()
            parts = {name: np.stack([row.parts[name] for row in changes.added]) for name in names}
            longer = np.concatenate([sequence, [row.seq for row in changes.added]])
            self._grow([row.document for row in changes.added], parts, stored.StoredDocuments(home.store, longer))
        self._seen = changes.version

    def compact(self) -> None:
        """Write a new snapshot without the deleted documents, so that opening has nothing to catch up with."""
        home = self._lives()
        with folders.locked(home.path):
            self.refresh(now=True)
            with self._gate.changing():
                home = self._lives()
                sequence = getattr(self._fitted(), "sequence", home.sequence)
                rows = np.flatnonzero(self._alive)
                if 0 < len(rows) < len(self._alive):
                    self._keep(rows)
                    sequence = sequence[rows]
                    self._remember(stored.StoredDocuments(home.store, sequence))
                home.write_generation(self._write, sequence, self._seen)

    def drift(self) -> Any:
        """How far the index has moved from what the model was trained on: see `callslip.storage.drift`."""
        from callslip.storage.drift import measure

        return measure(self._lives())

    def novelty(self, doc_ids: Iterable[str] | None = None) -> dict[str, str]:
        """What each document is to the model: `existing` (trained on), `new content` (added, with a code that a trained
        document had) or `new semantic` (added, with a code that none had). Empty for a method without codes."""
        from callslip.storage.drift import novelty

        if self._home is not None:
            rows = ((r.document.doc_id, r.code, r.added == 1, r.deleted is None) for r in self._home.store.rows())
            kinds = novelty(rows)
        else:
            codes, alive = self._codes(), self._alive
            names = enumerate(self._fitted().doc_ids())
            kinds = novelty((name, _without_end(codes, n), n < self._trained, bool(alive[n])) for n, name in names)
        if doc_ids is None:
            return kinds
        known = self.row_of()
        for doc_id in (wanted := list(doc_ids)):
            if doc_id not in known:
                raise missing(doc_id, known)
        return {doc_id: kinds[doc_id] for doc_id in wanted if doc_id in kinds}

    def close(self) -> None:
        """Let go of the folder. The index goes on in memory only if it is loaded again."""
        if self._home is not None:
            self._home.close()

    def _lives(self) -> Home:
        if self._home is None:
            raise CallslipError("this index is in no folder yet", "Save it first, or load one.")
        return self._home

    # What search needs to know of the documents.

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


def _places(sequence: np.ndarray, seqs: Sequence[int], otherwise: int | None = None) -> np.ndarray:
    """The rows of these numbers of the store; those that we do not have are left out, or stand as `otherwise`."""
    wanted = np.asarray(seqs, dtype=np.int64)
    if not len(sequence):
        return np.full(len(wanted) if otherwise is not None else 0, otherwise or 0, np.int64)
    at = np.minimum(np.searchsorted(sequence, wanted), len(sequence) - 1)
    known = sequence[at] == wanted
    return at[known] if otherwise is None else np.where(known, at, otherwise)


def _code_in(parts: Parts, row: int) -> tuple[int, ...] | None:
    """The code among a method's parts; of a method made of several, that of the first that has one."""
    names = sorted(name for name in parts if name.rpartition(".")[2] == "codes")
    return _without_end(parts[names[0]], row) if names else None


def _without_end(codes: np.ndarray | None, row: int) -> tuple[int, ...] | None:
    return None if codes is None else tuple(int(token) for token in codes[row] if token >= 0)
