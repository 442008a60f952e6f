"""callslip check: verify every file of an index."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from callslip.cli import app, options, terminal


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
