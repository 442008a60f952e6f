"""callslip search: ask a saved index."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callslip.cli import app, options, terminal
from callslip.cli.terminal import printable
from callslip.errors import BadInput, BadSetting, CallslipError, closest

if TYPE_CHECKING:
    from callslip.corpus.documents import Query
    from callslip.filters.filter import Filter
    from callslip.index.retriever import Retriever
    from callslip.search.hits import Hit


@app.command()
def search(
    index: options.IndexArgument,
    text: Annotated[
        str | None,
        typer.Argument(help="The query; without it, one query per line of standard input (blank lines are skipped)."),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option("--history", help="Instead of a query: items that a user had, id,id,id, the last one last."),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="Instead of a query: a user of the log that the index was fitted on.")
    ] = None,
    exclude_history: options.ExcludeHistoryOption = False,
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
    store: options.StoreOption = None,
) -> None:
    """Search a saved index."""
    filter = chosen_filter(where, allow, deny)  # first, because a mistake in it should not wait for the index
    retriever = options.open_index(index, set_)
    if filter is not None:
        check(filter, retriever)
    queries = chosen_queries(retriever, text, history, user)
    found = retriever.search_batch(queries, k, filter, explain, exclude_history=exclude_history)
    for query, hits in zip(queries, found, strict=True):
        asked = query.text or ",".join(query.history)
        if as_json:
            terminal.echo(terminal.to_json({"query": asked, "hits": hits.to_dicts()}))
            continue
        if len(queries) > 1:
            terminal.echo(asked, bold=True)
        if not hits:
            terminal.echo("no hits")
        for hit in hits:
            show(hit, retriever, explain)


def chosen_queries(retriever: Retriever, text: str | None, history: str | None, user: str | None) -> list[Query]:
    """What is asked for: a text, the items of a history, a user, or lines of standard input."""
    from callslip.corpus.documents import Query

    if sum(one is not None for one in (text, history, user)) > 1:
        raise BadSetting("a text, --history and --user are three ways to ask", "Give one of them.")
    if user is not None:
        return [retriever.users.query(user)]
    if history is not None:
        return [Query("0", "", known_items(retriever, history))]
    if text is not None and not text.strip():
        raise BadSetting("the query is empty", "Write what to search for, or leave it out to read queries from lines.")
    lines = [text] if text is not None else [line.strip() for line in sys.stdin if line.strip()]
    return [Query(str(number), line) for number, line in enumerate(lines)]


def known_items(retriever: Retriever, history: str) -> tuple[str, ...]:
    """The doc_ids of a history; one that the index does not hold is a mistake that should be seen."""
    items, known = tuple(item.strip() for item in history.split(",") if item.strip()), retriever.row_of()
    if not items:
        raise BadSetting("the history is empty", "Write --history id,id,id.")
    for item in items:
        if item not in known:
            close = closest(item, known)
            hint = f"Did you mean {close[0]!r}? " if close else ""
            raise CallslipError(
                f"the index holds no item {printable(item)!r}", f"{hint}Leave it out, or `add` it first."
            )
    return items


def chosen_filter(where: list[str] | None, allow: list[str] | None, deny: list[str] | None) -> Filter | None:
    """The filter that the options describe, or None."""
    if where is None and allow is None and deny is None:
        return None
    from callslip.filters.filter import Filter, parse_where

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
    mask = retriever.rows.mask(filter)
    if mask is not None and not mask.any():
        options.say("the filter matches no document")


def show(hit: Hit, retriever: Retriever, explain: bool) -> None:
    """One hit on the terminal: rank, score, code, id, and the beginning of its text."""
    code = f"  [{code_text(hit, retriever)}]" if hit.code else ""
    terminal.echo(f"{hit.rank:>3}. ", nl=False)
    terminal.echo(printable(hit.doc_id), bold=True, nl=False)
    terminal.echo(f"{code}  {hit.score:.4f}")
    title = "" if hit.title.startswith(hit.doc_id) and len(hit.title) < 40 else hit.title
    beginning = " ".join(f"{title} — {hit.text}".split() if title else hit.text.split())
    if beginning:
        terminal.echo(f"     {printable(beginning[:110])}{'…' if len(beginning) > 110 else ''}")
    if explain and hit.why:
        terminal.echo(f"     {terminal.to_json(hit.why)}", dim=True)


def code_text(hit: Hit, retriever: Retriever) -> str:
    from callslip.identifiers.table import code_to_text

    return printable(code_to_text(hit.code or (), getattr(retriever, "vocabulary", None)))
