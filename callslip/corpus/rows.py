"""Rows with named fields from JSONL, CSV and TSV, and the names under which we look for what we need."""

from __future__ import annotations

import csv
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from callslip.corpus.lines import MAX_LINE, Flaw, Intake, kind_of, printable, shown
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
"""What each role may be called when `columns` does not say; the first that is there is taken."""

MAX_RECORD_LINES = 10_000
"""Lines in the longest quoted CSV record; beyond it the quote was never meant to open one."""


def read_rows(
    path: str | Path, format: str, intake: Intake, columns: Columns | None = None, need: Sequence[str] = ()
) -> Iterator[tuple[int, Row]]:
    """(line, row) of a "jsonl", "csv" or "tsv" file.

    A table whose header lacks a column that we `need` is refused as a whole: no line of it could be taken.
    """
    if format == "jsonl":
        numbered = ((line, text) for line, text in intake.lines(path) if text and not text.isspace())
        yield from intake.each(path, numbered, parse_json)
        return
    records = _csv_records(path, intake) if format == "csv" else _tsv_records(path, intake)
    yield from _named(path, records, intake, columns or {}, need)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_json(text: str) -> Row:
    """A line of JSONL: one object."""
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise Flaw("the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:  # its own message counts lines, which ours would contradict
        problem = f"broken JSON ({error.msg} at column {error.colno})"
        raise Flaw(problem, remedy="Write one JSON object per line") from None
    except ValueError as error:  # NaN, and Python's refusal of integers of thousands of digits
        raise Flaw(f"broken JSON ({error})", remedy="Write one JSON object per line") from None
    if not isinstance(value, dict):
        raise Flaw(f"{kind_of(value)}, not a JSON object", remedy="Write one JSON object per line")
    return value


def _tsv_records(path: str | Path, intake: Intake) -> Iterator[tuple[int, list[str]]]:
    """TSV as search people write it: no quoting, so a quote is a character like any other."""
    for line, text in intake.lines(path):
        if text:
            yield line, text.split("\t")


class _Feed:
    """Lines for the csv module that can be given back, so that one stray quote costs one line and no more."""

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
            raise Flaw("the quoted field is broken by a bad line")
        self.taken.append(item)
        self.size += len(item[1])
        if len(self.taken) > MAX_RECORD_LINES or self.size > MAX_LINE:
            raise Flaw("a quote is opened and not closed")
        return item[1]

    def begin(self) -> None:
        self.taken, self.size = [], 0

    def give_back(self) -> int:
        """Return all lines taken but the first, whose number is the answer."""
        self.waiting.extendleft(reversed(self.taken[1:]))
        return self.taken[0][0]


def _csv_records(path: str | Path, intake: Intake) -> Iterator[tuple[int, list[str]]]:
    lines = intake.lines(path, keep_ends=True)
    first = next(lines, None)
    if first is None:
        return
    delimiter = max(",;\t|", key=first[1].count)  # the comma wins a tie: it stands first
    feed = _Feed(lines)
    feed.waiting.append(first)
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))  # a limit of the whole process: only ever raised
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.begin()
        try:
            record = next(reader)
        except StopIteration:
            return
        except (csv.Error, Flaw) as error:
            flaw = (
                error if isinstance(error, Flaw) else Flaw(f"broken CSV ({error})", remedy="Close or double the quotes")
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
    """Rows from cells: names from the header, or numbers ("0", "1", …) where `columns` speaks of numbers."""
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
                f"{len(cells)} cells, where the first line has {len(header)}",
                remedy="Correct or quote the line",
            )
            intake.refuse(path, line, flaw)
            continue
        yield line, dict(zip(header, cells))


def _check_header(path: str | Path, line: int, header: list[str], columns: Columns, need: Sequence[str]) -> None:
    if len(set(header)) < len(header):
        raise BadInput(printable(path), "two columns have one name", line=line, remedy="Rename one in the header.")
    try:
        for role in need:
            need_column(dict.fromkeys(header), role, columns)
    except Flaw as flaw:
        raise BadInput(printable(path), flaw.problem, line=line, field=flaw.field, remedy=flaw.remedy + ".") from None


def find_column(names: Iterable[str], role: str, columns: Columns | None = None) -> str | None:
    """The name under which a role ("doc_id", "text", …) goes among `names`, if it is there."""
    present = names if isinstance(names, (dict, set)) else set(names)
    wanted = (columns[role],) if columns and role in columns else NAMES[role]
    return next((name for name in wanted if name in present), None)


def need_column(names: Mapping[str, Any], role: str, columns: Columns | None = None) -> str:
    """As `find_column`, but a row without it is flawed."""
    name = find_column(names, role, columns)
    if name is None:
        wanted = columns[role] if columns and role in columns else NAMES[role][0]
        raise Flaw(
            f"missing; the line has {shown(', '.join(map(str, names)) or 'no fields')}",
            field=wanted,
            remedy=f"Add it, or say which column is the {role} with --column {role}=NAME (columns={{{role!r}: NAME}})",
        )
    return name


def check_columns(columns: Columns | None, roles: Sequence[str]) -> None:
    """Refuse a `columns` that speaks of roles that do not exist."""
    for role in columns or ():
        if role not in roles:
            raise UnknownName("column role", role, roles)
