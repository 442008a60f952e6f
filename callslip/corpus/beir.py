"""BEIR folders: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, each plain or gzipped."""

from __future__ import annotations

from pathlib import Path

from callslip.corpus.documents import Corpus
from callslip.corpus.folder import BEIR, find_file
from callslip.corpus.lines import Intake
from callslip.corpus.queries import judgements_from, queries_from
from callslip.corpus.rows import Columns, read_rows
from callslip.corpus.tables import read_documents
from callslip.errors import BadInput


def read_beir(folder: str | Path, intake: Intake, columns: Columns | None = None, *, judged: bool = True) -> Corpus:
    """Read a BEIR folder; only its documents if `judged` is false or it has no queries."""
    folder = Path(folder)
    file = find_file(folder, BEIR)
    if file is None:
        raise BadInput(folder, "no corpus.jsonl or corpus.jsonl.gz in this folder", remedy="Give a BEIR folder.")
    corpus = Corpus(read_documents(file, read_rows(file, "jsonl", intake), intake, columns))
    queries = find_file(folder, "queries.jsonl")
    if not judged or not queries:
        return corpus
    corpus.queries = queries_from(queries, intake, "jsonl")
    if (folder / "qrels").is_dir():
        known = {doc_id: doc_id for doc_id in corpus.doc_ids}
        corpus.judgements = judgements_from(folder / "qrels", intake, corpus.queries, known)
    return corpus
