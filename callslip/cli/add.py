"""callslip add: add documents to an index without training."""

from __future__ import annotations

from callslip.cli import app, changes, options


@app.command()
def add(
    index: options.IndexArgument,
    documents: changes.DocumentsArgument,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
    each: changes.EachOption = False,
    vectors: options.VectorsOption = None,
    store: options.StoreOption = None,
) -> None:
    """Add documents to an index without training. When the command returns, they are searchable and durable."""
    changes.commit(index, documents, format, column, skip_bad, each, vectors, replace=False)
