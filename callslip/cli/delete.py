"""callslip delete: delete documents from an index."""

from __future__ import annotations

from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def delete(
    index: options.IndexArgument,
    doc_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="doc_ids to delete.")],
    store: options.StoreOption = None,
) -> None:
    """Delete documents from an index. The model's weights may remember them until the next fit."""
    from callslip import api

    api.delete(index, doc_ids)
    options.say(f"deleted {options.counted(len(set(doc_ids)), 'document')} from {index}")
