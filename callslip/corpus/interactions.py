"""Interaction logs as a corpus: items are documents, and users' histories are queries.

The split is leave-one-out by time: a user's last item is the test target, the second-to-last the dev target, and
the third-to-last the train target. Only the histories and targets of train queries may be used in training.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

from callslip.corpus.documents import Corpus, Document, Query
from callslip.corpus.folder import LOGS, find_file, find_log
from callslip.corpus.lines import Flaw, Intake, check_id, shown
from callslip.corpus.rows import Columns, Row, find_column, need_column, read_documents, read_rows
from callslip.errors import BadInput

Histories = dict[str, list[str]]
ITEMS = ("items.jsonl", "items.csv", "items.tsv")
PROBED = 100
"""Number of lines that show whether a text file is a log."""


def table_format(path: Path) -> str | None:
    """The table format of a file, by its suffix; None for S3-Rec's lines of ids."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    return {".csv": "csv", ".tsv": "tsv", ".inter": "tsv", ".item": "tsv"}.get(suffix) or (
        "jsonl" if suffix in (".jsonl", ".json", ".ndjson") else None
    )


def read_interactions(
    path: str | Path,
    intake: Intake,
    items: str | Path | None = None,
    columns: Columns | None = None,
    format: str | None = None,
) -> Corpus:
    """Read a log, or a folder with one, as a corpus; without `items`, an items file next to the log is used.

    `format` is "s3rec" (lines `user item item …`), "csv", "tsv" or "jsonl"; by default it follows the suffix.
    """
    path = Path(path)
    log = find_log(path) if path.is_dir() else path
    if log is None:
        raise BadInput(
            path, "no interaction log in this folder", remedy=f"Give a file, or name it {LOGS[0]} or NAME.inter."
        )
    items = items or _items_beside(log)
    documents = _read_items(Path(items), intake, columns) if items else []
    known = {document.doc_id: document.doc_id for document in documents}
    kind = None if format == "s3rec" else format or table_format(log)
    histories = _histories(log, kind, intake, known, columns, bool(items))
    corpus = Corpus(documents or [Document(item, "") for item in known])
    leave_one_out(corpus, histories)
    return corpus


def is_lines_of_ids(path: Path) -> bool:
    """Whether a file holds S3-Rec's lines `user item item …`: numbers only, a line for each of several users."""
    lines = [text.split() for _, text in itertools.islice(Intake(skip_bad=True).lines(path), PROBED) if text.strip()]
    numbers = all(word.isascii() and word.isdecimal() for line in lines for word in line)
    users = {line[0] for line in lines}
    return len(lines) > 1 and numbers and all(len(line) > 1 for line in lines) and len(users) == len(lines)


def read_histories(path: str | Path, intake: Intake, known: Collection[str]) -> Histories:
    """The items of each user of a log, in order of time; an item that is not `known` is a flaw of its line."""
    path = Path(path)
    return _histories(path, table_format(path), intake, {item: item for item in known}, None, fixed=True)


def _histories(
    log: Path, kind: str | None, intake: Intake, known: dict[str, str], columns: Columns | None, fixed: bool
) -> Histories:
    if kind is None:
        return _lines_of_ids(log, intake, known, fixed)
    return _by_time(log, kind, intake, known, columns, fixed)


def _items_beside(log: Path) -> Path | None:
    if log.name.removesuffix(".gz").endswith(".inter"):
        return find_file(log.parent, log.name.removesuffix(".gz").removesuffix(".inter") + ".item")
    return find_file(log.parent, *ITEMS) if log.name.startswith("interactions.") else None


def _item(known: dict[str, str], item: str, fixed: bool) -> str:
    """Intern an item id, so that a log of millions of lines holds each id once."""
    if fixed and item not in known:
        raise Flaw(f"no item has the id {shown(item)}", field="item", remedy="Add it to the items")
    return known.setdefault(item, item)


