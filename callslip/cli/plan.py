"""callslip plan: cut a fit into shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def plan(
    corpus: options.CorpusArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the job.")],
    shard_rows: Annotated[
        int | None, typer.Option("--shard-rows", help="Documents per shard. [default: 100,000]")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="tied-residual, or a method that is trained.")
    ] = None,
    queries: options.QueriesOption = None,
    qrels: options.QrelsOption = None,
    vectors: Annotated[
        Path | None, typer.Option("--vectors", help="Vectors of the documents, .npy in their order.")
    ] = None,
    preset: options.PresetOption = None,
    set_: options.SetOption = None,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
) -> None:
    """Split a fit into shards that several processes or machines encode: the first step of plan, encode, build."""
    from callslip import api
    from callslip.settings import parse_assignments

    job = api.plan(
        corpus,
        out,
        method,
        preset=preset,
        settings=parse_assignments(set_ or []),
        shard_rows=shard_rows,
        vectors=vectors,
        queries=queries,
        qrels=qrels,
        format=format,
        columns=parse_assignments(column, "--column") if column else None,
        skip_bad=skip_bad,
    )
    shards, learned = options.counted(len(job.shards), "shard"), options.counted(job.plan["sample"], "document")
    made = "" if job.trained else f", codebooks learned from {learned}"
    options.say(f"{out}: {options.counted(job.rows, 'document')} in {shards}{made}")
    options.say(f"next: callslip encode {out}" + (", then callslip train" if job.trained else ""))
