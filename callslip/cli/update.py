"""callslip update: replace documents in an index."""

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
    vectors: options.VectorsOption = None,
    store: options.StoreOption = None,
) -> None:
    """Replace documents with the same doc_id, and add the others."""
    changes.commit(index, documents, format, column, skip_bad, each, vectors, replace=True)
