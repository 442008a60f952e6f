"""Rows with named fields from JSONL, CSV, TSV and Parquet, and the documents and queries that they are."""

from __future__ import annotations

import csv
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from callslip.corpus.documents import NO_METADATA, Document, Query
from callslip.corpus.lines import (
    MAX_LINE,
    Flaw,
    Intake,
    check_id,
    check_text,
    check_value,
    kind_of,
    local,
    printable,
    shown,
)
from callslip.corpus.parquet import parquet_columns, parquet_rows
from callslip.errors import BadInput, UnknownName

Row = dict[str, Any]
Columns = Mapping[str, str]

NAMES: dict[str, tuple[str, ...]] = {
    "doc_id": ("_id", "doc_id", "id", "docno", "pid", "item_id", "item"),
    "title": ("title", "name"),
    "text": ("text", "contents", "content", "body", "passage", "abstract", "description"),
    "query_id": ("_id", "query_id", "query-id", "qid", "id", "topic"),
    "query": ("text", "query", "question", "title"),
    "user": ("user", "user_id", "userId", "user-id", "uid", "reviewerID"),
    "item": ("item", "item_id", "itemId", "item-id", "iid", "parent_asin", "asin", "movieId"),
    "time": ("time", "timestamp", "ts", "unixReviewTime", "date", "sort_timestamp"),
}
"""Column names accepted for each role unless `columns` names one; the first that is present is used."""

MAX_RECORD_LINES = 10_000
"""Maximum number of lines in a quoted CSV record; a longer one is taken for a stray quote."""


def read_rows(
    path: str | Path, format: str, intake: Intake, columns: Columns | None = None, need: Sequence[str] = ()
) -> Iterator[tuple[int, Row]]:
    """(line, row) of a "jsonl", "csv", "tsv" or "parquet" file; a Parquet file has rows instead of lines.

    A table whose header lacks a column in `need` is an error, even with `skip_bad`: every line would be bad.
    """
    if format == "jsonl":
        numbered = ((line, text) for line, text in intake.lines(path) if text and not text.isspace())
        yield from intake.each(path, numbered, parse_json)
        return
    if format == "parquet":
        remedy = "Give a Parquet file with columns for id and text."
        _check_header(path, None, parquet_columns(local(path), remedy), columns or {}, need)
        yield from enumerate(parquet_rows(local(path), remedy), start=1)
        return
    records = _csv_records(path, intake) if format == "csv" else _tsv_records(path, intake)
    yield from _named(path, records, intake, columns or {}, need)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_json(text: str) -> Row:
    """Parse a line of JSONL, which must be an object."""
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise Flaw("the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:  # its own message has a line number that would contradict ours
        problem = f"invalid JSON ({error.msg} at column {error.colno})"
        raise Flaw(problem, remedy="Write one JSON object per line") from None
    except ValueError as error:  # NaN, or an integer too long for Python's digit limit
        raise Flaw(f"invalid JSON ({error})", remedy="Write one JSON object per line") from None
    if not isinstance(value, dict):
        raise Flaw(f"expected a JSON object, found {kind_of(value)}", remedy="Write one JSON object per line")
    return value


def _tsv_records(path: str | Path, intake: Intake) -> Iterator[tuple[int, list[str]]]:
    """TSV as usual in retrieval: no quoting, so a quote is an ordinary character."""
    for line, text in intake.lines(path):
        if text:
            yield line, text.split("\t")


class _Feed:
    """Feeds lines to the csv module and can put them back, so that a stray quote costs only one line."""

    def __init__(self, lines: Iterator[tuple[int, str]]) -> None:
        self.lines, self.waiting, self.taken, self.size = (
            lines,
            deque[tuple[int, str]](),
            list[tuple[int, str]](),
            0,
        )

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        item = self.waiting.popleft() if self.waiting else next(self.lines)
        if self.taken and item[0] != self.taken[-1][0] + 1:
            self.waiting.appendleft(item)
            raise Flaw("a bad line interrupts the quoted field")
        self.taken.append(item)
        self.size += len(item[1])
        if len(self.taken) > MAX_RECORD_LINES or self.size > MAX_LINE:
            raise Flaw("unclosed quote")
        return item[1]

    def begin(self) -> None:
        self.taken, self.size = [], 0

    def give_back(self) -> int:
        """Put back all lines of the current record except the first, and return the first one's number."""
        self.waiting.extendleft(reversed(self.taken[1:]))
        return self.taken[0][0]


def _csv_records(path: str | Path, intake: Intake) -> Iterator[tuple[int, list[str]]]:
    lines = intake.lines(path, keep_ends=True)
    first = next(lines, None)
    if first is None:
        return
    delimiter = max(",;\t|", key=first[1].count)  # the comma is first, so it wins a tie
    feed = _Feed(lines)
    feed.waiting.append(first)
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))  # the limit is process-wide, so never lower it
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.begin()
        try:
            record = next(reader)
        except StopIteration:
            return
        except (csv.Error, Flaw) as error:
            flaw = (
                error
                if isinstance(error, Flaw)
                else Flaw(f"invalid CSV ({error})", remedy="Close or double the quotes")
            )
            intake.refuse(path, feed.give_back(), flaw)
            continue
        if record:
            yield feed.taken[0][0], record


