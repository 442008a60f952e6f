"""callslip fit: build an index of a corpus."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callslip.cli import app, options
from callslip.errors import BadSetting, CallslipError, TrainingStopped

if TYPE_CHECKING:
    from callslip.corpus.documents import Corpus
    from callslip.index.retriever import Retriever


ResumeFromOption = Annotated[
    str | None,
    typer.Option(help="Resume, but retrain from this phase on, such as 'level 2'; settings may change."),
]


CheckpointsOption = Annotated[
    bool, typer.Option("--checkpoints/--no-checkpoints", help="Whether to save checkpoints in training.")
]


ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Replace an index even if it was changed after its fit.")
]

MANY = 1000
"""Documents from which on a fit tells its memory and the bytes a document: of fewer, they say nothing."""


@app.command()
def fit(
    corpus: options.CorpusArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the index.")],
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Method, see `callslip methods`; a+b fuses two.")
    ] = None,
    queries: options.QueriesOption = None,
    qrels: options.QrelsOption = None,
    items: options.ItemsOption = None,
    vectors: options.VectorsOption = None,
    query_vectors: options.QueryVectorsOption = None,
    codes: Annotated[
        Path | None, typer.Option("--codes", help="Codes to use: .csv, .parquet, .json or .npy, or a saved index.")
    ] = None,
    preset: options.PresetOption = None,
    set_: options.SetOption = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="TOML file with method and settings, or the name of a recipe.")
    ] = None,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a fit that was stopped or killed.")] = False,
    resume_from: ResumeFromOption = None,
    checkpoints: CheckpointsOption = True,
    replace: ReplaceOption = False,
) -> None:
    """Build an index of a corpus: give every document a code and train a model to write the codes."""
    from callslip.api import fit as fit_and_save
    from callslip.corpus.documents import has_histories
    from callslip.methods import DEFAULT_CODES, default_for, make
    from callslip.storage.folder import MANIFEST, check_writable

    named, values = options.chosen_settings(recipe, set_, method)
    check_writable(out)
    _check_unchanged(out, replace)
    training = out.with_name(f"{out.name}.training")
    _check_resume(training, resume or resume_from is not None, checkpoints)
    name = method or named or (DEFAULT_CODES if codes is not None else None)
    if codes is not None:
        values |= _given_codes(codes, str(name))
    # A mistyped setting must not cost the reading of the corpus; but the default depends on the corpus.
    chosen = None if name is None else make(name, values, preset=preset)
    data = options.read_corpus(corpus, format, queries, qrels, items, column, skip_bad)
    name = name or default_for(data)
    retriever = make(name, values, preset=preset) if chosen is None else chosen
    if (out / MANIFEST).is_file():
        options.say(f"{out} already contains an index, which will be replaced when the new one is saved")
    if not retriever.could_read(histories=True) and has_histories(data):
        options.say(f"{name} reads texts: it ignores the log's histories, and searches items by their texts")
    _announce(retriever, data, name)
    given: dict[str, Any] = {"vectors": vectors, "query_vectors": query_vectors}
    if checkpoints:
        _fit_with_checkpoints(retriever, data, out, training, resume, resume_from, given)
    else:
        fit_and_save(data, retriever, out, **given)
    _tell(retriever, out, name)


def _check_unchanged(out: Path, replace: bool) -> None:
    """Never lose documents that were added, or answers that were learned, because --out was mistyped."""
    from callslip.storage.folder import MANIFEST
    from callslip.storage.home import Home

    if replace or not (out / MANIFEST).is_file():
        return
    try:
        home = Home.open(out, verify=False)
    except CallslipError:  # damaged, or its database is elsewhere: no reason to keep a new index from its place
        return
    version = home.store.version()
    home.close()
    if version > 1:  # what a fit saves is version 1
        raise CallslipError(
            f"{out} contains an index that was changed after its fit (documents added or deleted, answers learned)",
            "Choose another --out, or pass --replace to lose these changes; "
            f"`callslip snapshot {shlex.quote(str(out))} COPY` keeps a copy.",
        )


def _announce(retriever: Retriever, data: Corpus, name: str) -> None:
    """Say what is about to be fitted, and what there is to learn from."""
    options.say(f"fitting {name} to {options.counted(len(data), 'document')}")
    if not data.split("train")[0] and retriever.learns_from_queries:
        options.say(
            "no judged train queries: the index learns from the documents alone (--queries and --qrels add some)"
        )


def _tell(retriever: Retriever, out: Path, name: str) -> None:
    """Say what was saved, and what to do next."""
    options.say(
        f"saved {out} ({options.counted(len(retriever), 'document')}, {name}, fitted in {retriever.fit_seconds:.0f} s)"
    )
    if len(retriever) >= MANY:
        options.say_sizes(out, len(retriever))
    log = getattr(retriever, "log", None)
    if log is not None and not log.records:
        options.say("epochs=0: the model is untrained, so the codes that it writes are random")
    asked = "--history id,id,id" if retriever.reads_histories else '"your question"'
    options.say(f"next: callslip search {out} {asked}")


def _given_codes(codes: Path, name: str) -> dict[str, str]:
    """The setting that --codes stands for; an error for a method that cannot take codes."""
    from callslip.methods import DEFAULT_CODES, find

    known = getattr(find(name).load().Settings, "__dataclass_fields__", {})
    if "codes_from" not in known:
        raise BadSetting(
            f"{name} takes no codes: --codes does not apply to it",
            f"Leave --codes out, or use a method whose model writes codes, such as --method {DEFAULT_CODES}.",
        )
    return {"codes_from": str(codes)}


def _check_resume(training: Path, resume: bool, checkpoints: bool) -> None:
    """Reject contradictory options, and never overwrite hours of training because --resume was forgotten."""
    if resume and not checkpoints:
        raise BadSetting("--resume needs checkpoints, and --no-checkpoints disables them", "Leave one of them out.")
    if checkpoints and not resume and training.exists():
        raise CallslipError(
            f"{training} contains the checkpoints of an unfinished fit",
            "Continue it with --resume, or delete the folder to start again.",
        )
    if resume and not training.exists():
        options.say(f"nothing to resume in {training}: starting from the beginning")


def _fit_with_checkpoints(
    retriever: Retriever,
    data: Corpus,
    out: Path,
    training: Path,
    resume: bool,
    resume_from: str | None,
    given: dict[str, Any],
) -> None:
    from callslip.api import fit as fit_and_save
    from callslip.training.checkpoints import Checkpoints

    keep = Checkpoints(training, resume=resume, again=resume_from)
    command = _without_resume(sys.argv[1:])
    with keep.stop.on_signals(f"Continue it: {shlex.join(['callslip', *command, '--resume'])}"):
        try:
            fit_and_save(data, retriever, out, checkpoints=keep, **given)
        except CallslipError as error:
            # An error before the first checkpoint must not block the next fit.
            if not isinstance(error, TrainingStopped) and not resume and keep.nothing_saved():
                shutil.rmtree(training)
            raise


def _without_resume(arguments: list[str]) -> list[str]:
    """The original command, without the options of a resumed fit."""
    kept, skip = [], False
    for part in arguments:
        if not skip and part != "--resume" and not part.startswith("--resume-from"):
            kept.append(part)
        skip = part == "--resume-from"
    return kept
