"""callslip compact: write a new snapshot of an index."""

from __future__ import annotations

from callslip.cli import app, options


@app.command()
def compact(index: options.IndexArgument, store: options.StoreOption = None) -> None:
    """Write a new snapshot of an index without the deleted documents, so that it opens fast again."""
    opened = options.open_index(index, None)
    opened.compact()
    options.say(f"{index}: generation {opened.living.generation}, {options.counted(len(opened), 'document')}")
    opened.close()
