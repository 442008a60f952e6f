"""The shared store: one PostgreSQL database for several processes on several machines (extra `postgres`).

Each machine has its own folder with the model and a snapshot; documents, codes and deletions are in the database.
Versions are assigned under a lock, so they become visible in order, and a reader that asks for rows above its last
version misses none.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from callslip.corpus.documents import Document
from callslip.errors import BadSetting, CallslipError, IndexCorrupt, MissingExtra
from callslip.storage.rows import (
    COMPARED,
    DIGEST,
    Changes,
    Gone,
    NewRow,
    Row,
    already,
    checked_facts,
    decoded,
    digest,
    encoded,
    facts_digest,
    missing,
    updated,
)

try:
    import psycopg
    from psycopg import conninfo, errors
except ImportError:
    raise MissingExtra("an index in PostgreSQL", "postgres") from None

T = TypeVar("T")
PATIENCE = 15.0
"""Seconds for which a lost connection is retried."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS callslip_documents (
    index TEXT NOT NULL, seq BIGINT NOT NULL, added BIGINT NOT NULL, deleted BIGINT, doc_id TEXT NOT NULL,
    title TEXT NOT NULL, text TEXT NOT NULL, metadata TEXT, code TEXT, parts BYTEA, digest BYTEA NOT NULL,
    PRIMARY KEY (index, seq)
);
CREATE UNIQUE INDEX IF NOT EXISTS callslip_live ON callslip_documents (index, doc_id) WHERE deleted IS NULL;
CREATE INDEX IF NOT EXISTS callslip_additions ON callslip_documents (index, added);
CREATE INDEX IF NOT EXISTS callslip_deletions ON callslip_documents (index, deleted) WHERE deleted IS NOT NULL;
CREATE TABLE IF NOT EXISTS callslip_facts (
    index TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (index, name)
);
"""
COLUMNS = "seq, added, deleted, doc_id, title, text, metadata, code, parts, digest"
_SELECT = f"SELECT {COLUMNS} FROM callslip_documents WHERE index = %s"
_SELECT_TEXT = f"SELECT {COLUMNS.replace('parts', 'NULL')} FROM callslip_documents WHERE index = %s"
# `rows.digest`, computed in the database, so that texts are not transferred.
_LENGTH = "coalesce(octet_length(convert_to({0}, 'UTF8'))::text, 'None')"
_TEXT = f"convert_to(' ' || {_LENGTH} || ':' || coalesce({{0}}, ''), 'UTF8')"
_DIGESTED = " || ".join(
    [
        "convert_to(format('%%s %%s %%s', seq, added, coalesce(deleted::text, 'None')), 'UTF8')",
        *(_TEXT.format(name) for name in ("doc_id", "title", "text", "metadata", "code")),
    ]
)
_OUTLINE = (
    f"SELECT seq, doc_id, metadata, digest = substring(sha256({_DIGESTED}) from 1 for {DIGEST}) "
    "FROM callslip_documents WHERE index = %s"
)
_COPY = f"COPY callslip_documents (index, {COLUMNS}) FROM STDIN (FORMAT BINARY)"
_TYPES = ["text", *["int8"] * 3, *["text"] * 5, "bytea", "bytea"]
_INSERT = f"INSERT INTO callslip_documents (index, {COLUMNS}) VALUES ({', '.join(['%s'] * 11)})"


def check_address(address: str) -> str:
    """Reject an address that contains a password, since it would be saved in the manifest."""
    try:
        parts = conninfo.conninfo_to_dict(address)
    except psycopg.Error as error:
        raise BadSetting(f"not an address of a PostgreSQL database: {error}", "Write postgresql://host/name.") from None
    if parts.get("password"):
        raise BadSetting(
            "the address has a password in it, and would be saved with the index",
            "Leave it out, and set PGPASSWORD or write a ~/.pgpass.",
        )
    return address


def check_database(address: str) -> None:
    """Refuse a database that cannot take documents, before an index is built for it."""
    try:
        with psycopg.connect(check_address(address)) as connection:
            connection.execute(SCHEMA)
    except (psycopg.Error, ValueError) as error:
        raise CallslipError(f"the database cannot take documents: {error}", _HELP) from None


def create(address: str, index: str, rows: Iterable[tuple[Row, bytes | None]], facts: dict[str, str]) -> None:
    """Atomically copy the rows of another store into the database."""
    try:
        with psycopg.connect(check_address(address)) as connection, connection.cursor() as cursor:
            cursor.execute(SCHEMA)
            cursor.execute("DELETE FROM callslip_documents WHERE index = %s", (index,))
            with cursor.copy(_COPY) as copy:  # binary: an order of magnitude faster than one INSERT a row
                copy.set_types(_TYPES)
                for row, parts in rows:
                    *texts, _ = encoded(NewRow(row.document, row.code))
                    known = digest(row.seq, row.added, row.deleted, *texts)  # type: ignore[arg-type]
                    copy.write_row((index, row.seq, row.added, row.deleted, *texts, parts, known))
            _set_facts(cursor, index, facts)
    except (psycopg.Error, ValueError) as error:
        raise CallslipError(f"the database did not take the documents: {error}", _HELP) from None


class PostgresStore:
    """An open shared store, which reconnects if the connection breaks."""

    poll_seconds = 0.5
    shared = True
    read_only: CallslipError | None = None
    detached = False

    def __init__(self, address: str, index: str) -> None:
        self.address, self.index = check_address(address), index
        self.place = f"{address} (index {index[:8]})"
        self._lock = threading.RLock()
        self._open: psycopg.Connection | None = None
        if not self.facts():
            raise IndexCorrupt(self.place, "the database does not hold this index")

    def facts(self) -> dict[str, str]:
        found: dict[str, str] = dict(self._ask(lambda c: c.execute(_FACTS, (self.index,)).fetchall()))
        try:
            if found:
                checked_facts(found)
        except ValueError as error:
            raise IndexCorrupt(self.place, str(error)) from None
        return found

    def version(self) -> int:
        return int(self.facts()["version"])

    def commit(self, add: Sequence[NewRow], delete: Sequence[str] = ()) -> int:
        """Atomically delete documents, then add others; returns the new version, once it is on disk."""
        token = uuid.uuid4().hex
        rows = [encoded(row) for row in add]

        def change(connection: psycopg.Connection) -> int:
            found = connection.execute(f"{_FACTS} AND name LIKE 'commit %%'", (self.index,)).fetchall()
            for name, value in found:  # an earlier attempt succeeded, but the connection broke before the answer
                if value == token:
                    return int(name.split()[1])
            return self._commit(connection, rows, delete, token)

        return self._ask(change)

    def _commit(self, connection: psycopg.Connection, rows: list[Any], delete: Sequence[str], token: str) -> int:
        connection.execute("SET LOCAL synchronous_commit TO on")
        # The holder of this row is the only writer, so versions become visible in order.
        locked = f"{_FACTS} AND name = 'version' FOR UPDATE"
        connection.execute(locked, (self.index,))
        facts: dict[str, str] = dict(connection.execute(_FACTS, (self.index,)).fetchall())
        version, last = int(facts["version"]) + 1, int(facts["last"])
        for doc_id in dict.fromkeys(delete):
            found = connection.execute(
                f"{_SELECT} AND doc_id = %s AND deleted IS NULL", (self.index, doc_id)
            ).fetchone()
            if found is None:
                names = "SELECT doc_id FROM callslip_documents WHERE index = %s AND deleted IS NULL LIMIT %s"
                some = connection.execute(names, (self.index, COMPARED + 1)).fetchall()
                raise missing(doc_id, [name for (name,) in some])
            new = digest(found[0], found[1], version, *found[3:8])
            change = "UPDATE callslip_documents SET deleted = %s, digest = %s WHERE index = %s AND seq = %s"
            connection.execute(change, (version, new, self.index, found[0]))
        for seq, (*texts, parts) in enumerate(rows, start=last + 1):
            try:
                known = digest(seq, version, None, *texts)
                connection.execute(_INSERT, (self.index, seq, version, None, *texts, parts, known))
            except errors.UniqueViolation:
                raise already(texts[0]) from None
            except (psycopg.DataError, ValueError):
                raise BadSetting(
                    f"PostgreSQL cannot hold document {texts[0]!r}", "Leave NUL characters out of its texts."
                ) from None
        facts |= {"version": str(version), "last": str(last + len(rows)), "rows": str(int(facts["rows"]) + len(rows))}
        for name in [name for name in facts if name.startswith("commit ") and int(name.split()[1]) < version - 100]:
            del facts[name]
            connection.execute("DELETE FROM callslip_facts WHERE index = %s AND name = %s", (self.index, name))
        _set_facts(connection, self.index, facts | {f"commit {version}": token})
        return version

    def changes(self, since: int) -> Changes:
        """The changes after version `since`."""

        def look(connection: psycopg.Connection) -> tuple[Any, ...]:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # one state for all queries
            facts: dict[str, str] = dict(connection.execute(_FACTS, (self.index,)).fetchall())
            new = f"{_SELECT} AND added > %s AND deleted IS NULL ORDER BY seq"
            old = "SELECT seq, doc_id, added, deleted FROM callslip_documents WHERE index = %s AND deleted > %s"
            given = (self.index, since)
            return facts, connection.execute(new, given).fetchall(), connection.execute(old, given).fetchall()

        facts, added, gone = self._ask(look)
        rows, left = [self._row(row) for row in added], [row[:2] for row in gone]
        return Changes(int(facts["version"]), int(facts["purged"]), rows, left, updated=updated(gone, rows))

    def deleted(self) -> list[int]:
        return [seq for seq, _ in self.deleted_names()]

    def deleted_names(self, until: int | None = None) -> list[tuple[int, str]]:
        question = "SELECT seq, doc_id FROM callslip_documents WHERE index = %s AND deleted <= %s"
        given = (self.index, 2**62 if until is None else until)
        return self._ask(lambda c: c.execute(question, given).fetchall())

    def numbers_of(self, doc_id: str, version: int) -> list[int]:
        """`seq` of the document with this doc_id; then of those with it that were deleted after `version`."""
        live = f"{_SELECT_TEXT} AND doc_id = %s AND deleted IS NULL"
        late = f"{_SELECT_TEXT} AND deleted > %s AND doc_id = %s"

        def look(connection: psycopg.Connection) -> list[Any]:
            found = connection.execute(live, (self.index, doc_id)).fetchall()
            return found + connection.execute(late, (self.index, version, doc_id)).fetchall()

        return [self._row(values).seq for values in self._ask(look)]

    def read(self, seqs: Sequence[int]) -> list[Document]:
        """Documents by `seq`; `Gone` if one of them has been deleted, by any process."""
        wanted = [int(seq) for seq in seqs]
        question = f"{_SELECT_TEXT} AND seq = ANY(%s)"
        rows = self._ask(lambda c: c.execute(question, (self.index, wanted)).fetchall())
        found = {row.seq: row for row in map(self._row, rows) if row.deleted is None}
        for seq in wanted:
            if seq not in found:
                raise Gone(seq)
        return [found[seq].document for seq in wanted]

    def rows(self) -> Iterator[Row]:
        """All rows ordered by `seq`, including deleted ones, each verified."""
        yield from (self._row(values) for values in self._walk(_SELECT))

    def outline(self) -> Iterator[tuple[int, str, str | None]]:
        """seq, doc_id and metadata of all rows ordered by `seq`; the database itself verifies the digests."""
        for seq, doc_id, metadata, whole in self._walk(_OUTLINE):
            if not whole:
                raise IndexCorrupt(self.place, f"the row of document {doc_id!r} is not what was written")
            yield seq, doc_id, metadata

    def _walk(self, select: str) -> Iterator[Any]:
        last = -1
        while True:
            page = self._page(f"{select} AND seq > %s ORDER BY seq LIMIT 1000", last)
            if not page:
                return
            yield from page
            last = page[-1][0]

    def _page(self, question: str, last: int) -> list[Any]:
        return self._ask(lambda connection: connection.execute(question, (self.index, last)).fetchall())

    def purge(self, version: int, keep: Iterable[int], generation: int | None = None) -> None:
        """Deletes nothing: another machine's snapshot may be older than ours."""

    def verify(self) -> None:
        facts, count = self.facts(), 0
        for row in self.rows():
            count += 1
            if max(row.added, row.deleted or 0) > int(facts["version"]) or row.seq > int(facts["last"]):
                facts = self.facts()  # it may have been committed while we were reading
        if count < int(facts["rows"]) and count < int(self.facts()["rows"]):
            raise IndexCorrupt(self.place, f"{count} rows; there should be {facts['rows']}")

    def close(self) -> None:
        with self._lock:
            if self._open is not None:
                self._open.close()
                self._open = None

    def _row(self, values: Sequence[Any]) -> Row:
        try:
            return decoded(values)
        except ValueError as error:
            raise IndexCorrupt(self.place, str(error)) from None

    def _ask(self, question: Callable[[psycopg.Connection], T]) -> T:
        """Run in one transaction, and reconnect if the connection breaks, for up to `PATIENCE` seconds."""
        end, pause = time.monotonic() + PATIENCE, 0.1
        with self._lock:
            while True:
                try:
                    if self._open is None or self._open.closed:
                        self._open = psycopg.connect(self.address, connect_timeout=5)
                    with self._open.transaction():
                        return question(self._open)
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    self.close()
                    if _refused(error):
                        raise CallslipError(f"{self.place}: the database refuses the login: {error}", _LOGIN) from None
                    if time.monotonic() + pause > end:
                        raise CallslipError(f"{self.place}: the database does not answer: {error}", _HELP) from None
                    time.sleep(pause)
                    pause = min(2 * pause, 1.0)
                except psycopg.Error as error:
                    raise CallslipError(f"{self.place}: {error}", _HELP) from None


_FACTS = "SELECT name, value FROM callslip_facts WHERE index = %s"
_HELP = "Check that the server is running, accepts your connection, and has free space; then try again."


_LOGIN = "Check the user and the password (PGPASSWORD or ~/.pgpass), and that the user may connect to the database."
_REFUSALS = ("authentication failed", "no password supplied", "pg_hba.conf", "role ", 'database "')


def _refused(error: Exception) -> bool:
    """Whether the server rejected the login: retrying would only look like an attack."""
    state = getattr(error, "sqlstate", None) or ""
    return state[:2] == "28" or state == "3D000" or ("FATAL" in str(error) and any(r in str(error) for r in _REFUSALS))


def _set_facts(cursor: Any, index: str, facts: dict[str, str]) -> None:
    whole = facts | {"digest": facts_digest(facts)}
    for name, value in whole.items():
        cursor.execute(
            "INSERT INTO callslip_facts VALUES (%s, %s, %s) ON CONFLICT (index, name) DO UPDATE SET value = %s",
            (index, name, value, value),
        )
