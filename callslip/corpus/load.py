"""`load_corpus`: read any supported source as a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callslip.corpus.documents import Corpus
from callslip.corpus.file_types import KINDS
from callslip.corpus.folder import SUFFIXES as FILE_SUFFIXES
from callslip.corpus.folder import FileTally, folder_format, read_beir, read_folder
from callslip.corpus.interactions import is_lines_of_ids, read_interactions
from callslip.corpus.ir_datasets import PREFIX, read_ir_datasets
from callslip.corpus.lines import Intake, file_name, is_url, local, printable
from callslip.corpus.queries import judgements_from, queries_from
from callslip.corpus.rows import check_columns, find_column, read_documents, read_rows
from callslip.errors import BadInput, BadSetting, UnknownName, Unsupported
from callslip.runtime import plugins

FORMATS = (
    "beir",
    "csv",
    "demo",
    "folder",
    "interactions",
    "ir_datasets",
    "jsonl",
    "parquet",
    "recbole",
    "s3rec",
    "tsv",
)
LOG_FORMATS = ("interactions", "recbole", "s3rec")
ROLES = ("doc_id", "title", "text", "user", "item", "time")
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".inter": "recbole",
    **dict.fromkeys(FILE_SUFFIXES, "folder"),
}


def load_corpus(
    source: str | Path,
    *,
    format: str | None = None,
    queries: str | Path | None = None,
    qrels: str | Path | dict[str, Any] | None = None,
    items: str | Path | None = None,
    skip_bad: bool = False,
    columns: Mapping[str, str] | None = None,
) -> Corpus:
    """Read a corpus, with the queries and judgements that come with it or are given separately.

    `source` is a BEIR folder, a folder of files, a JSONL, CSV or TSV file, an interaction log or a folder
    with one, "ir_datasets:NAME", or "demo". `format` overrides the detected format. `columns` maps "doc_id",
    "title", "text" (in a log: "user", "item", "time") to the file's column names, or to column numbers from
    "0" if the file has no header. `queries` and `qrels` replace those of the folder. A bad line is an error;
    with `skip_bad`, bad lines are skipped and counted in `corpus.skipped`. What became of the files
    of a folder is in `corpus.files`.
    """
    kind = format or detect_format(source)
    if format is None and kind in ("jsonl", "csv", "tsv") and {"user", "item"} & set(columns or ()):
        kind = "interactions"  # naming a user or item column makes it a log, whatever its columns are called
    brought = {} if kind in FORMATS else plugins.plugins(plugins.FORMATS)
    if kind not in FORMATS and kind not in brought:
        raise UnknownName("corpus format", kind, (*FORMATS, *brought))
    if columns:
        check_columns(columns, ROLES)
        if kind in ("demo", "folder", "ir_datasets"):
            raise BadSetting(f"columns does not apply to the format {kind!r}", "Leave it out.")
    if items is not None and kind not in LOG_FORMATS:
        raise BadSetting(
            f"items (--items) without a log: {printable(str(source))} is read in the format {kind!r}",
            f"Leave it out, or name the log's format: --format (format=) {', '.join(LOG_FORMATS)}.",
        )
    intake = Intake(skip_bad)
    corpus = _read(kind, source, intake, items, columns, judged=queries is None)
    corpus.name = name_of(source)
    corpus.skipped = intake.skipped
    if not corpus.documents:
        raise BadInput(
            printable(str(source)),
            f"the corpus is empty{_counted(intake)}",
            remedy="Give a corpus with documents.",
        )
    if queries is not None:
        corpus.queries, corpus.judgements = queries_from(queries, intake), {}
    if qrels is not None:
        if not corpus.queries:
            raise BadSetting("judgements (qrels) without queries", "Give the queries too: --queries FILE.")
        known = {doc_id: doc_id for doc_id in corpus.doc_ids}
        corpus.judgements = judgements_from(qrels, intake, corpus.queries, known)
    return corpus


def _read(
    kind: str,
    source: str | Path,
    intake: Intake,
    items: str | Path | None,
    columns: Mapping[str, str] | None,
    judged: bool,
) -> Corpus:
    if kind == "demo":
        from callslip.corpus.demo import demo_corpus

        return demo_corpus()
    if kind not in FORMATS:
        made = plugins.plugins(plugins.FORMATS)[kind].load()(source)
        return made if isinstance(made, Corpus) else Corpus(list(made))
    if kind == "ir_datasets":
        return read_ir_datasets(str(source), intake, judged=judged)
    if not _exists(source):
        raise BadInput(printable(str(source)), "no such file or folder", remedy="Check the path.")
    check_remote(source, kind)
    if kind == "beir":
        return read_beir(source, intake, columns, judged=judged)
    if kind == "folder":
        tally = FileTally()
        return Corpus(read_folder(source, intake, tally=tally), files=tally)
    if kind in LOG_FORMATS:
        return read_interactions(source, intake, items, columns, "s3rec" if kind == "s3rec" else None)
    rows = read_rows(source, kind, intake, columns, need=("doc_id", "text"))
    return Corpus(read_documents(source, rows, intake, columns))


def check_remote(source: str | Path, kind: str) -> None:
    """Refuse a URL of what is not one file of documents."""
    if is_url(source) and kind not in ("jsonl", "csv", "tsv", "parquet"):
        raise Unsupported(
            f"{printable(source)}: a corpus behind a URL is a JSONL, CSV, TSV or Parquet file, not {kind}",
            "Give such a file, or copy the corpus to this machine first.",
        )


def detect_format(source: str | Path) -> str:
    """Detect the format of a source from its name and, for folders and tables, from its contents."""
    if source == "demo":
        return "demo"
    if str(source).startswith(PREFIX):
        return "ir_datasets"
    if not str(source):
        raise BadSetting("the corpus has no name", "Give a folder, a file, ir_datasets:NAME or demo.")
    if not _exists(source):
        remedy = "Check the path; other sources are ir_datasets:NAME and demo."
        raise BadInput(printable(str(source)), "no such file or folder", remedy=remedy)
    path = local(source)
    if isinstance(path, Path) and path.is_dir():
        return folder_format(path)
    name = file_name(path).name
    suffix = Path(name.removesuffix(".gz").removesuffix(".zst")).suffix.lower()
    kind = SUFFIXES.get(suffix)
    if kind is None and suffix in KINDS:
        remedy = "Give a file of text, PDF or DOCX, a table (.jsonl, .csv, .tsv, .parquet), or a folder of files."
        raise BadInput(printable(path), f"not read: {KINDS[suffix]}", remedy=remedy)
    if suffix in (".txt", ".text") and isinstance(path, Path) and is_lines_of_ids(path):
        return "s3rec"
    if kind is None or (kind == "folder" and name.endswith((".gz", ".zst"))):
        raise BadInput(printable(path), "the file name does not show the format",
                       remedy=f"Give the format with --format (format=): {', '.join(FORMATS)}.")  # fmt: skip
    return "interactions" if kind in ("jsonl", "csv", "tsv") and _is_log(path, kind) else kind


def _is_log(path: str | Path, kind: str) -> bool:
    """Whether a table has columns for users and items, and none for text."""
    _, row = next(read_rows(path, kind, Intake(skip_bad=True)), (0, {}))
    return bool(find_column(row, "user") and find_column(row, "item") and not find_column(row, "text"))


def _exists(source: str | Path) -> bool:
    if is_url(source):
        return True  # or an error when it is opened
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # the name is too long, or contains a NUL
        return False


def name_of(source: str | Path) -> str:
    """A short name for reports: the name of the folder or file, without suffixes."""
    if source == "demo" or str(source).startswith(PREFIX):
        return str(source).removeprefix(PREFIX)
    if is_url(source):
        return file_name(str(source)).name.split(".")[0] or "corpus"
    return printable(Path(source).resolve().name).split(".")[0] or "corpus"


def _counted(intake: Intake) -> str:
    skipped = intake.skipped
    return f": {skipped.count} bad lines were skipped, the first: {skipped.examples[0]}" if skipped.count else ""
