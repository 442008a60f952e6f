"""The embedded store: one SQLite file. A commit is on disk before it returns (WAL, synchronous=FULL).

Its ledger, in a second file, records the acknowledged commits: see `callslip.storage.ledger`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from callslip.corpus.documents import Document
from callslip.errors import CallslipError, IndexCorrupt
from callslip.runtime.patience import wait_for
from callslip.storage import ledger
from callslip.storage.rows import (
    COMPARED,
    Changes,
    Gone,
    NewRow,
    Row,
    already,
    checked,
    checked_facts,
    decoded,
    digest,
    document_of,
    encoded,
    facts_digest,
    missing,
    updated,
)

FORMAT = "1"
TOGETHER = 500
"""Maximum number of rows per query: old versions of SQLite accept at most 999 values."""
WAIT = 30.0
"""Seconds that a reader waits while another process recovers or truncates the log."""
ATTEMPT = 0.2
"""Seconds per attempt to write; attempts are repeated until the caller's timeout (`callslip.runtime.patience`)."""
SCHEMA = """
CREATE TABLE documents (
    seq INTEGER PRIMARY KEY, added INTEGER NOT NULL, deleted INTEGER, doc_id TEXT NOT NULL, title TEXT NOT NULL,
    text TEXT NOT NULL, metadata TEXT, code TEXT, parts BLOB, digest BLOB NOT NULL
);
CREATE UNIQUE INDEX live ON documents (doc_id) WHERE deleted IS NULL;
CREATE INDEX additions ON documents (added);
CREATE INDEX deletions ON documents (deleted) WHERE deleted IS NOT NULL;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
COLUMNS = "seq, added, deleted, doc_id, title, text, metadata, code, parts, digest"


def create(path: Path, index_id: str, rows: Iterable[tuple[NewRow, bool]]) -> int:
    """Create a store of these documents (and whether each is alive), all of version 1; returns their number.

    When this returns, the file is complete and synced, without a log.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + SCHEMA)
        connection.execute("BEGIN")
        count = 0
        for count, (row, alive) in enumerate(rows, start=1):
            _insert(connection, count, 1, None if alive else 1, row)
        facts = {"format": FORMAT, "index": index_id, "version": "1", "purged": "0", "last": str(count)}
        mark = _new_mark()
        _set_facts(connection, facts | {"rows": str(count), "mark": mark})
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    ledger.create(path, ledger.Entry(1, mark))
    return count


_files: dict[tuple[int, int], int] = {}
_users: Counter[tuple[int, int]] = Counter()
_files_lock = threading.Lock()


@contextmanager
def _in_use(path: Path) -> Iterator[tuple[int, int]]:
    """Count the users of a database file in this process; the last one closes the descriptor that hashing opened.

    POSIX locks belong to the process, and closing any descriptor of a file releases all of them. If hashing closed its
    descriptor while a connection is open, SQLite in another process would assume that it is the last user and delete
    the log.
    """
    found = path.stat()
    file = found.st_dev, found.st_ino
    with _files_lock:
        _users[file] += 1
    try:
        yield file
    finally:
        with _files_lock:
            _users[file] -= 1
            if not _users[file]:
                del _users[file]
                if file in _files:
                    os.close(_files.pop(file))


def sha256_of(path: Path) -> str:
    """The hash of a database file that this process may have open."""
    with _in_use(path) as file:
        with _files_lock:
            if file not in _files:
                _files[file] = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            descriptor = _files[file]
        digest, at = hashlib.sha256(), 0
        while block := os.pread(descriptor, 1 << 20, at):
            digest.update(block)
            at += len(block)
    return digest.hexdigest()


class Detached(CallslipError):
    """The files of a store were replaced or removed under an open connection: nobody would see what it writes."""


