"""Common part of `callslip add` and `callslip update`: read documents, commit them in batches, and report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import options, terminal
from callslip.errors import CallslipError

AT_ONCE = 1000
"""Documents per commit: enough for the encoder, and few enough to lose little if interrupted."""

DocumentsArgument = Annotated[
    str, typer.Argument(metavar="DOCUMENTS", help="Documents in any format that `fit` reads, e.g. docs.jsonl.")
]

EachOption = Annotated[
    bool,
    typer.Option("--each", help="Print each document's id and its novelty to the model: new content or new semantic."),
]


def commit(
    path: Path,
    documents: str,
    format: str | None,
    column: list[str] | None,
    skip_bad: bool,
    each: bool,
    vectors: Path | None,
    replace: bool,
) -> None:
    """Add documents, or `replace` those with the same doc_id."""
    corpus = options.read_corpus(documents, format, None, None, None, column, skip_bad)
    index = options.open_index(path, None)
    if vectors is not None:
        from callslip.encoders.given import given_vectors
        from callslip.index.given import give_more

        give_more(index, given_vectors(vectors, corpus.doc_ids, "documents"), None)
    done, verb = 0, "updated or added" if replace else "added"
    try:
        for start in range(0, len(corpus), AT_ONCE):
            some = corpus.documents[start : start + AT_ONCE]
            (index.update if replace else index.add)(some)
            done += len(some)
    except CallslipError as error:
        if done:
            options.say(f"{verb} {options.counted(done, 'document')} before the error; these are saved:")
        raise error
    options.say(f"{verb} {options.counted(done, 'document')}; {path} has {len(index):,}")
    for line in index.drift().lines():
        options.say(f"  {line}")
    kinds = index.novelty(document.doc_id for document in corpus)
    if each:
        for doc_id, kind in kinds.items():
            terminal.echo(f"{terminal.printable(doc_id)}\t{kind}")
    elif kinds:
        counts = Counter(kinds.values())
        options.say("  of these: " + ", ".join(f"{counts[kind]:,} {kind}" for kind in sorted(counts)))
    index.close()
