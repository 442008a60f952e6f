"""callslip add, update, delete, compact, snapshot, check: an index that changes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options, terminal
from callslip.errors import CallslipError

AT_ONCE = 1000
"""Documents that become durable together: enough for the encoder, few enough to lose little when interrupted."""

DocumentsArgument = Annotated[
    str, typer.Argument(metavar="DOCUMENTS", help="Documents in any format that `fit` reads, e.g. docs.jsonl.")
]

EachOption = Annotated[
    bool,
    typer.Option("--each", help="Print each document's id and what it is to the model: new content or new semantic."),
]


@app.command()
def add(
    index: options.IndexArgument,
    documents: DocumentsArgument,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
    each: EachOption = False,
    store: options.StoreOption = None,
) -> None:
    """Add documents to an index without training: they are found, and durable, when this returns."""
    _take(index, documents, format, column, skip_bad, each, replace=False)


@app.command()
def update(
    index: options.IndexArgument,
    documents: DocumentsArgument,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
    each: EachOption = False,
    store: options.StoreOption = None,
) -> None:
    """Put documents in the place of those of the same doc_id; others are added."""
    _take(index, documents, format, column, skip_bad, each, replace=True)


def _take(
    path: Path, documents: str, format: str | None, column: list[str] | None, skip_bad: bool, each: bool, replace: bool
) -> None:
    corpus = options.read_corpus(documents, format, None, None, None, column, skip_bad)
    index = options.open_index(path, None)
    done, verb = 0, "updated or added" if replace else "added"
    try:
        for start in range(0, len(corpus), AT_ONCE):
            some = corpus.documents[start : start + AT_ONCE]
            (index.update if replace else index.add)(some)
            done += len(some)
    except CallslipError as error:
        if done:
            options.say(f"{verb} {options.counted(done, 'document')} before this, and they stay:")
        raise error
    options.say(f"{verb} {options.counted(done, 'document')}; {path} has {len(index):,}")
    for line in index.drift().lines():
        options.say(f"  {line}")
    kinds = index.novelty(document.doc_id for document in corpus)
    if each:
        for doc_id, kind in kinds.items():
            terminal.echo(f"{terminal.printable(doc_id)}\t{kind}")
    elif kinds:
        counts = Counter(kinds.values())
        options.say("  of these: " + ", ".join(f"{counts[kind]:,} {kind}" for kind in sorted(counts)))
    index.close()


@app.command()
def delete(
    index: options.IndexArgument,
    doc_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="doc_ids to delete.")],
    store: options.StoreOption = None,
) -> None:
    """Delete documents from an index. The model's weights may remember them until the next fit."""
    from callslip.storage.home import Home

    home = Home.open(index)  # no model is needed to forget
    home.commit([], doc_ids)
    home.close()
    options.say(f"deleted {options.counted(len(set(doc_ids)), 'document')} from {index}")


@app.command()
def compact(index: options.IndexArgument, store: options.StoreOption = None) -> None:
    """Write a new snapshot of an index without what was deleted, so that it opens quickly again."""
    opened = options.open_index(index, None)
    opened.compact()
    options.say(f"{index}: generation {opened.living.generation}, {options.counted(len(opened), 'document')}")
    opened.close()


@app.command()
def snapshot(
    index: options.IndexArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that does not exist yet.")],
) -> None:
    """Copy an index as it is at one moment, while others search and change it."""
    from callslip.storage.copies import copy_index

    copy_index(index, out)
    options.say(f"copied {index} to {out}")


@app.command()
def share(
    index: options.IndexArgument,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="postgresql://host/name, without a password.")],
) -> None:
    """Move an index's documents into PostgreSQL, for several machines that serve one index."""
    from callslip.storage.copies import share_index

    share_index(index, address)
    options.say(f"{index} keeps its documents in {address}; copy the folder to every machine that serves it")


@app.command()
def check(
    index: options.IndexArgument,
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Go on without acknowledged changes that are lost because SQLite's log was damaged."
        ),
    ] = False,
    store: options.StoreOption = None,
) -> None:
    """Verify every hash, row, code and node of an index, open it and search; exit with 3 and the file's name if
    something is wrong."""
    from callslip.api import check as verify
    from callslip.storage.drift import measure
    from callslip.storage.home import Home, accept_loss_of

    if accept_loss:
        lost = accept_loss_of(index)
        options.say(f"{options.counted(lost, 'version')} given up" if lost else "nothing was lost")
    found = verify(index)
    home = Home.open(index, verify=False)
    drift = measure(home)
    home.close()
    if as_json:
        whole = {"whole": True, **dataclasses.asdict(found), "drift": dataclasses.asdict(drift)}
        terminal.echo(terminal.to_json({**whole, "fit_again": drift.reasons}, indent=2))
        return
    terminal.echo(
        f"{index} is whole: {found.files} files, {found.documents:,} documents, {found.codes:,} codes, generation "
        f"{found.generation}, version {found.version}; {found.since_snapshot:,} documents since the snapshot, "
        f"{found.deleted:,} deleted ones still stored"
    )
    for line in drift.lines():
        terminal.echo(f"  {line}")
