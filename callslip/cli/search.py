"""callslip search: search a saved index."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callslip.cli import app, options, terminal
from callslip.cli.reasons import legend, sentences
from callslip.cli.terminal import printable
from callslip.errors import BadInput, BadSetting, CallslipError, closest

if TYPE_CHECKING:
    from callslip.corpus.documents import Query
    from callslip.encoders.given import GivenVectors
    from callslip.filters.filter import Filter
    from callslip.index.retriever import Retriever
    from callslip.search.hits import Hit, Hits


@app.command()
def search(
    index: options.IndexArgument,
    text: Annotated[
        str | None,
        typer.Argument(help="The query; without it, queries are read from standard input, one per line."),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option("--history", help="Instead of a query: a history of items, id,id,id, oldest first."),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="Instead of a query: a user of the log that the index was fitted on.")
    ] = None,
    query_vectors: options.QueryVectorsOption = None,
    keep_history: options.KeepHistoryOption = False,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of hits.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per query.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain in words why each hit was found; with --json, as data.")
    ] = False,
    set_: options.SearchSetOption = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", help="Filter by metadata: field=value[,value], field=low..high, field=begin* or field!=value."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="Search only these doc_ids: a,b,c or @FILE with one per line.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option("--deny", help="Exclude these doc_ids: a,b,c or @FILE with one per line.")
    ] = None,
    store: options.StoreOption = None,
) -> None:
    """Search a saved index."""
    filter = chosen_filter(where, allow, deny)  # before loading the index, so that mistakes are reported at once
    held = None if query_vectors is None else queries_of(query_vectors, text, history, user)
    retriever = options.open_index(index, set_, held)
    if filter is not None:
        check(filter, retriever)
    queries = chosen_queries(retriever, text, history, user) if held is None else as_queries(held)
    found = retriever.search_batch(queries, k, filter, explain, keep_history=keep_history)
    for query, hits in zip(queries, found, strict=True):
        asked = query.text or ",".join(query.history) or query.query_id
        if as_json:
            about = {"query": asked, "unsure": hits.unsure, "confidence": hits.confidence}
            terminal.echo(terminal.to_json(about | {"hits": hits.to_dicts()}))
            continue
        if len(queries) > 1:
            terminal.echo(asked, bold=True)
        show_all(hits, retriever, explain)
    if explain and not as_json:
        said = [line for hits in found for hit in hits for line in sentences(hit.why)]
        for line in legend(said):
            terminal.echo(line, dim=True)


def show_all(hits: Hits, retriever: Retriever, explain: bool) -> None:
    """Print the hits of a query, and that they probably do not answer it."""
    if not hits:
        terminal.echo("no hits")
    elif hits.unsure:
        terminal.echo(not_sure(hits))
    for hit in hits:
        show(hit, retriever, explain)


def not_sure(hits: Hits) -> str:
    """What is said before hits that probably answer nothing."""
    share = 1 - (hits.confidence or 0.0)
    return (
        "Not sure: nothing in this index answers this well "
        f"(the evidence is weaker than for {share:.0%} of the queries that were held out when it was fitted)"
    )


def queries_of(path: Path, *others: str | None) -> GivenVectors:
    """The vectors of `--query-vectors`, which are the queries."""
    from callslip.encoders.given import given_vectors

    if any(other is not None for other in others):
        raise BadSetting("--query-vectors with a text, --history or --user", "Give only one of them.")
    return given_vectors(path, None, "queries")


def as_queries(held: GivenVectors) -> list[Query]:
    """A query for each vector, with its id or number."""
    from callslip.corpus.documents import Query

    return [Query(query_id, "") for query_id in held.row_of]


def chosen_queries(retriever: Retriever, text: str | None, history: str | None, user: str | None) -> list[Query]:
    """The queries: a text, a history of items, a user, or lines of standard input."""
    from callslip.corpus.documents import Query

    if sum(one is not None for one in (text, history, user)) > 1:
        raise BadSetting("more than one of a text, --history and --user", "Give only one of them.")
    if user is not None:
        return [retriever.users.query(user)]
    if history is not None:
        if not retriever.reads_histories:
            raise BadSetting(
                f"this index ({printable(retriever.method)}) searches by text, and --history was given",
                "Search by text, or fit a method that reads histories, such as item-knn or tiger, on a log.",
            )
        return [Query("0", "", known_items(retriever, history))]
    if text is not None and not text.strip():
        raise BadSetting("the query is empty", "Give a query, or leave it out to read queries from standard input.")
    lines = [text] if text is not None else [line.strip() for line in sys.stdin if line.strip()]
    return [Query(f"#{number}", line) for number, line in enumerate(lines)]


def known_items(retriever: Retriever, history: str) -> tuple[str, ...]:
    """The doc_ids of a history; an unknown item is an error."""
    items, known = tuple(item.strip() for item in history.split(",") if item.strip()), retriever.row_of()
    if not items:
        raise BadSetting("the history is empty", "Write --history id,id,id.")
    for item in items:
        if item not in known:
            close = closest(item, known)
            hint = f"Did you mean {close[0]!r}? " if close else ""
            raise CallslipError(f"the index has no item {printable(item)!r}", f"{hint}Leave it out, or `add` it first.")
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
    """Parse doc_ids: comma-separated, or @FILE."""
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
    """Refuse ranges that are none, and warn about allowed doc_ids that do not exist and filters without a match."""
    check_ranges(filter, retriever)
    if filter.allow is not None:
        missing = sorted(filter.allow - retriever.row_of().keys())
        if missing:
            some = ", ".join(printable(doc_id) for doc_id in missing[:3]) + (", …" if len(missing) > 3 else "")
            options.say(f"{len(missing):,} of {len(filter.allow):,} allowed doc_ids are not in the index: {some}")
    mask = retriever.rows.mask(filter)
    if mask is not None and not mask.any():
        options.say("the filter matches no document")


def check_ranges(filter: Filter, retriever: Retriever) -> None:
    """Refuse a value with two dots that is no range of the field's values, if these are all numbers or all dates:
    2018..x, or 2018.. for dates."""
    from callslip.filters.filter import choices, elements
    from callslip.filters.ranges import Range, date_of, number_of

    for name, wanted in [*filter.where.items(), *filter.where_not.items()]:
        asked = [one for one in choices(wanted) if isinstance(one, Range) or (isinstance(one, str) and ".." in one)]
        if not asked:
            continue
        values = [value for known in retriever.documents.metadata() for value in elements(known.get(name))]
        kinds: list[tuple[str, Callable[[Any], Any]]] = [("numbers", number_of), ("dates", date_of)]
        for what, read in kinds:
            odd = [one for one in asked if not isinstance(one, Range) or one.of_dates != (read is date_of)]
            if odd and values and all(read(value) is not None for value in values):
                raise BadSetting(
                    f"'{printable(str(odd[0]))}' is not a range of {what}, and {name!r} holds {what}",
                    f"Write it as in {printable(name)}={min(values, key=read)}..{max(values, key=read)}; "
                    "one end may be left open.",
                )


def show(hit: Hit, retriever: Retriever, explain: bool) -> None:
    """Print a hit: rank, doc_id, code, score, and the beginning of its text."""
    code = f"  [{code_text(hit, retriever)}]" if hit.code else ""
    terminal.echo(f"{hit.rank:>3}. ", nl=False)
    terminal.echo(printable(hit.doc_id), bold=True, nl=False)
    terminal.echo(f"{code}  {hit.score:.4f}")
    title = "" if hit.title.startswith(hit.doc_id) and len(hit.title) < 40 else hit.title
    beginning = " ".join(f"{title} — {hit.text}".split() if title else hit.text.split())
    if beginning:
        terminal.echo(f"     {printable(beginning[:110])}{'…' if len(beginning) > 110 else ''}")
    if explain and hit.why:
        for line in sentences(hit.why):
            terminal.echo(f"     {printable(line)}", dim=True)


def code_text(hit: Hit, retriever: Retriever) -> str:
    from callslip.identifiers.table import code_to_text

    part = coded_part(retriever)
    tree = getattr(part, "tree_levels", None)
    return printable(code_to_text(hit.code or (), getattr(part, "vocabulary", None), tree))


def coded_part(retriever: Any) -> Any:
    """The retriever or, of a hybrid, the part whose codes its hits have: the first that has any."""
    if getattr(retriever, "identifiers", None) is not None:
        return retriever
    found = (coded_part(part) for part in getattr(retriever, "parts", ()))
    return next((part for part in found if part is not None), None)
