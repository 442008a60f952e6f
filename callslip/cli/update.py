"""callslip update: replace documents of an index."""

from __future__ import annotations

from callslip.cli import app, changes, options


@app.command()
def update(
    index: options.IndexArgument,
    documents: changes.DocumentsArgument,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
    each: changes.EachOption = False,
    store: options.StoreOption = None,
) -> None:
    """Put documents in the place of those of the same doc_id; others are added."""
    changes.commit(index, documents, format, column, skip_bad, each, replace=True)
