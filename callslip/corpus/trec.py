"""TREC topics and judgements, and BEIR's three-column judgements."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from callslip.corpus.documents import Judgements
from callslip.corpus.lines import Flaw, Intake, check_id, file_name, shown
from callslip.corpus.rows import Row, read_rows

MAX_GRADE = 2**31 - 1  # the range of trec_eval's C ints
QUERY_HEADERS = {"query-id", "query_id", "queryid", "qid", "query", "topic", "topic_id", "topic-id"}
SPLITS = {"train": "train", "dev": "dev", "valid": "dev", "validation": "dev", "val": "dev", "test": "test"}


def split_of(path: str | Path, default: str | None = "test") -> str:
    """The split in the name of a judgement file: train.tsv, qrels.dev.txt, validation.tsv.gz …

    A name without a split gives `default`, or with `default=None` the name itself up to the first dot.
    """
    name = file_name(path).name
    for word in re.split(r"[^a-z]+", name.lower()):
        if word in SPLITS:
            return SPLITS[word]
    return default or name.split(".")[0] or "test"


def read_judgements(
    path: str | Path,
    intake: Intake,
    queries: Collection[str] | None = None,
    doc_ids: dict[str, str] | None = None,
) -> Judgements:
    """Judgements of one file: `query doc grade` (BEIR, headed or not), `query 0 doc grade` (TREC) or JSONL.

    With `queries` and `doc_ids`, judgements of unknown ids are flaws. `doc_ids` maps each doc_id to itself, so
    that judgements share the corpus's strings instead of holding copies.
    """
    judgements: Judgements = {}

    def parse(cells: tuple[str, str, str]) -> None:
        query_id, doc_id = check_id(cells[0], "query_id"), check_id(cells[1], "doc_id")
        grade = _grade(cells[2])
        if queries is not None and query_id not in queries:
            raise Flaw(f"no query has the id {shown(query_id)}", field="query_id", remedy="Add the query")
        if doc_ids is not None:
            if doc_id not in doc_ids:
                raise Flaw(f"no document has the id {shown(doc_id)}", field="doc_id", remedy="Add the document")
            doc_id = doc_ids[doc_id]
        grades = judgements.setdefault(query_id, {})
        if grades.setdefault(doc_id, grade) != grade:
            raise Flaw(
                f"conflicting grades: {grade} here, {grades[doc_id]} on an earlier line",
                field="grade",
                remedy="Keep one of the two",
            )

    for _ in intake.each(path, _judgement_cells(path, intake), parse):
        pass
    return judgements


def _grade(text: str) -> int:
    try:
        number = float(text)
        if number != int(number) or abs(number) > MAX_GRADE:
            raise ValueError
    except (ValueError, OverflowError):
        raise Flaw(f"the grade must be a whole number, not {shown(text)}", field="grade") from None
    return int(number)


def _judgement_cells(path: str | Path, intake: Intake) -> Iterator[tuple[int, tuple[str, str, str]]]:
    suffixes = file_name(path).suffixes
    if ".jsonl" in suffixes:
        yield from intake.each(path, read_rows(path, "jsonl", intake), _cells_of_row)
        return
    width = 0
    delimiter = "," if ".csv" in suffixes else None

    def parse(text: str) -> tuple[str, str, str] | None:
        nonlocal width
        cells = text.split("\t") if "\t" in text else text.split(delimiter)
        if len(cells) != width and (width or len(cells) not in (3, 4)):
            expected = width or "3 (query, document, grade) or 4 (query, 0, document, grade)"
            raise Flaw(f"expected {expected} columns, found {len(cells)}")
        header = not width and cells[0].strip().lower() in QUERY_HEADERS
        width = len(cells)
        return None if header else (cells[0], cells[-2], cells[-1])

    numbered = ((line, text) for line, text in intake.lines(path) if text and not text.isspace())
    for line, cells in intake.each(path, numbered, parse):
        if cells is not None:
            yield line, cells


def _cells_of_row(row: Row) -> tuple[str, str, str]:
    found = []
    for names in (
        ("query-id", "query_id", "qid"),
        ("corpus-id", "doc_id", "corpus_id"),
        ("score", "grade", "relevance"),
    ):
        name = next((name for name in names if name in row), None)
        if name is None:
            raise Flaw("missing", field=names[0])
        found.append(check_id(row[name], name))
    return found[0], found[1], found[2]


def read_topics(path: str | Path, intake: Intake) -> Iterator[tuple[int, Row]]:
    """Rows {query_id, text} of classic TREC topics (`<top> <num> <title> <desc>`); the text is the title.

    A topic without a title uses its description. Closing tags of fields are optional.
    """
    yield from intake.each(path, _topic_blocks(path, intake), _topic_row)


def _topic_blocks(path: str | Path, intake: Intake) -> Iterator[tuple[int, str]]:
    start, block = 0, list[str]()
    for line, text in intake.lines(path):
        opens = re.match(r"\s*<top>", text, re.IGNORECASE)
        if opens:
            if block:
                yield start, "\n".join(block)
            start, block = line, [text[opens.end() :]]
        elif block:
            block.append(text)
        elif text.strip():
            intake.refuse(path, line, Flaw("text outside <top> … </top>"))
        if block and re.search(r"</top>\s*$", text, re.IGNORECASE):
            yield start, "\n".join(block)
            block = []
    if block:
        yield start, "\n".join(block)


_FIELD = re.compile(
    r"<(num|title|desc|narr|smry|con|fac|def|dom|head)>\s*(?:(?:number|topic|description|narrative)\s*:)?",
    re.IGNORECASE,
)


def _topic_row(block: str) -> Row:
    if not re.search(r"</top>\s*$", block, re.IGNORECASE):
        raise Flaw("<top> is not closed", remedy="Add </top>")
    fields: dict[str, str] = {}
    marks = list(_FIELD.finditer(block))
    for mark, following in zip(marks, [*marks[1:], None]):
        value = block[mark.end() : following.start() if following else len(block)]
        value = re.sub(r"</\w+>", " ", value)
        fields.setdefault(mark[1].lower(), " ".join(value.split()))
    if "num" not in fields:
        raise Flaw("missing", field="num")
    text = fields.get("title") or fields.get("desc")
    if text is None:
        raise Flaw("missing", field="title")
    return {"query_id": fields["num"], "text": text}
