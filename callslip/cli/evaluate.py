"""callslip evaluate: evaluate a saved index on judged queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def evaluate(
    index: options.IndexArgument,
    corpus: options.CorpusArgument,
    split: Annotated[str, typer.Option("--split", help="The split of the judgements: train, dev or test.")] = "test",
    measures: options.MeasuresOption = None,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Number of hits per query.")] = 100,
    typos: Annotated[int, typer.Option("--typos", min=0, help="Number of typos to add to each query.")] = 0,
    exact: Annotated[
        bool, typer.Option("--exact", help="Also search exactly, and report the loss by beam pruning.")
    ] = False,
    codes_alone: options.CodesAloneOption = True,
    exclude_history: options.ExcludeHistoryOption = False,
    set_: options.SearchSetOption = None,
    queries: options.QueriesOption = None,
    qrels: options.QrelsOption = None,
    query_vectors: options.QueryVectorsOption = None,
    items: options.ItemsOption = None,
    run: Annotated[Path | None, typer.Option("--run", help="File for the hits as a TREC run.")] = None,
    json_: Annotated[
        Path | None, typer.Option("--json", help="File for the report as JSON, with values per query.")
    ] = None,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
    store: options.StoreOption = None,
) -> None:
    """Evaluate a saved index on the judged queries of a corpus."""
    from rich.console import Console

    from callslip import api
    from callslip.evaluation.measures import default_measures
    from callslip.evaluation.pruning import check_decoding

    retriever = options.open_index(index, set_)
    if exact:
        check_decoding(retriever)  # fail before reading a large corpus
    data = options.read_corpus(corpus, format, queries, qrels, items, column, skip_bad)
    if query_vectors is not None:
        from callslip.index.given import give_queries

        give_queries(retriever, data, query_vectors)
    report = api.evaluate(
        retriever,
        data,
        run=run,
        split=split,
        measures=measures or default_measures(data, split),
        depth=depth,
        typos=typos,
        exact=exact,
        codes_alone=codes_alone,
        exclude_history=exclude_history,
    )
    if json_ is not None:
        report.save(json_)
    Console().print(report)
