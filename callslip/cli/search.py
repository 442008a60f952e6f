"""callslip search: ask a saved index."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callslip.cli import app, options
from callslip.errors import BadInput, BadSetting

if TYPE_CHECKING:
    from callslip.retriever import Retriever
    from callslip.search.filters import Filter
    from callslip.search.hits import Hit


@app.command()
def search(
    index: options.IndexArgument,
    text: Annotated[
        str | None,
        typer.Argument(help="The query; without it, one query per line of standard input (blank lines are skipped)."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many hits.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per query.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show why each hit was found.")] = False,
    set_: options.SearchSetOption = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="field=value[,value], field=low..high or field!=value: only such documents."),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="Only these doc_ids: a,b,c or @file with one per line.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option("--deny", help="None of these doc_ids: a,b,c or @file with one per line.")
    ] = None,
) -> None:
    """Search a saved index."""
    filter = chosen_filter(where, allow, deny)  # first, because a mistake in it should not wait for the index
    retriever = options.open_index(index, set_)
    if filter is not None:
        check(filter, retriever)
    if text is not None and not text.strip():
        raise BadSetting("the query is empty", "Write what to search for, or leave it out to read queries from lines.")
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


def chosen_filter(where: list[str] | None, allow: list[str] | None, deny: list[str] | None) -> Filter | None:
    """The filter that the options describe, or None."""
    from callslip.search.filters import Filter, parse_where

    filter = parse_where(where or [])
    if allow is None and deny is None:
        return filter
    return replace(filter or Filter(), allow=None if allow is None else read_ids(allow), deny=read_ids(deny or []))


def read_ids(given: list[str]) -> frozenset[str]:
    """doc_ids as they are given: separated by commas, or in a file after an @."""
    ids: set[str] = set()
    for text in given:
        if text.startswith("@"):
            try:
                lines = Path(text[1:]).read_text(encoding="utf-8-sig").split("\n")
            except UnicodeDecodeError:
                raise BadInput(text[1:], "is not UTF-8", remedy="Write one doc_id per line, in UTF-8.") from None
            except (OSError, ValueError) as error:
                raise BadInput(text[1:], f"cannot be read: {error}", remedy="Write @FILE, or a,b,c.") from None
            ids.update(line.removesuffix("\r") for line in lines)
        else:
            ids.update(doc_id.strip() for doc_id in text.split(","))
    return frozenset(ids - {""})


def check(filter: Filter, retriever: Retriever) -> None:
    """Say on standard error what a person would wonder about: allowed documents that are not there, and no match."""
    if filter.allow is not None:
        missing = sorted(filter.allow - retriever.row_of().keys())
        if missing:
            some = ", ".join(printable(doc_id) for doc_id in missing[:3]) + (", …" if len(missing) > 3 else "")
            options.say(f"{len(missing):,} of {len(filter.allow):,} allowed doc_ids are not in the index: {some}")
    mask = retriever.mask(filter)
    if mask is not None and not mask.any():
        options.say("the filter matches no document")


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
