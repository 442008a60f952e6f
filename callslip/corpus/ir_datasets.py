"""Corpora from the ir_datasets catalogue (extra `data`), which downloads and caches them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from callslip.corpus.documents import Corpus
from callslip.corpus.lines import Flaw, Intake, check_id
from callslip.corpus.rows import Row, read_documents, read_queries
from callslip.corpus.trec import SPLITS, split_of
from callslip.errors import CallslipError, MissingExtra, UnknownName
from callslip.runtime.progress import track

PREFIX = "ir_datasets:"


def read_ir_datasets(name: str, intake: Intake, *, judged: bool = True) -> Corpus:
    """The documents of a catalogue entry, with its queries and judgements.

    The split is taken from the name ("beir/scifact/test"). An entry without judgements of its own, such as
    "beir/scifact", gets those of its train, dev and test parts.
    """
    name = name.removeprefix(PREFIX)
    try:
        import ir_datasets
    except ImportError:
        raise MissingExtra(f"reading {PREFIX}{name}", "data") from None
    dataset = _entry(ir_datasets.registry, name)
    try:
        return _read(ir_datasets.registry, dataset, name, intake, judged)
    except CallslipError:
        raise
    except (OSError, RuntimeError, ValueError, NotImplementedError) as error:  # failed downloads raise any of these
        raise CallslipError(
            f"{PREFIX}{name} could not be read: {type(error).__name__}: {error}",
            "Check the network, or fetch the data by hand and give its folder.",
        ) from error


def _entry(registry: Any, name: str) -> Any:
    try:
        return registry[name]
    except KeyError:
        names = list(registry)
        same = [known for known in names if known.split("/")[-1] == name.split("/")[-1]]
        close = difflib.get_close_matches(name, names, n=5) or same[:5] or ["beir/scifact", "beir/nfcorpus/test"]
        raise UnknownName("ir_datasets name", name, close) from None


def _read(registry: Any, dataset: Any, name: str, intake: Intake, judged: bool) -> Corpus:
    if not dataset.has_docs():
        raise CallslipError(f"{PREFIX}{name} has no documents", "Choose a catalogue entry with documents.")
    place = f"{PREFIX}{name}"
    records = track(dataset.docs_iter(), "Reading documents", total=_count(dataset))
    corpus = Corpus(read_documents(place, enumerate(map(_document_row, records), 1), intake))
    if not judged:
        return corpus
    parts = {split_of(name): dataset} if dataset.has_qrels() else _parts(registry, name)
    known = {doc_id: doc_id for doc_id in corpus.doc_ids}
    sources = list(parts.values()) or ([dataset] if dataset.has_queries() else [])
    for source in sources:
        rows = enumerate(map(_query_row, source.queries_iter()), 1)
        corpus.queries.update(read_queries(place, rows, intake))
    for split, part in parts.items():
        corpus.judgements[split] = _judgements(f"{place} qrels", part, corpus, known, intake)
    return corpus


def _count(dataset: Any) -> int | None:
    try:
        return int(dataset.docs_count())
    except (AttributeError, NotImplementedError, TypeError):
        return None


def _parts(registry: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word, split in SPLITS.items():
        try:
            part = registry[f"{name}/{word}"]
        except KeyError:
            continue
        if part.has_qrels() and part.has_queries():
            found.setdefault(split, part)
    return found


def _document_row(record: Any) -> Row:
    fields = record._asdict()
    row: Row = {"_id": fields.pop("doc_id"), "title": fields.get("title") or ""}
    text = fields.get("text")
    if not isinstance(text, str):
        text = record.default_text() if hasattr(record, "default_text") else None
        row["title"] = ""  # the record's default text includes the title
    row["text"] = text
    simple = (str, int, float)
    return row | {name: v for name, v in fields.items() if name not in ("title", "text") and isinstance(v, simple)}


def _query_row(record: Any) -> Row:
    text = record.default_text() if hasattr(record, "default_text") else getattr(record, "text", None)
    return {"query_id": record.query_id, "text": text}


def _judgements(
    place: str, part: Any, corpus: Corpus, known: dict[str, str], intake: Intake
) -> dict[str, dict[str, int]]:
    judgements: dict[str, dict[str, int]] = {}

    def parse(record: Any) -> None:
        query_id, doc_id = check_id(record.query_id, "query_id"), check_id(record.doc_id, "doc_id")
        if query_id not in corpus.queries:
            raise Flaw(f"no query has the id {query_id!r}", field="query_id", remedy="Choose another entry")
        if doc_id not in known:
            raise Flaw(f"no document has the id {doc_id!r}", field="doc_id", remedy="Choose another entry")
        judgements.setdefault(query_id, {})[known[doc_id]] = int(record.relevance)

    numbered: Iterator[tuple[int, Any]] = enumerate(part.qrels_iter(), 1)
    for _ in intake.each(place, numbered, parse):
        pass
    return judgements