class SqliteStore:
    """An open store. Several threads and processes may read and write it."""

    poll_seconds = 0.0
    shared = False

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, str(path)
        if not path.is_file():
            raise IndexCorrupt(path, "the file is missing")
        self._locks = threading.RLock(), threading.RLock()
        self._counted = _in_use(path)
        self._counted.__enter__()
        self._closed = False
        self._outlined = -1
        """The last row whose digest was verified by `outline`."""
        self.read_only: CallslipError | None = None
        """The reason why it is read-only; None if it is writable."""
        # Read the ledger first: a commit in between leaves the store ahead of it, which is not a loss.
        acknowledged = ledger.last(path)
        with self._corruption_named():
            # Two connections, so that searches do not wait for a writer's sync.
            self._reader, self._writer = self._connect(WAIT), self._connect(ATTEMPT)
            facts = self.facts()
        if facts.get("format") != FORMAT:
            raise IndexCorrupt(path, f"a store of format {facts.get('format')}; this version reads {FORMAT}")
        _check_nothing_lost(path, facts, acknowledged)

    def _connect(self, timeout: float) -> sqlite3.Connection:
        def connect(options: str) -> sqlite3.Connection:
            address = f"file:{quote(str(self.path.resolve()))}?{options}"
            found = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False, timeout=timeout)
            found.execute("PRAGMA synchronous=FULL")
            found.execute("SELECT value FROM facts").fetchone()
            return found

        if self.path.is_symlink():
            self.read_only = behind_a_link(self.path)
            return connect("mode=ro&immutable=1")
        try:
            return connect("mode=rw")
        except sqlite3.OperationalError as error:
            # A read-only or full disk has no space for the files that writers share; without writers, none are needed.
            if (wal := self.path.with_name(f"{self.path.name}-wal")).exists() and wal.stat().st_size:
                raise
            self.read_only = _not_written(self.path, error)
            return connect("mode=ro&immutable=1")

    @property
    def detached(self) -> bool:
        """Whether commits were acknowledged that our connections cannot see, because the files in the folder were
        replaced."""
        acknowledged = ledger.last(self.path)
        return acknowledged is not None and self.version() < acknowledged.version

    def facts(self) -> dict[str, str]:
        with self._asking():
            found = dict(self._reader.execute("SELECT name, value FROM facts"))
            checked_facts(found)
        return found

    def version(self) -> int:
        with self._asking():
            return int(self._reader.execute("SELECT value FROM facts WHERE name = 'version'").fetchone()[0])

    def commit(self, add: Sequence[NewRow], delete: Sequence[str] = ()) -> int:
        """Atomically delete documents, then add others; returns the new version, once it is on disk."""
        with self._writing() as facts:
            version, last = int(facts["version"]) + 1, int(facts["last"])
            for doc_id in dict.fromkeys(delete):
                found = self._writer.execute(f"{_SELECT} WHERE doc_id = ? AND deleted IS NULL", (doc_id,)).fetchone()
                if found is None:
                    names = "SELECT doc_id FROM documents WHERE deleted IS NULL LIMIT ?"
                    raise missing(doc_id, [name for (name,) in self._writer.execute(names, (COMPARED + 1,))])
                self._set_deleted(decoded(found), version)
            for seq, row in enumerate(add, start=last + 1):
                try:
                    _insert(self._writer, seq, version, None, row)
                except sqlite3.IntegrityError:
                    raise already(row.document.doc_id) from None
            rows = int(facts["rows"]) + len(add)
            made = {"version": str(version), "last": str(last + len(add)), "rows": str(rows), "mark": _new_mark()}
            _set_facts(self._writer, facts | made)
        return version

    def changes(self, since: int) -> Changes:
        """The changes after version `since`."""
        with self._reading():
            facts = self.facts()
            # `+` keeps SQLite from walking the whole table in the order of `seq`: few rows were added since.
            added = self._reader.execute(
                f"{_SELECT} WHERE added > ? AND deleted IS NULL ORDER BY +seq", (since,)
            ).fetchall()
            question = "SELECT seq, doc_id, added, deleted FROM documents WHERE deleted > ?"
            gone = self._reader.execute(question, (since,)).fetchall()
            made, purged, generation = int(facts["version"]), int(facts["purged"]), int(facts.get("generation", 0))
            rows = [decoded(row) for row in added]
            return Changes(made, purged, rows, [row[:2] for row in gone], generation, updated(gone, rows))

    def deleted(self) -> list[int]:
        """`seq` of every deleted document that has not been purged."""
        return [seq for seq, _ in self.deleted_names()]

    def deleted_names(self, until: int | None = None) -> list[tuple[int, str]]:
        """`seq` and doc_id of every document deleted up to version `until`, or at all, that has not been purged."""
        with self._reading():
            found = self._reader.execute(f"{_SELECT_TEXT} WHERE deleted IS NOT NULL").fetchall()
            for values in found:
                checked(values)
            return [(values[0], values[3]) for values in found if until is None or values[2] <= until]

    def numbers_of(self, doc_id: str, version: int) -> list[int]:
        """`seq` of the document with this doc_id; then of those with it that were deleted after `version`."""
        with self._reading():
            found = self._reader.execute(f"{_SELECT_TEXT} WHERE doc_id = ? AND deleted IS NULL", (doc_id,)).fetchall()
            late = f"{_SELECT_TEXT} WHERE deleted > ? AND doc_id = ?"
            found += self._reader.execute(late, (version, doc_id)).fetchall()
            for values in found:
                checked(values)
        return [values[0] for values in found]

    def read(self, seqs: Sequence[int]) -> list[Document]:
        """Documents by `seq`; `Gone` if one of them has been deleted, by any process."""
        found: dict[int, Document] = {}
        # A single query sees a consistent state without a transaction.
        with self._reading() if len(seqs) > TOGETHER else self._asking():
            for start in range(0, len(seqs), TOGETHER):
                some = [int(seq) for seq in seqs[start : start + TOGETHER]]
                marks = ",".join("?" * len(some))
                for values in self._reader.execute(f"{_SELECT_TEXT} WHERE seq IN ({marks})", some).fetchall():
                    checked(values)
                    if values[2] is None:
                        found[values[0]] = document_of(values)
        for seq in seqs:
            if seq not in found:
                raise Gone(int(seq))
        return [found[seq] for seq in seqs]

    def rows(self) -> Iterator[Row]:
        """All rows ordered by `seq`, including deleted ones, each verified."""
        for values in self._walk(_SELECT):
            with self._corruption_named():
                row = decoded(values)
            yield row

    def outline(self) -> Iterator[tuple[int, str, str | None]]:
        """seq, doc_id and metadata of all rows ordered by `seq`, each row verified by its digest.

        Digests cover the texts, most of the file. Texts are read only once, because verified rows do not change.
        """
        known = self._outlined
        if known:
            yield from self._walk("SELECT seq, doc_id, metadata FROM documents", until=known)
        for values in self._walk(_SELECT_TEXT, after=known):
            with self._corruption_named():
                checked(values)
            known = values[0]
            yield known, values[3], values[6]
        self._outlined = max(self._outlined, known)

    def _walk(self, select: str, after: int = -1, until: int = 2**62) -> Iterator[Any]:
        last = after
        while True:  # in pages, so that a slow reader neither blocks others nor makes the log grow
            with self._reading():
                question = f"{select} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT 1000"
                page = self._reader.execute(question, (last, until)).fetchall()
            if not page:
                return
            yield from page
            last = page[-1][0]

    def purge(self, version: int, keep: Iterable[int], generation: int | None = None) -> None:
        """Delete what a snapshot of `version` makes redundant: documents deleted by then, and parts.

        Rows in `keep` stay, deleted or not. Readers behind `version` must read the snapshot; if a `generation` is
        given, so must all readers of an earlier one. That is a version of its own, by which they notice.
        """
        with self._writing() as facts:
            self._writer.execute("CREATE TEMP TABLE IF NOT EXISTS kept (seq INTEGER PRIMARY KEY)")
            self._writer.execute("DELETE FROM kept")
            self._writer.executemany("INSERT INTO kept VALUES (?)", ((int(seq),) for seq in keep))
            gone = self._writer.execute(
                "DELETE FROM documents WHERE deleted <= ? AND seq NOT IN (SELECT seq FROM kept)", (version,)
            ).rowcount
            self._writer.execute("UPDATE documents SET parts = NULL WHERE added <= ? AND parts NOT NULL", (version,))
            rows = int(facts["rows"]) - gone
            made = {"purged": str(version), "rows": str(rows)}
            if generation is not None:
                next_version = str(int(facts["version"]) + 1)
                made |= {"generation": str(generation), "version": next_version, "mark": _new_mark()}
            _set_facts(self._writer, facts | made)

    def retire(self, retired: bool = True) -> None:
        """Reject all further writes, because another index replaces this one; or allow them again."""
        with self._writing(even_retired=True) as facts:
            facts.pop("retired", None)
            self._writer.execute("DELETE FROM facts WHERE name = 'retired'")
            facts["version"] = str(int(facts["version"]) + 1)  # the file changes, so that its seal is no longer valid
            facts["mark"] = _new_mark()
            _set_facts(self._writer, facts | {"retired": "1"} if retired else facts)

    def copy_to(self, path: Path) -> int:
        """Write a consistent copy while others read and write; returns its version."""
        target = sqlite3.connect(path)
        try:
            with self._asking():
                self._reader.backup(target)
            target.execute("PRAGMA journal_mode=WAL")
            facts = dict(target.execute("SELECT name, value FROM facts"))
        except sqlite3.Error as error:
            raise _not_written(path, error) from None
        finally:
            target.close()
        ledger.create(path, _entry(facts))
        return int(facts["version"])

    def settle(self) -> None:
        """Checkpoint: move the contents of the log into the database file."""
        with self._locks[1], self._corruption_named():
            self._writer.execute(f"PRAGMA busy_timeout={int(WAIT * 1000)}")  # for readers that are about to finish
            try:
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                self._writer.execute(f"PRAGMA busy_timeout={int(ATTEMPT * 1000)}")

    def verify(self) -> None:
        """Read everything, and raise `IndexCorrupt` if anything is damaged."""
        with self._reading():
            problem = self._reader.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise IndexCorrupt(self.path, f"the database is damaged: {problem}")
            facts, count = self.facts(), 0
            for row in self._reader.execute(f"{_SELECT} ORDER BY seq"):
                known = decoded(row)
                count += 1
                if max(known.added, known.deleted or 0) > int(facts["version"]) or known.seq > int(facts["last"]):
                    raise IndexCorrupt(self.path, f"row {known.seq} is newer than the store")
            if count != int(facts["rows"]):
                raise IndexCorrupt(self.path, f"{count} rows; there should be {facts['rows']}")

    def close(self) -> None:
        if getattr(self, "_closed", True):
            return
        self._closed = True
        for connection in (getattr(self, "_reader", None), getattr(self, "_writer", None)):
            if connection is not None:
                connection.close()
        self._counted.__exit__(None, None, None)

    __del__ = close

    def _set_deleted(self, row: Row, version: int) -> None:
        values = self._writer.execute(
            "SELECT doc_id, title, text, metadata, code FROM documents WHERE seq = ?", (row.seq,)
        ).fetchone()
        new = digest(row.seq, row.added, version, *values)
        self._writer.execute("UPDATE documents SET deleted = ?, digest = ? WHERE seq = ?", (version, new, row.seq))

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Run one query."""
        with self._corruption_named(), self._locks[0]:
            yield

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A read transaction: a consistent state for several queries. Nested uses share it."""
        with self._asking():
            if self._reader.in_transaction:
                yield
                return
            self._reader.execute("BEGIN")
            try:
                yield
            finally:
                self._reader.execute("ROLLBACK")

    @contextmanager
    def _writing(self, even_retired: bool = False) -> Iterator[dict[str, str]]:
        """A write transaction, which is on disk when the block ends, or rolled back; gives the store's facts."""
        if self.read_only is not None:
            raise self.read_only
        with self._corruption_named(), self._locks[1]:
            try:
                wait_for(self._begun, self.place)
                facts = dict(self._writer.execute("SELECT name, value FROM facts"))
                checked_facts(facts)
                if "retired" in facts and not even_retired:
                    raise CallslipError("the index was replaced by another one", "Load it again.")
                self._check_attached(facts)
                yield facts
                made = _entry(dict(self._writer.execute("SELECT name, value FROM facts")))
                self._writer.execute("COMMIT")
                ledger.note(self.path, made)
            except sqlite3.OperationalError as error:
                raise _not_written(self.path, error) from None
            except OSError as error:
                raise _not_written(self.path, error) from None
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def _begun(self) -> bool:
        """Try to begin a write transaction; False if another process has one."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return False
            raise
        return True

    def _check_attached(self, facts: dict[str, str]) -> None:
        """Reject writes to a store that was replaced; create the ledger of a store from an earlier version."""
        acknowledged = ledger.last(self.path)
        if acknowledged is None and "mark" not in facts:
            ledger.create(self.path, _entry(facts))
        elif acknowledged is None or int(facts["version"]) < acknowledged.version:
            raise Detached(f"{self.path}: the files of the store were replaced or removed", "Load the index again.")

    @contextmanager
    def _corruption_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if any(sign in str(error) for sign in ("no such", "Could not decode")):  # not a database of ours
                raise IndexCorrupt(self.path, f"damaged: {error}") from None
            raise CallslipError(
                f"{self.path}: {error}", "Check that the disk has free space and is readable; then try again."
            ) from None
        except (sqlite3.DatabaseError, ValueError, UnicodeDecodeError) as error:
            raise IndexCorrupt(self.path, f"damaged: {error}") from None


_SELECT = f"SELECT {COLUMNS} FROM documents"
# Hits do not need the parts, which have their own digest.
_SELECT_TEXT = f"SELECT {COLUMNS.replace('parts', 'NULL')} FROM documents"


def _insert(connection: sqlite3.Connection, seq: int, added: int, deleted: int | None, row: NewRow) -> None:
    *texts, parts = encoded(row)
    values = (seq, added, deleted, *texts, parts, digest(seq, added, deleted, *texts))  # type: ignore[arg-type]
    connection.execute(f"INSERT INTO documents ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


def _set_facts(connection: sqlite3.Connection, facts: dict[str, str]) -> None:
    whole = facts | {"digest": facts_digest(facts)}
    connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", whole.items())


def _new_mark() -> str:
    return secrets.token_hex(16)


def _entry(facts: dict[str, str]) -> ledger.Entry:
    return ledger.Entry(int(facts["version"]), facts.get("mark", ""))


def _check_nothing_lost(path: Path, facts: dict[str, str], acknowledged: ledger.Entry | None) -> None:
    """A store must have every acknowledged commit. It may have one more that was not acknowledged."""
    made = _entry(facts)
    if acknowledged is None:
        if made.mark:
            raise IndexCorrupt(ledger.path_of(path), "the file is missing")
        return
    if made.version < acknowledged.version:
        raise IndexCorrupt(
            path,
            f"it ends at version {made.version}, and version {acknowledged.version} was acknowledged: the last "
            f"changes are lost, because {path.name}-wal was damaged or removed",
            "Restore the folder from a copy. To go on without these changes: callslip check DIR --accept-loss.",
        )
    if made.version == acknowledged.version and made.mark != acknowledged.mark:
        raise IndexCorrupt(path, f"its version {made.version} is not the one in {ledger.path_of(path).name}")


def accept_loss(path: Path) -> int:
    """Rewrite the ledger for the store as it is; returns the number of acknowledged versions given up."""
    if path.is_symlink():
        raise behind_a_link(path)
    if not path.is_file():
        raise IndexCorrupt(path, "the file is missing")
    try:
        acknowledged = ledger.last(path)
    except IndexCorrupt:  # unreadable
        acknowledged = None
    connection = sqlite3.connect(path, timeout=WAIT)
    try:
        facts = dict(connection.execute("SELECT name, value FROM facts"))
        checked_facts(facts)
    except (sqlite3.Error, ValueError) as error:
        raise IndexCorrupt(path, f"damaged: {error}") from None
    finally:
        connection.close()
    made = _entry(facts)
    if acknowledged != made:
        ledger.create(path, made)
    return max(0, (acknowledged or made).version - made.version)


def behind_a_link(path: Path) -> CallslipError:
    """The error for changing an index whose files are links, as in the Hugging Face cache: their targets are shared."""
    return CallslipError(
        f"{path} is a symbolic link, so this index is open for reading only",
        f"Copy it, and change the copy: callslip snapshot {path.parent} COPY.",
    )


def _not_written(path: Path, error: Exception) -> CallslipError:
    """The error for a failed write, with the remedy for its likely cause."""
    said = str(getattr(error, "strerror", None) or error)
    if "full" in said or getattr(error, "errno", None) == errno.ENOSPC or _no_room(path):
        return CallslipError(f"{path}: nothing was changed, because the disk is full", "Free some space and try again.")
    if "readonly" in said or not os.access(path.parent, os.W_OK):
        return CallslipError(f"{path} may not be written", "Check the folder's permissions.")
    return CallslipError(
        f"{path}: nothing was changed, because it could not be written: {said}",
        "Check that the folder exists and the disk is healthy; then try again.",
    )


def _no_room(path: Path) -> bool:
    try:
        found = os.statvfs(path.parent)
    except (AttributeError, OSError):
        return False
    return found.f_blocks > 0 and found.f_bavail * found.f_frsize < 1 << 16
