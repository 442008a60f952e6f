"""Conversion of rows to documents and queries."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from callslip.corpus.documents import NO_METADATA, Document, Query
from callslip.corpus.lines import Flaw, Intake, check_id, check_text, check_value, kind_of, shown
from callslip.corpus.rows import Columns, Row, find_column, need_column


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