def _named(
    path: str | Path,
    records: Iterator[tuple[int, list[str]]],
    intake: Intake,
    columns: Columns,
    need: Sequence[str],
) -> Iterator[tuple[int, Row]]:
    """Rows from cells: keys come from the header, or are numbers ("0", "1", …) if `columns` uses numbers."""
    numbered = bool(columns) and all(name.isdigit() for name in columns.values())
    header: list[str] | None = None
    for line, cells in records:
        if header is None:
            header = [str(number) if numbered else sys.intern(name.strip()) for number, name in enumerate(cells)]
            _check_header(path, line, header, columns, need)
            if not numbered:
                continue
        if len(cells) != len(header):
            flaw = Flaw(
                f"expected {len(header)} cells as in the first line, found {len(cells)}",
                remedy="Correct or quote the line",
            )
            intake.refuse(path, line, flaw)
            continue
        yield line, dict(zip(header, cells))


def _check_header(path: str | Path, line: int | None, header: list[str], columns: Columns, need: Sequence[str]) -> None:
    if len(set(header)) < len(header):
        raise BadInput(printable(path), "duplicate column name", line=line, remedy="Rename one in the header.")
    try:
        for role in need:
            need_column(dict.fromkeys(header), role, columns)
    except Flaw as flaw:
        raise BadInput(printable(path), flaw.problem, line=line, field=flaw.field, remedy=flaw.remedy + ".") from None


def find_column(names: Iterable[str], role: str, columns: Columns | None = None) -> str | None:
    """The column among `names` that has a role ("doc_id", "text", …), or None."""
    present = names if isinstance(names, (dict, set)) else set(names)
    wanted = (columns[role],) if columns and role in columns else NAMES[role]
    return next((name for name in wanted if name in present), None)


def need_column(names: Mapping[str, Any], role: str, columns: Columns | None = None) -> str:
    """Like `find_column`, but a missing column is a flaw."""
    name = find_column(names, role, columns)
    if name is None:
        wanted = columns[role] if columns and role in columns else NAMES[role][0]
        raise Flaw(
            f"missing; the line has {shown(', '.join(map(str, names)) or 'no fields')}",
            field=wanted,
            remedy=f"Add it, or name the {role} column with --column {role}=NAME (columns={{{role!r}: NAME}})",
        )
    return name


def check_columns(columns: Columns | None, roles: Sequence[str]) -> None:
    """Reject `columns` that name an unknown role."""
    for role in columns or ():
        if role not in roles:
            raise UnknownName("column role", role, roles)


def document_of(row: Row, columns: Columns | None = None, *, need_text: bool = True) -> Document:
    """A row as a document; fields other than id, title and text become metadata."""
    id_name = need_column(row, "doc_id", columns)
    doc_id = check_id(row[id_name], id_name)
    text_name = need_column(row, "text", columns) if need_text else find_column(row, "text", columns)
    text = check_text(row[text_name], text_name) if text_name else ""
    title_name = find_column(row, "title", columns)
    title = row[title_name] if title_name else ""
    title = check_text(title, title_name or "title") if title is not None else ""
    taken = (id_name, text_name, title_name)
    rest = {name: value for name, value in row.items() if name not in taken}
    return Document(doc_id, text, title, _metadata(rest) if rest else NO_METADATA)


def _metadata(rest: Row) -> Mapping[str, Any]:
    """The remaining fields of a row, with BEIR's `metadata` object unpacked. Empty metadata take no memory."""
    inner = rest.pop("metadata", None)
    if isinstance(inner, dict):
        rest = {**inner, **rest}
    elif inner is not None:
        rest["metadata"] = inner
    try:
        return {
            sys.intern(check_text(name, "metadata")): check_value(value, name) for name, value in rest.items()
        } or NO_METADATA
    except RecursionError:
        raise Flaw("the JSON is nested too deeply", field="metadata") from None


def query_of(row: Row, columns: Columns | None = None) -> Query:
    """A row as a query: an id with a text, a `history` of doc_ids, or both."""
    id_name = need_column(row, "query_id", columns)
    query_id = check_id(row[id_name], id_name)
    history = row.get("history")
    if history is not None and not isinstance(history, list):
        raise Flaw(f"must be a list of ids, not {kind_of(history)}", field="history")
    items = tuple(check_id(item, "history") for item in history or ())
    others = {name: value for name, value in row.items() if name != id_name}
    text_name = find_column(others, "query", columns) if items else need_column(others, "query", columns)
    return Query(query_id, check_text(others[text_name], text_name) if text_name else "", items)


def read_documents(
    path: str | Path,
    rows: Iterable[tuple[int, Row]],
    intake: Intake,
    columns: Columns | None = None,
    *,
    need_text: bool = True,
) -> list[Document]:
    """All documents of a file; doc_ids must be unique."""
    return [document for _, document in each_document(path, rows, intake, columns, need_text=need_text)]


def each_document(
    path: str | Path,
    rows: Iterable[tuple[int, Row]],
    intake: Intake,
    columns: Columns | None = None,
    *,
    need_text: bool = True,
) -> Iterator[tuple[int, Document]]:
    """(line, document) of a file, one at a time; only the doc_ids, which must be unique, are held."""
    seen: set[str] = set()

    def parse(row: Row) -> Document:
        document = document_of(row, columns, need_text=need_text)
        if document.doc_id in seen:
            raise Flaw(f"duplicate id {shown(document.doc_id)}", field="doc_id", remedy="Make the ids unique")
        seen.add(document.doc_id)
        return document

    return intake.each(path, rows, parse)


def read_queries(
    path: str | Path, rows: Iterable[tuple[int, Row]], intake: Intake, columns: Columns | None = None
) -> dict[str, Query]:
    """All queries of a file by id; ids must be unique."""
    queries: dict[str, Query] = {}

    def parse(row: Row) -> None:
        query = query_of(row, columns)
        if query.query_id in queries:
            raise Flaw(f"duplicate id {shown(query.query_id)}", field="query_id", remedy="Make the ids unique")
        queries[query.query_id] = query

    for _ in intake.each(path, rows, parse):
        pass
    return queries
