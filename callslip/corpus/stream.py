"""A corpus read one document at a time, with file and line, for work that must not hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from callslip.corpus.documents import Document, Judgements, Query
from callslip.corpus.folder import BEIR, find_file
from callslip.corpus.lines import Intake, local, printable
from callslip.corpus.load import LOG_FORMATS, ROLES, check_remote, detect_format, load_corpus, name_of
from callslip.corpus.queries import judgements_from, queries_from
from callslip.corpus.rows import check_columns, each_document, read_rows
from callslip.errors import BadInput, BadSetting, Unsupported

TABLES = ("jsonl", "csv", "tsv", "parquet")


@dataclass
class Placed:
    """A document with the file and the line that it comes from; 0 where there are no lines."""

    document: Document
    source: str
    line: int


@dataclass
class CorpusStream:
    """The documents of a corpus in order, and the judged queries that belong to them."""

    source: str | Path
    format: str | None = None
    queries: str | Path | None = None
    qrels: str | Path | None = None
    columns: Mapping[str, str] | None = None
    skip_bad: bool = False
    intake: Intake = field(init=False)

    def __post_init__(self) -> None:
        self.intake = Intake(self.skip_bad)
        self.kind = self.format or detect_format(self.source)
        self.name = name_of(self.source)
        check_remote(self.source, self.kind)
        if self.kind in LOG_FORMATS:
            raise Unsupported("a log of interactions has no shards of texts", "Fit it in one piece: callslip fit.")
        check_columns(self.columns, ROLES)
        if self.qrels is not None and self.queries is None and self.kind != "beir":
            raise BadSetting("judgements (qrels) without queries", "Give the queries too: --queries FILE.")

    @property
    def has_queries(self) -> bool:
        """Whether `judged` may have queries, so that it needs the doc_ids."""
        return self.queries is not None or self.kind not in TABLES

    def documents(self) -> Iterator[Placed]:
        """Every document; of tables and BEIR folders one at a time, other formats are read as a whole."""
        if self.kind not in (*TABLES, "beir"):
            corpus = load_corpus(self.source, format=self.format, skip_bad=self.skip_bad)
            self.intake.skipped = corpus.skipped
            yield from (Placed(document, printable(str(self.source)), 0) for document in corpus)
            return
        path, kind = local(self.source), self.kind
        if kind == "beir":
            file = find_file(Path(path), BEIR)
            if file is None:
                raise BadInput(path, "no corpus.jsonl or corpus.jsonl.gz in this folder", remedy="Give a BEIR folder.")
            path, kind = file, "jsonl"
        rows = read_rows(path, kind, self.intake, self.columns, need=("doc_id", "text"))
        for line, document in each_document(path, rows, self.intake, self.columns):
            yield Placed(document, printable(path), line)

    def judged(self, doc_ids: dict[str, str]) -> tuple[dict[str, Query], dict[str, Judgements]]:
        """The queries and the judgements by split. `doc_ids` has every document's id by itself."""
        if self.queries is None and self.kind not in (*TABLES, "beir"):
            corpus = load_corpus(self.source, format=self.format, skip_bad=self.skip_bad)
            return corpus.queries, corpus.judgements
        queries, qrels = self.queries, self.qrels
        if self.kind == "beir" and queries is None:
            queries, folder = find_file(Path(self.source), "queries.jsonl"), Path(self.source) / "qrels"
            qrels = qrels or (folder if folder.is_dir() else None)
        if queries is None:
            return {}, {}
        found = queries_from(queries, self.intake, "jsonl" if queries != self.queries else None)
        return found, {} if qrels is None else judgements_from(qrels, self.intake, found, doc_ids)
