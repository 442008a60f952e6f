"""callslip fit: from a corpus to a saved index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def fit(
    corpus: options.CorpusArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to save the index in.")],
    method: Annotated[str | None, typer.Option("--method", "-m", help="See `callslip methods`; a+b fuses two.")] = None,
    queries: options.QueriesOption = None,
    qrels: options.QrelsOption = None,
    items: options.ItemsOption = None,
    preset: options.PresetOption = None,
    set_: options.SetOption = None,
    recipe: Annotated[Path | None, typer.Option("--recipe", help="A TOML file with method and settings.")] = None,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
) -> None:
    """Build an index of a corpus: give every document a code and train a model to write the codes."""
    from callslip.methods import DEFAULT, make
    from callslip.storage.folder import check_writable

    named, values = options.chosen_settings(recipe, set_)
    name = method or named or DEFAULT
    check_writable(out)
    retriever = make(name, values, preset=preset)
    data = options.read_corpus(corpus, format, queries, qrels, items, column, skip_bad)
    options.say(f"fitting {name}")
    retriever.fit(data)
    retriever.save(out)
    options.say(f"saved {out} ({len(retriever):,} documents, {name}, fitted in {retriever.fit_seconds:.0f} s)")
    options.say(f'next: callslip search {out} "your question"')
