"""Options shared by several commands, and the corpus that they describe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callslip.cli import terminal

if TYPE_CHECKING:
    from callslip.corpus.documents import Corpus
    from callslip.evaluation.comparison import Comparison
    from callslip.identifiers.table import Identifiers
    from callslip.index.retriever import Retriever

CorpusArgument = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="A BEIR folder, a folder of files (text, Markdown, HTML, notebooks; PDF and DOCX with the extra `files`), "
        "a .jsonl/.csv/.tsv file (optionally .gz), a .parquet file, ir_datasets:NAME, an interaction log, or `demo`.",
    ),
]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="Format of the corpus, if it cannot be detected from the name.")
]
QueriesOption = Annotated[
    str | None, typer.Option("--queries", help="A file of queries (JSONL, TSV, TREC topics), or its URL.")
]
QrelsOption = Annotated[
    str | None, typer.Option("--qrels", help="A file or folder of judgements (BEIR or TREC), or the URL of a file.")
]
ItemsOption = Annotated[Path | None, typer.Option("--items", help="Items of an interaction log (JSONL or .item).")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option("--column", help="Column to read for a role, as ROLE=NAME, e.g. text=body; repeatable."),
]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Skip and count bad lines instead of stopping.")]
PresetOption = Annotated[str | None, typer.Option("--preset", help="A preset of the method: quick, paper, …")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the method, as key=value; repeatable.")
]
SearchSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A search setting of the index's method (`callslip methods NAME`), as key=value; repeatable."
    ),
]
MeasuresOption = Annotated[
    str | None, typer.Option("--measures", help="Measures by their ir-measures names, e.g. 'nDCG@10 R@100'.")
]
ExcludeHistoryOption = Annotated[
    bool,
    typer.Option(
        "--exclude-history/--keep-history",
        help="Logs: exclude items of the history from the hits.",
    ),
]
KeepHistoryOption = Annotated[
    bool,
    typer.Option(
        "--keep-history/--exclude-history",
        help="Logs: also return items of the history, which recommendations leave out by default.",
    ),
]
CodesAloneOption = Annotated[
    bool,
    typer.Option(
        "--codes-alone/--no-codes-alone",
        help="Report what codes alone find, without any vectors; where vectors rank, that takes a second search.",
    ),
]
ControlsOption = Annotated[
    bool,
    typer.Option(
        "--controls/--no-controls",
        help="Include the controls: for texts bm25, dense, hybrid, memory (if there are train queries) and "
        "dsi-random; for logs popularity, item-knn, seqrules, transitions and dsi-random.",
    ),
]
TableOption = Annotated[
    str | None,
    typer.Option(
        "--table",
        help="Print the table as text, markdown, latex, csv or json (--format is the corpus's). "
        "[default: text in a terminal, else markdown]",
    ),
]
VectorsOption = Annotated[
    Path | None,
    typer.Option("--vectors", help="Vectors of the documents, .npy in their order or .parquet with ids."),
]
QueryVectorsOption = Annotated[
    Path | None,
    typer.Option("--query-vectors", help="Vectors of the queries, .npy in their order or .parquet with ids."),
]
IndexArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A saved index.")]


def _trust(address: str | None) -> str | None:
    """Trust the address of a store, since the user gave it."""
    if address is not None:
        from callslip.runtime import consent

        consent.trust(consent.STORE, address)
    return address


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ADDRESS",
        callback=_trust,
        help="Address of the index's database; without it, an address in the index's manifest is not trusted.",
    ),
]


def read_corpus(
    source: str,
    format: str | None,
    queries: str | None,
    qrels: str | None,
    items: Path | None = None,
    columns: list[str] | None = None,
    skip_bad: bool = False,
) -> Corpus:
    """Load the corpus that the options describe, and print a summary to standard error."""
    from callslip.corpus.documents import has_histories
    from callslip.corpus.load import load_corpus
    from callslip.settings import parse_assignments

    corpus = load_corpus(
        source,
        format=format,
        queries=queries,
        qrels=qrels,
        items=items,
        columns=parse_assignments(columns, "--column") if columns else None,
        skip_bad=skip_bad,
    )
    splits = ", ".join(f"{len(judged):,} {split}" for split, judged in corpus.judgements.items())
    say(f"{corpus.name}: {counted(len(corpus), 'document')}" + (f", judged queries: {splits}" if splits else ""))
    for line in corpus.files.lines() if corpus.files is not None else ():
        say(f"  {line}")
    empty = sum(not document.content.strip() for document in corpus)
    if empty and not has_histories(corpus):  # items of a log are found by who had them
        say(f"{counted(empty, 'document')} without any text: no query finds {'it' if empty == 1 else 'them'} by words")
    if corpus.skipped.count:
        say(f"skipped {corpus.skipped.count:,} bad line{'s' * (corpus.skipped.count != 1)}, for example:")
        for example in corpus.skipped.examples[:3]:
            say(f"  {example}")
    return corpus


def say_sizes(index: Path, documents: int) -> None:
    """Say how large a saved index is, and how much memory this process has taken, for each of the documents."""
    from callslip.runtime.process import peak_memory
    from callslip.storage.folder import footprint

    sizes = footprint(index)
    largest = ", ".join(f"{name} {size:.0f}" for name, size in list(sizes.items())[:4])
    say(f"bytes a document, beside the texts: {sum(sizes.values()):.0f} ({largest})")
    if peak := peak_memory():
        say(f"peak memory: {peak / 2**20:,.0f} MB, {peak / max(1, documents):,.0f} bytes a document")


def open_index(path: Path, assignments: list[str] | None, query_vectors: Any = None) -> Retriever:
    """Load an index with the search settings of `--set` and the vectors of `--query-vectors`."""
    from callslip.api import load
    from callslip.settings import parse_assignments

    return load(path, query_vectors=query_vectors).adjust(parse_assignments(assignments or []))


def read_table(path: Path) -> Identifiers:
    """The codes of a saved index, or of a file."""
    from callslip.errors import BadSetting
    from callslip.identifiers.files import read_codes
    from callslip.identifiers.table import Identifiers
    from callslip.storage.saved_codes import place_of_codes

    if not path.is_dir():
        return read_codes(path)
    place = place_of_codes(path)
    if place is None:
        raise BadSetting(f"{path} is an index without codes", "Give an index of a generative method.")
    return Identifiers.load(place)


@contextmanager
def making_sense_of(path: Path) -> Iterator[None]:
    """Report files of an index that cannot be parsed, although their checksums match, as corruption."""
    from callslip.errors import CallslipError, IndexCorrupt

    try:
        yield
    except (CallslipError, BrokenPipeError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise IndexCorrupt(path, f"its files are invalid: {said}") from None


TABLES = ("text", "markdown", "latex", "csv", "json")
"""Formats of a comparison."""


def check_table(table: str | None) -> None:
    """Reject an unknown format before hours of work."""
    from callslip.errors import UnknownName

    if table is not None and table not in TABLES:
        raise UnknownName("table format", table, TABLES)


def show_comparison(comparison: Comparison, table: str | None = None) -> None:
    """Print a comparison: as a table on a terminal and as Markdown elsewhere, unless a format is given."""
    if table is None and sys.stdout.isatty():
        from rich.console import Console

        Console().print(comparison)
        return
    written = {
        "text": comparison.text,
        "markdown": comparison.to_markdown,
        "latex": comparison.to_latex,
        "csv": comparison.to_csv,
        "json": lambda: terminal.to_json(comparison.to_dict(), indent=2),
    }
    terminal.echo(written[table or "markdown"]())


def counted(number: int, what: str) -> str:
    """A number with its noun: 1 document, 1,200 documents."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def say(text: str) -> None:
    """Print a message to standard error; standard output is for results."""
    terminal.say(text)


def chosen_settings(
    recipe: str | None, assignments: list[str] | None, method: str | None = None
) -> tuple[str | None, dict[str, Any]]:
    """Method (if the recipe names one) and settings: the recipe's, overridden by `--set`. `method` is the one to fit,
    if it is not the recipe's."""
    from callslip.methods import find
    from callslip.recipes import read_recipe
    from callslip.settings import parse_assignments

    if recipe is None:
        return None, dict(parse_assignments(assignments or []))
    found = read_recipe(recipe)
    fitted = method or found.method
    settings = found.settings if fitted is None else find(fitted).recipe_settings(found.settings)
    return found.method, settings | parse_assignments(assignments or [])
