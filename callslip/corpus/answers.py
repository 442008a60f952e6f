"""Logs of answered queries: what users asked, and which documents answered it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from callslip.corpus.lines import Flaw, Intake, check_id, check_text, kind_of
from callslip.corpus.queries import queries_from
from callslip.corpus.rows import NAMES, Row, read_rows
from callslip.corpus.trec import read_judgements
from callslip.errors import BadSetting, closest

Answers = dict[str, list[str]]
"""The doc_ids that answered each query, by its text."""

QUERY, ONE, SEVERAL = ("query", "text", "question", "title"), NAMES["doc_id"], "doc_ids"


def read_answers(path: str | Path, intake: Intake, known: Collection[str]) -> Answers:
    """A log in JSONL, {"query": …, "doc_id": …} or {"query": …, "doc_ids": […]}, or a TSV or CSV of query and doc_id,
    with or without a header. Lines with the same query are merged; a doc_id that is not `known` is a flaw of its line.
    """
    answers: Answers = {}
    kind = _kind(path)
    columns = {"query": "0", "doc_id": "1"} if kind == "tsv" and _headless(path) else None
    rows = read_rows(path, kind, intake, columns, need=("query", "doc_id") if kind != "jsonl" else ())
    names = ((columns["query"],), (columns["doc_id"],)) if columns else (QUERY, ONE)
    for _, (text, doc_ids) in intake.each(path, rows, lambda row: _parsed(row, known, *names)):
        _merge(answers, text, doc_ids)
    return answers


def read_judged(queries: str | Path, qrels: str | Path, intake: Intake, known: Collection[str]) -> Answers:
    """Queries and judgements in two files, as BEIR and TREC have them; documents with a positive grade are answers."""
    asked = queries_from(queries, intake)
    judgements = read_judgements(qrels, intake, asked, {doc_id: doc_id for doc_id in known})
    answers: Answers = {}
    for qid, grades in judgements.items():
        good = [doc_id for doc_id, grade in grades.items() if grade > 0]
        if good and asked[qid].text.strip():
            _merge(answers, asked[qid].text.strip(), good)
    return answers


def as_answers(pairs: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Answers:
    """(query, doc_id or doc_ids) pairs, or a mapping of them, with equal queries merged."""
    answers: Answers = {}
    for number, pair in enumerate(pairs.items() if isinstance(pairs, Mapping) else pairs, start=1):
        try:
            text, given = pair
            several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
            _merge(answers, _query(text), [check_id(one, "doc_id") for one in several])
        except Flaw as flaw:
            raise BadSetting(f"pair {number}: field {flaw.field!r}: {flaw.problem}", f"{flaw.remedy}.") from None
        except (TypeError, ValueError):
            raise BadSetting(f"pair {number} is not a query and a doc_id", 'Give ("query", "doc_id").') from None
    return answers


def _merge(answers: Answers, text: str, doc_ids: Iterable[str]) -> None:
    held = answers.setdefault(text, [])
    held += [doc_id for doc_id in dict.fromkeys(doc_ids) if doc_id not in held]


def _parsed(row: Row, known: Collection[str], queries: Sequence[str], ones: Sequence[str]) -> tuple[str, list[str]]:
    text = _query(next((row[name] for name in queries if row.get(name) is not None), None))
    if row.get(SEVERAL) is not None:
        field, given = SEVERAL, row[SEVERAL]
        if not isinstance(given, list) or not given:
            raise Flaw(f"must be a list of ids, not {kind_of(given) if given != [] else 'an empty one'}", field=field)
    else:
        field, given = "doc_id", [next((row[name] for name in ones if row.get(name) is not None), None)]
        if given == [None]:
            raise Flaw("is missing", field=field, remedy='Write {"query": "…", "doc_id": "…"}')
    doc_ids = [check_id(one, field) for one in given]
    for doc_id in doc_ids:
        if doc_id not in known:
            near = closest(doc_id, known)
            hint = f"; the nearest id there is {near[0]!r}" if near else ""
            raise Flaw(f"the index has no document {doc_id!r}{hint}", field=field, remedy="Correct the id")
    return text, doc_ids


def _query(value: Any) -> str:
    if value is None:
        raise Flaw("is missing", field="query", remedy='Write {"query": "…", "doc_id": "…"}')
    text = check_text(value, "query").strip()
    if not text:
        raise Flaw("the query is empty", field="query")
    return text


def _kind(path: str | Path) -> str:
    first, suffixes = _first_line(path).lstrip(), Path(path).suffixes
    if first.startswith("{") or {".jsonl", ".json", ".ndjson"} & set(suffixes):
        return "jsonl"
    return "csv" if ".csv" in suffixes else "tsv"


def _headless(path: str | Path) -> bool:
    cells = {cell.strip() for cell in _first_line(path).split("\t")}
    return len(cells) == 2 and not cells & {*QUERY, *ONE}


def _first_line(path: str | Path) -> str:
    return next((text for _, text in _lines(path) if text.strip()), "")


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    return Intake(skip_bad=True).lines(path)
