"""callslip push: upload an index to the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated

import typer

from callslip.cli import app, options, terminal


@app.command()
def push(
    index: options.IndexArgument,
    name: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="The repository on the hub, created if it does not exist.")
    ],
    public: Annotated[bool, typer.Option("--public", help="Make the repository public, documents included.")] = False,
    message: Annotated[str, typer.Option("--message", help="Commit message.")] = "",
) -> None:
    """Upload an index, documents included, to the Hugging Face hub, with a card made from its manifest."""
    from callslip import api

    options.say(f"pushing {index} with all its documents to {name}, {'public' if public else 'private'}")
    terminal.echo(api.push(index, name, private=not public, message=message))
