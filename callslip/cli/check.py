"""callslip check: verify every file of an index."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from callslip.cli import app, options, terminal


@app.command()
def check(
    index: options.IndexArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Continue without acknowledged changes that were lost with a damaged SQLite log."
        ),
    ] = False,
    store: options.StoreOption = None,
) -> None:
    """Verify every file, row and code of an index, then open and search it; exit with 3 if anything is damaged."""
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
        f"{index} is intact: {found.files} files, {found.documents:,} documents, {found.codes:,} codes, generation "
        f"{found.generation}, version {found.version}; {found.since_snapshot:,} documents since the snapshot, "
        f"{found.deleted:,} deleted ones still stored"
    )
    for line in drift.lines():
        terminal.echo(f"  {line}")
