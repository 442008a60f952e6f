"""callslip report: the health of an index as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def report(
    index: options.IndexArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page about an index: verdict, figures, plots of codes and training, the prefix tree."""
    from callslip.api import load
    from callslip.durable import write_file
    from callslip.server.report import page_of

    write_file(out, page_of(load(index), index.resolve().name))
    options.say(f"wrote {out}")
