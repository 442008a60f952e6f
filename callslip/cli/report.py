"""callslip report: write a report on an index as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def report(
    index: options.IndexArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the page.")] = Path("report.html"),
    store: options.StoreOption = None,
) -> None:
    """Write an HTML page about an index: verdict, metrics, plots of codes and training, and the prefix tree."""
    from callslip.api import load
    from callslip.errors import BadSetting
    from callslip.runtime import durable
    from callslip.server.report import page_of

    page = page_of(load(index), index.resolve().name)
    try:
        durable.replace(out, page)
    except OSError as error:
        raise BadSetting(f"cannot write {out}: {error.strerror}", "Choose another file with --out.") from None
    options.say(f"wrote {out}")
