"""callslip snapshot: copy an index while it is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def snapshot(
    index: options.IndexArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder that does not exist yet.")],
) -> None:
    """Copy a consistent state of an index while others search and change it."""
    from callslip import api

    api.snapshot(index, out)
    options.say(f"copied {index} to {out}")
