"""callslip share: move an index's documents into PostgreSQL."""

from __future__ import annotations

from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def share(
    index: options.IndexArgument,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="postgresql://host/name, without a password.")],
) -> None:
    """Move an index's documents into PostgreSQL, for several machines that serve one index."""
    from callslip import api

    api.share(index, address)
    options.say(f"{index} keeps its documents in {address}; copy the folder to every machine that serves it")