def _lines_of_ids(path: Path, intake: Intake, known: dict[str, str], fixed: bool) -> Histories:
    histories: Histories = {}

    def parse(text: str) -> None:
        user, *items = text.split()
        if not items:
            raise Flaw("the user has no items")
        if user in histories:
            raise Flaw(f"duplicate user {shown(user)}", field="user", remedy="Put a user's items on one line")
        if fixed:  # check all items first: a line is accepted or rejected as a whole
            for item in items:
                _item(known, item, fixed)
        histories[user] = [_item(known, item, fixed) for item in items]

    numbered = ((line, text) for line, text in intake.lines(path) if text.strip())
    for _ in intake.each(path, numbered, parse):
        pass
    return histories


def _by_time(
    path: Path, kind: str, intake: Intake, known: dict[str, str], columns: Columns | None, fixed: bool
) -> Histories:
    """Items of each user in order of time; ties and missing times keep the order of the file."""
    log: dict[str, list[tuple[float, str]]] = {}

    def parse(row: Row) -> None:
        user_name, item_name = need_column(row, "user", columns), need_column(row, "item", columns)
        time_name = find_column(row, "time", columns)
        user, item = check_id(row[user_name], user_name), check_id(row[item_name], item_name)
        when = parse_time(row[time_name], time_name) if time_name else 0.0
        log.setdefault(user, []).append((when, _item(known, item, fixed)))

    for _ in intake.each(path, _untyped(read_rows(path, kind, intake, columns)), parse):
        pass
    return {user: [item for _, item in sorted(events, key=lambda event: event[0])] for user, events in log.items()}


def parse_time(value: object, field: str) -> float:
    """Parse a timestamp: a number in any unit, or an ISO date, which is UTC unless it has a time zone."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise Flaw("must be a number or a date", field=field)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        try:
            moment = datetime.fromisoformat(str(value).strip())
            number = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise Flaw(f"must be a number or a date, not {shown(str(value))}", field=field) from None
    if not math.isfinite(number):
        raise Flaw("not a finite number", field=field)
    return number


def _untyped(rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    """Strip the types from RecBole's headers (`item_id:token`), and convert float columns to numbers."""
    for line, row in rows:
        if any(":" in name for name in row):
            row = {name.split(":")[0]: _typed(name, value) for name, value in row.items()}
        yield line, row


def _typed(name: str, value: object) -> object:
    if name.endswith(":float") and isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        return number if math.isfinite(number) else value
    return value


def _read_items(path: Path, intake: Intake, columns: Columns | None) -> list[Document]:
    """Items from JSONL, CSV, TSV or RecBole's .item; title and text are optional."""
    kind = table_format(path)
    if kind is None:
        raise BadInput(path, "unknown format of items", remedy="Give .jsonl, .csv, .tsv or .item.")
    names = {role: name for role, name in (columns or {}).items() if role in ("doc_id", "title", "text")}
    rows = read_rows(path, kind, intake)
    if path.name.removesuffix(".gz").endswith(".item"):
        rows = ((line, _with_text(row, names)) for line, row in rows)
    documents = read_documents(path, _untyped(rows), intake, names, need_text=False)
    if not documents:
        raise BadInput(path, "no items in this file", remedy="Give a file with items, or leave it out.")
    return documents


def _with_text(row: Row, names: Columns) -> Row:
    """RecBole has no text column: the text of an item without one is its token sequences, joined."""
    plain = {name.split(":")[0]: value for name, value in row.items()}
    if find_column(plain, "text", names):
        return row
    title = find_column(plain, "title", names)
    words = [row[name] for name in row if name.endswith(":token_seq") and name.split(":")[0] != title]
    return row | {names.get("text", "text"): ". ".join(str(part) for part in words if part)}


def leave_one_out(corpus: Corpus, histories: Histories) -> None:
    """Queries `USER#test`, `USER#dev` and `USER#train`; a query needs at least one item before its target."""
    for back, split in ((3, "train"), (2, "dev"), (1, "test")):
        judgements: dict[str, dict[str, int]] = {}
        for user, items in histories.items():
            if len(items) > back:
                query = Query(f"{user}#{split}", "", tuple(items[:-back]))
                corpus.queries[query.query_id] = query
                judgements[query.query_id] = {items[-back]: 1}
        corpus.judgements[split] = judgements
