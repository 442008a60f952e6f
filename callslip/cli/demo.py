"""callslip demo: fit, evaluate and search an index of Python's own documentation, which every Python has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options, terminal

EXAMPLES = (
    "run a command and capture what it prints",
    "remember the results of a slow function",
    "split text into words",
)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the index.")] = Path("indexes/demo"),
    method: Annotated[str | None, typer.Option("--method", "-m", help="Method to use instead of the default.")] = None,
    preset: options.PresetOption = None,
    set_: options.SetOption = None,
) -> None:
    """Build an index of Python's own documentation, compare it with BM25, dense retrieval and both, and search it."""
    from callslip import api
    from callslip.cli.search import show
    from callslip.corpus.demo import demo_corpus
    from callslip.evaluation.comparison import Comparison
    from callslip.methods import DEFAULT, make
    from callslip.storage.folder import check_writable

    check_writable(out)
    name = method or DEFAULT
    _, values = options.chosen_settings(None, set_)
    index = make(name, values, preset=preset)
    corpus = demo_corpus()
    train, test = (len(corpus.judgements[split]) for split in ("train", "test"))
    options.say(
        f"Corpus: {len(corpus):,} documents, the docstrings of this Python's standard library; "
        f"{train} questions to train on, {test} to test on."
    )
    reports = {}
    for retriever in (make("bm25"), make("dense"), make("hybrid"), index):
        options.say(f"fitting {retriever.method} …")
        retriever.fit(corpus)
        options.say(f"  done in {retriever.fit_seconds:.0f} s; searching the test questions")
        reports[retriever.method] = api.evaluate(retriever, corpus)
    index.save(out)
    terminal.echo()
    options.show_comparison(Comparison(reports, baseline="bm25"))
    terminal.echo()
    for question in EXAMPLES:
        terminal.echo(f"“{question}”", bold=True)
        for hit in index.search(question, k=3):
            show(hit, index, explain=False)
        terminal.echo()
    terminal.echo("The index is saved. Next steps:")
    for command in (
        f'callslip search {out} "your question" --explain',
        f"callslip serve {out}",
        f"callslip inspect {out}",
        "callslip fit YOUR-FOLDER --out my-index",
        "callslip methods",
    ):
        terminal.echo(f"  {command}")
