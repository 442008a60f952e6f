"""callslip evaluate: measure a saved index on judged queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def evaluate(
    index: options.IndexArgument,
    corpus: options.CorpusArgument,
    split: Annotated[str, typer.Option("--split", help="Which judgements.")] = "test",
    measures: options.MeasuresOption = None,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Hits per query.")] = 100,
    typos: Annotated[int, typer.Option("--typos", min=0, help="Typing errors to put into each query.")] = 0,
    exact: Annotated[
        bool, typer.Option("--exact", help="Search exactly, too, and report what the beam loses to pruning.")
    ] = False,
    exclude_history: options.ExcludeHistoryOption = False,
    set_: options.SearchSetOption = None,
    queries: options.QueriesOption = None,
    qrels: options.QrelsOption = None,
    items: options.ItemsOption = None,
    run: Annotated[Path | None, typer.Option("--run", help="Write the hits as a six-column TREC run.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the report, per-query figures included.")] = None,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
    store: options.StoreOption = None,
) -> None:
    """Measure a saved index on the judged queries of a corpus."""
    from rich.console import Console

    from callslip import api
    from callslip.evaluation.measures import default_measures
    from callslip.evaluation.pruning import check_decoding

    retriever = options.open_index(index, set_)
    if exact:
        check_decoding(retriever)  # before a large corpus is read
    data = options.read_corpus(corpus, format, queries, qrels, items, column, skip_bad)
    report = api.evaluate(
        retriever,
        data,
        run=run,
        split=split,
        measures=measures or default_measures(data, split),
        depth=depth,
        typos=typos,
        exact=exact,
        exclude_history=exclude_history,
    )
    if json_ is not None:
        report.save(json_)
    Console().print(report)
