"""Options that several commands share, and the corpus that they describe."""

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
    from callslip.index.retriever import Retriever

CorpusArgument = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="A BEIR folder, a folder of .txt/.md/.rst/.html files, a .jsonl/.csv/.tsv file (may be .gz), "
        "ir_datasets:NAME, an interaction log, or `demo`.",
    ),
]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="The corpus's format, if it is not seen from its name.")
]
QueriesOption = Annotated[Path | None, typer.Option("--queries", help="A file of queries (JSONL, TSV, TREC topics).")]
QrelsOption = Annotated[Path | None, typer.Option("--qrels", help="A file or folder of judgements (BEIR or TREC).")]
ItemsOption = Annotated[Path | None, typer.Option("--items", help="Items of an interaction log (JSONL or .item).")]
ColumnOption = Annotated[
    list[str] | None, typer.Option("--column", help="role=name, for CSV/TSV columns of other names, e.g. text=body.")
]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Skip and count bad lines instead of stopping.")]
PresetOption = Annotated[str | None, typer.Option("--preset", help="One of the method's named sets: quick, paper, …")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="key=value, any setting of the method; repeatable.")]
SearchSetOption = Annotated[
    list[str] | None, typer.Option("--set", help="key=value, a setting that acts when searching, e.g. beam=100.")
]
MeasuresOption = Annotated[str | None, typer.Option("--measures", help="ir-measures names, e.g. 'nDCG@10 R@100'.")]
ExcludeHistoryOption = Annotated[
    bool,
    typer.Option(
        "--exclude-history/--keep-history",
        help="Logs: leave out of the hits what the history holds already.",
    ),
]
IndexArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A saved index.")]


def _trust(address: str | None) -> str | None:
    """Take the user's word for the address of a store."""
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
        help="The database that the index is known to keep its documents in; its manifest alone is not followed there.",
    ),
]


def read_corpus(
    source: str,
    format: str | None,
    queries: Path | None,
    qrels: Path | None,
    items: Path | None = None,
    columns: list[str] | None = None,
    skip_bad: bool = False,
) -> Corpus:
    """Load the corpus that the options describe, and say on standard error what was found."""
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
    if corpus.skipped.count:
        say(f"skipped {corpus.skipped.count:,} bad line{'s' * (corpus.skipped.count != 1)}, such as:")
        for example in corpus.skipped.examples[:3]:
            say(f"  {example}")
    return corpus


def open_index(path: Path, assignments: list[str] | None) -> Retriever:
    """Load an index, with its search settings changed as `--set` says."""
    from callslip.api import load
    from callslip.settings import parse_assignments

    return load(path).adjust(parse_assignments(assignments or []))


@contextmanager
def making_sense_of(path: Path) -> Iterator[None]:
    """Files of an index are read one by one here; those that make no sense, though their hashes fit, are damage."""
    from callslip.errors import CallslipError, IndexCorrupt

    try:
        yield
    except (CallslipError, BrokenPipeError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise IndexCorrupt(path, f"its files make no sense: {said}") from None


def show_comparison(comparison: Comparison) -> None:
    """A table for the eye on a terminal, Markdown elsewhere."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(comparison)
    else:
        terminal.echo(comparison.to_markdown())


def counted(number: int, what: str) -> str:
    """A number of things: 1 document, 1,200 documents."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def say(text: str) -> None:
    """A line for the person at the terminal; standard output is for results."""
    terminal.say(text)


def chosen_settings(recipe: str | None, assignments: list[str] | None) -> tuple[str | None, dict[str, Any]]:
    """Method (if the recipe names one) and settings: the recipe's, then `--set` over them."""
    from callslip.recipes import read_recipe
    from callslip.settings import parse_assignments

    if recipe is None:
        return None, dict(parse_assignments(assignments or []))
    found = read_recipe(recipe)
    return found.method, found.settings | parse_assignments(assignments or [])
