"""callslip build: make the index of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def build(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A folder whose shards are all encoded.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the index.")],
    query_vectors: options.QueryVectorsOption = None,
    documents: Annotated[
        str | None,
        typer.Option("--documents", metavar="ADDRESS", help="PostgreSQL database for the documents, as in share."),
    ] = None,
) -> None:
    """Build the index of a job: the same index that `callslip fit` builds in one piece."""
    from callslip import api

    index = api.build(job, out, query_vectors=query_vectors, documents=documents)
    options.say(f"saved {out} ({options.counted(len(index), 'document')}, {index.method})")
    options.say_sizes(out, len(index))
    options.say(f'next: callslip search {out} "your question"')
