"""callslip search: ask a saved index."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from callslip.cli import app, options

if TYPE_CHECKING:
    from callslip.retriever import Retriever
    from callslip.search.hits import Hit


@app.command()
def search(
    index: options.IndexArgument,
    text: Annotated[
        str | None, typer.Argument(help="The query; without it, one query per line of standard input.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per query.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show why each hit was found.")] = False,
    set_: options.SearchSetOption = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", help="field=value[,value]: only such documents.")
    ] = None,
) -> None:
    """Search a saved index."""
    from callslip.search.filters import parse_where

    retriever = options.open_index(index, set_)
    filter = parse_where(where or [])
    queries = [text] if text is not None else [line.strip() for line in sys.stdin if line.strip()]
    for query, hits in zip(queries, retriever.search_batch(queries, k, filter, explain), strict=True):
        if as_json:
            typer.echo(json.dumps({"query": query, "hits": hits.to_dicts()}, ensure_ascii=False))
            continue
        if len(queries) > 1:
            typer.secho(query, bold=True)
        if not hits:
            typer.echo("no hits")
        for hit in hits:
            show(hit, retriever, explain)


def show(hit: Hit, retriever: Retriever, explain: bool) -> None:
    """One hit on the terminal: rank, score, code, id, and the beginning of its text."""
    code = f"  [{code_text(hit, retriever)}]" if hit.code else ""
    typer.echo(f"{hit.rank:>3}. ", nl=False)
    typer.secho(printable(hit.doc_id), bold=True, nl=False)
    typer.echo(f"{code}  {hit.score:.4f}")
    title = "" if hit.title.startswith(hit.doc_id) and len(hit.title) < 40 else hit.title
    beginning = " ".join(f"{title} — {hit.text}".split() if title else hit.text.split())
    if beginning:
        typer.echo(f"     {printable(beginning[:110])}{'…' if len(beginning) > 110 else ''}")
    if explain and hit.why:
        typer.secho(f"     {json.dumps(hit.why, ensure_ascii=False)}", dim=True)


def code_text(hit: Hit, retriever: Retriever) -> str:
    from callslip.identifiers.table import code_to_text

    return code_to_text(hit.code or (), getattr(retriever, "vocabulary", None))


def printable(text: str) -> str:
    """Documents come from anywhere: control characters must not reach the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
