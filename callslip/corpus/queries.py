"""Queries and judgements from separate files, for a corpus or an evaluation."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from callslip.corpus.documents import Judgements, Query
from callslip.corpus.lines import Flaw, Intake, check_id, file_name, is_url, kind_of, printable
from callslip.corpus.rows import NAMES, Columns, Row, check_columns, read_queries, read_rows
from callslip.corpus.trec import read_judgements, read_topics, split_of
from callslip.errors import BadInput, UnknownName

QUERY_FORMATS = ("jsonl", "csv", "tsv", "trec")
JUDGEMENT_SUFFIXES = (".tsv", ".txt", ".qrels", ".qrel", ".jsonl", ".csv")


def load_queries(
    path: str | Path, *, format: str | None = None, skip_bad: bool = False, columns: Columns | None = None
) -> dict[str, Query]:
    """Queries by id from JSONL, CSV, TSV with or without a header, or TREC topics.

    `columns` names the columns of "query_id" and "query" (the text) if they do not have common names.
    """
    return queries_from(path, Intake(skip_bad), format, columns)


def load_judgements(path: str | Path, *, skip_bad: bool = False) -> Judgements:
    """Read a judgement file: TREC's four columns, BEIR's three, or JSONL."""
    judgements = read_judgements(path, Intake(skip_bad))
    if not judgements:
        raise BadInput(printable(path), "no judgements in this file", remedy="Give lines of: query, document, grade.")
    return judgements


def queries_from(
    path: str | Path, intake: Intake, format: str | None = None, columns: Columns | None = None
) -> dict[str, Query]:
    """Like `load_queries`, with the bad-input policy of the caller's load."""
    if format not in (None, *QUERY_FORMATS):
        raise UnknownName("query format", format, QUERY_FORMATS)
    check_columns(columns, ("query_id", "query"))
    kind = format or _detect(path)
    rows: Iterator[tuple[int, Row]]
    if kind == "trec":
        rows = read_topics(path, intake)
    else:
        if kind == "tsv" and not columns and _headless(path):
            columns = {"query_id": "0", "query": "1"}
        rows = read_rows(path, kind, intake, columns, need=("query_id", "query"))
    queries = read_queries(path, rows, intake, columns)
    if not queries:
        counted = f" ({intake.skipped.count} bad lines skipped)" if intake.skipped.count else ""
        remedy = "Give a file with queries, or leave it out."
        raise BadInput(printable(path), f"no queries in this file{counted}", remedy=remedy)
    return queries


def _first_line(path: str | Path) -> str:
    return next((text for _, text in Intake(skip_bad=True).lines(path) if text.strip()), "")


def _detect(path: str | Path) -> str:
    """Detect the format by the first line, then by the suffix, since topic files have many suffixes."""
    first = _first_line(path).lstrip()
    if first[:5].lower() == "<top>":
        return "trec"
    suffixes = file_name(path).suffixes
    if first.startswith("{") or {".jsonl", ".json", ".ndjson"} & set(suffixes):
        return "jsonl"
    return "csv" if ".csv" in suffixes else "tsv"


def _headless(path: str | Path) -> bool:
    """Whether a TSV has no header, as TREC and MS MARCO write it."""
    cells = _first_line(path).split("\t")
    return len(cells) == 2 and not {cell.strip() for cell in cells} & {*NAMES["query_id"], *NAMES["query"]}


def judgements_from(
    source: str | Path | dict[str, Any],
    intake: Intake,
    queries: Collection[str],
    doc_ids: dict[str, str],
) -> dict[str, Judgements]:
    """Judgements by split, from a file, a folder with a file per split, or a dict.

    The dict maps splits to files or to judgements, or is itself the judgements of the test split.
    """
    if isinstance(source, dict):
        return _from_dict(source, intake, queries, doc_ids)
    folder = Path(source)
    if is_url(source) or not folder.is_dir():
        return {split_of(source): read_judgements(source, intake, queries, doc_ids)}
    files = [file for file in sorted(folder.iterdir()) if file.name.removesuffix(".gz").endswith(JUDGEMENT_SUFFIXES)]
    if not files:
        raise BadInput(
            folder,
            "no judgement files in this folder",
            remedy=f"Give files like test.tsv ({', '.join(JUDGEMENT_SUFFIXES)}).",
        )
    splits: dict[str, Judgements] = {}
    for file in files:
        judgements = splits.setdefault(split_of(file, default=None), {})
        for query_id, grades in read_judgements(file, intake, queries, doc_ids).items():
            judgements.setdefault(query_id, {}).update(grades)
    return splits


def _from_dict(
    source: dict[str, Any], intake: Intake, queries: Collection[str], doc_ids: dict[str, str]
) -> dict[str, Judgements]:
    splits: dict[str, Judgements] = {}
    if all(
        isinstance(value, dict) and not any(isinstance(v, dict) for v in value.values()) for value in source.values()
    ):
        source = {"test": source}
    for split, value in source.items():
        if isinstance(value, (str, Path)):
            splits[split] = read_judgements(value, intake, queries, doc_ids)
            continue
        judgements: Judgements = {}
        splits[split] = judgements
        for number, (query_id, doc_id, grade) in enumerate(_triples(split, value), 1):
            try:
                judged = _judged(query_id, doc_id, grade, queries, doc_ids)
            except Flaw as flaw:
                intake.refuse(f"qrels[{split!r}]", number, flaw)
                continue
            judgements.setdefault(judged[0], {})[judged[1]] = judged[2]
    return splits


def _triples(split: str, value: Any) -> Iterator[tuple[Any, Any, Any]]:
    if not isinstance(value, dict) or not all(isinstance(grades, dict) for grades in value.values()):
        raise BadInput(
            f"qrels[{split!r}]",
            "neither a path nor {query_id: {doc_id: grade}}",
            remedy="Give one of the two.",
        )
    for query_id, grades in value.items():
        for doc_id, grade in grades.items():
            yield query_id, doc_id, grade


def _judged(
    query_id: Any, doc_id: Any, grade: Any, queries: Collection[str], doc_ids: dict[str, str]
) -> tuple[str, str, int]:
    query_id, doc_id = check_id(query_id, "query_id"), check_id(doc_id, "doc_id")
    if not isinstance(grade, int):
        raise Flaw(f"the grade must be a whole number, not {kind_of(grade)}", field="grade")
    if query_id not in queries:
        raise Flaw(f"no query has the id {query_id!r}", field="query_id", remedy="Add the query")
    if doc_id not in doc_ids:
        raise Flaw(f"no document has the id {doc_id!r}", field="doc_id", remedy="Add the document")
    return query_id, doc_ids[doc_id], grade
