"""The Python API: fit, load, evaluate, compare, and what is done to saved indexes. The command line calls these."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callslip.corpus.documents import Corpus, Document
from callslip.corpus.load import load_corpus
from callslip.errors import BadSetting, CallslipError, IndexCorrupt, UnknownName, Unsupported
from callslip.index.retriever import Retriever
from callslip.methods import DEFAULT, DEFAULT_CODES, LOG_CONTROLS, TEXT_CONTROLS, default_for, find, make, make_saved
from callslip.runtime import consent
from callslip.storage import hub
from callslip.storage.folder import check_writable
from callslip.storage.home import Home

if TYPE_CHECKING:
    from callslip.corpus.documents import SkippedLines
    from callslip.encoders.given import Encode
    from callslip.evaluation.comparison import Comparison
    from callslip.evaluation.report import Report
    from callslip.index.code_table import CodeTable
    from callslip.index.given import Vectors
    from callslip.index.retriever import Learned
    from callslip.jobs.plan import Job
    from callslip.storage.check import Checked
    from callslip.training.checkpoints import Checkpoints


def as_corpus(corpus: Corpus | str | Path | Iterable[Document]) -> Corpus:
    """A corpus as it is, one read from a path or name, or one of the documents given."""
    if isinstance(corpus, Corpus):
        return corpus
    if isinstance(corpus, (str, Path)):
        return load_corpus(corpus)
    if corpus is None or isinstance(corpus, Document) or not isinstance(corpus, Iterable):
        raise BadSetting(
            f"a corpus is needed, not a {type(corpus).__name__}", "Give a path, a Corpus, or a list of documents."
        )
    documents, seen = list(corpus), set()
    for number, document in enumerate(documents):
        if not isinstance(document, Document):
            raise BadSetting(
                f"document {number} is a {type(document).__name__}", 'Give callslip.Document("an id", "a text").'
            )
        if not isinstance(document.doc_id, str) or not isinstance(document.text, str):
            raise BadSetting(
                f"document {number} has a doc_id or text that is no string",
                'Give callslip.Document("an id", "a text").',
            )
        if document.doc_id in seen:
            raise BadSetting(f"two documents have the doc_id {document.doc_id!r}", "Give each document its own.")
        seen.add(document.doc_id)
    return Corpus(documents)


def fit(
    corpus: Corpus | str | Path | Iterable[Document],
    method: str | type[Retriever] | Retriever | None = None,
    out: str | Path | None = None,
    *,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    checkpoints: Checkpoints | None = None,
    vectors: Vectors | None = None,
    query_vectors: Vectors | Encode | None = None,
) -> Retriever:
    """Build an index of a corpus with a method, and save it to the folder `out` if one is given.

    `method` is a name, a class of one's own, or an unfitted retriever with its settings; None is the default for this
    corpus. With `checkpoints` the training is saved at intervals; they are removed once the index is saved.

    `vectors` are used in place of the encoder's: an array in the order of the documents, a mapping by doc_id, or a .npy
    or .parquet file. Queries are then encoded by the setting `encoder`, which must be the one that made them, or come
    with `query_vectors`: the same kinds, by query_id, or a callable that takes a list of texts.
    """
    if isinstance(method, Retriever):
        if settings or preset:
            raise BadSetting("settings or a preset for a retriever that has its own", "Give them with a method's name.")
        retriever = method
    elif method is None:
        corpus = as_corpus(corpus)
        retriever = make(default_for(corpus), settings, preset=preset)
    else:
        retriever = make(method, settings, preset=preset)
    if out is not None:
        check_writable(out)
    data = as_corpus(corpus)
    if vectors is not None or query_vectors is not None:
        from callslip.index.given import give

        give(retriever, data, vectors, query_vectors)
    retriever.fit(data, checkpoints)
    if out is not None:
        retriever.save(out)
        if checkpoints is not None:
            checkpoints.remove()
    return retriever


def plan(
    corpus: str | Path,
    job: str | Path,
    method: str | None = None,
    *,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    shard_rows: int | None = None,
    vectors: str | Path | None = None,
    queries: str | Path | None = None,
    qrels: str | Path | None = None,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    skip_bad: bool = False,
) -> Job:
    """Cut a fit into shards, for `encode` and `build`: read the corpus one document at a time into the folder `job`,
    and learn codebooks from a sample. `vectors` is a .npy file in the order of the documents."""
    from callslip.corpus.stream import CorpusStream
    from callslip.jobs.plan import SHARD_ROWS, plan_job

    stream = CorpusStream(corpus, format, queries, qrels, columns, skip_bad)
    rows = SHARD_ROWS if shard_rows is None else shard_rows
    name = method or DEFAULT
    return plan_job(stream, job, method=name, settings=settings, preset=preset, shard_rows=rows, vectors=vectors)


def encode(
    job: str | Path,
    *,
    part: tuple[int, int] | None = None,
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
    tell: Callable[[int], object] = lambda number: None,
) -> int:
    """Make the parts of a planned job that are missing, in this process or in several; returns their number.

    `part` (i, n) is the i-th of n shares, counted from 1, for machines that each do one. `engine` may also be "ray" or
    "dask", on the cluster at `address`; without an address it starts `workers` on this machine.
    """
    from callslip.jobs.engines import encode_job

    return encode_job(job, part=part, workers=workers, engine=engine, address=address, tell=tell)


def train(
    job: str | Path, *, every: float = 60.0, again: str = "", tell: Callable[[str], object] = lambda line: None
) -> bool:
    """Train the index of a job whose method is trained, with the other processes that torchrun started, if it did;
    False if that is done. A training that was stopped resumes. `every`: seconds between checkpoints."""
    from callslip.jobs.train import train_job

    return train_job(job, every=every, again=again, tell=tell)


def build(
    job: str | Path,
    out: str | Path,
    *,
    query_vectors: Vectors | Encode | None = None,
    documents: str | None = None,
) -> Retriever:
    """Make the index of a job whose parts are all there, or that is trained, and save it to the folder `out`.

    `documents` is the address of a PostgreSQL database that keeps the documents, as after `share`.
    """
    from callslip.jobs.build import build_job
    from callslip.jobs.plan import Job
    from callslip.storage.copies import check_database

    if documents is not None:
        check_database(documents)
    if Job.open(job).trained:
        from callslip.jobs.train import copy_trained

        copy_trained(job, out, query_vectors is not None)
        index = load(out)
    else:
        index = build_job(job, out, query_vectors)
    if documents is None:
        return index
    index.close()
    share(out, documents)
    return load(out, store=documents, query_vectors=query_vectors)


def load(
    path: str | Path,
    *,
    store: str | None = None,
    method: type[Retriever] | None = None,
    vectors: Vectors | None = None,
    query_vectors: Vectors | Encode | None = None,
) -> Retriever:
    """Open a saved index; it lives in its folder from then on. The folder's manifest names the method. An address
    hf://OWNER/NAME@REVISION is one of the Hugging Face hub, opened read-only.

    `store` is the address of the database that the index is known to keep its documents in. A manifest alone is not
    followed there: see `callslip.runtime.consent`. `method` is the class of an index that was fitted with a class; a
    manifest cannot have it imported. `query_vectors` are those of queries to come, or a callable, if the index was
    fitted with given vectors; `vectors`, those of documents to be added.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise BadSetting(f"load takes the folder of an index, not a {type(path).__name__}", 'Write load("my-index").')
    if store is not None:
        consent.trust(consent.STORE, store)
    on_hub = str(path).startswith(hub.PATH_SCHEME)
    home = Home.open(hub.fetch_index(str(path)) if on_hub else path)
    if on_hub:
        hub.refuse_changes(home, str(path))
    consent.remember_manifest(home.manifest["settings"])
    try:
        retriever = make_saved(method or home.manifest["method"], home.manifest["settings"])
    except (BadSetting, UnknownName) as error:
        home.close()
        if isinstance(error, UnknownName) and error.kind == "method":
            _refuse_plugin(path, home.manifest)
        version = home.manifest.get("versions", {}).get("callslip", "an unknown version")
        raise CallslipError(
            f"{path} was saved by another version of callslip ({version}), which this one cannot open: {error.problem}",
            "Fit it again, or open it with the version that saved it.",
        ) from None
    try:
        retriever.living.open(home)
    except CallslipError:
        home.close()
        raise
    except Exception as error:  # every hash fits, and what the files say makes no sense: somebody made them by hand
        home.close()
        raise IndexCorrupt(home.snapshot, f"is not an index of {retriever.method}: {_said(error)}") from None
    if vectors is not None or query_vectors is not None:
        from callslip.index.given import give_more

        give_more(retriever, vectors, query_vectors)
    return retriever


def _refuse_plugin(path: str | Path, manifest: Mapping[str, Any]) -> None:
    """Name the package or class that an index needs, if the manifest says."""
    plugin, method = manifest.get("plugin"), manifest["method"]
    if not isinstance(plugin, dict):
        return
    cls, package = str(plugin.get("class", "?"))[:200], str(plugin.get("package", ""))[:200]
    if package and ":" not in method:
        raise CallslipError(
            f"{path} was fitted with the method {method!r} of the package {package} {plugin.get('version', '')}, "
            "which is not installed",
            f"If you trust it: pip install {package}.",
        )
    raise CallslipError(
        f"{path} was fitted with the class {cls}, which no installed plugin has"
        + (f" (package {package})" if package else ""),
        f"Open it with the class: callslip.load(path, method={cls.rpartition(':')[2]}).",
    )


def check(path: str | Path) -> Checked:
    """Verify every hash, row, code and node of an index, then open it and search; `IndexCorrupt` names the file."""
    from callslip.storage.check import check as verify

    found = verify(path)
    retriever = load(path)
    try:
        with suppress(Unsupported):  # a query of words says nothing to a method that reads histories
            retriever.search("a", k=1)
    except CallslipError:
        raise
    except Exception as error:
        raise IndexCorrupt(retriever.living.home.snapshot, f"cannot be searched: {_said(error)}") from None
    finally:
        retriever.close()
    return found


def _said(error: Exception) -> str:
    """An error of a library in one line."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:200]


def delete(path: str | Path, doc_ids: Iterable[str]) -> None:
    """Delete documents from a saved index without loading its model."""
    home = Home.open(path)
    try:
        home.commit([], list(doc_ids))
    finally:
        home.close()


def learn(index: Retriever | str | Path, pairs: Mapping[str, Any] | Iterable[tuple[str, Any]] | str | Path) -> Learned:
    """Remember which documents answered which queries, without training; durable, and found from the next search on.

    `pairs` are (query, doc_id) or (query, doc_ids), a mapping of them, or the path of a log; `index` is an open index
    or its folder. An unknown doc_id is an error, and nothing is learned then. See `learn_log` for logs with bad lines.
    """
    from callslip.corpus.answers import as_answers

    if isinstance(pairs, (str, Path)):
        return learn_log(index, pairs)[0]
    opened = index if isinstance(index, Retriever) else load(index)
    try:
        return opened.learn_answers(as_answers(pairs))
    finally:
        if opened is not index:
            opened.close()


def learn_log(
    index: Retriever | str | Path, log: str | Path, *, qrels: str | Path | None = None, skip_bad: bool = False
) -> tuple[Learned, SkippedLines]:
    """Learn a log of queries and doc_ids, or a file of queries with its judgements; where queries are histories, a log
    of users and items. Returns what was skipped, too."""
    from callslip.corpus.answers import read_answers, read_judged
    from callslip.corpus.interactions import read_histories
    from callslip.corpus.lines import Intake

    opened, intake = index if isinstance(index, Retriever) else load(index), Intake(skip_bad)
    try:
        known = opened.refresh(now=True).row_of()
        opened.learn_answers({})  # a method without a memory says so before a long log is read
        if opened.reads_histories:
            if qrels is not None:
                raise BadSetting("judgements for an index of a log of users and items", "Leave out --qrels.")
            answers = read_histories(log, intake, known)
        else:
            answers = read_answers(log, intake, known) if qrels is None else read_judged(log, qrels, intake, known)
        return opened.learn_answers(answers), intake.skipped
    finally:
        if opened is not index:
            opened.close()


def snapshot(path: str | Path, out: str | Path) -> None:
    """Copy a saved index as it is at one moment, while others search and change it."""
    from callslip.storage.copies import copy_index

    copy_index(hub.fetch_index(str(path)) if str(path).startswith(hub.PATH_SCHEME) else path, out)


def push(path: str | Path, name: str, *, private: bool = True, message: str = "") -> str:
    """Upload a saved index, documents included, to OWNER/NAME on the Hugging Face hub; its address there."""
    return hub.push_index(path, name, private=private, message=message)


def codes(
    corpus: Corpus | str | Path | Iterable[Document],
    method: str | type[Retriever] = DEFAULT_CODES,
    *,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    vectors: Vectors | None = None,
) -> CodeTable:
    """The codes that a method would give the documents, without training a model."""
    from callslip.index.code_table import code_table

    return code_table(make(method, settings, preset=preset), as_corpus(corpus), vectors)


def share(path: str | Path, address: str) -> None:
    """Move the documents of a saved index into PostgreSQL, for several machines that serve it."""
    from callslip.storage.copies import share_index

    share_index(path, address)


def evaluate(
    retriever: Retriever, corpus: Corpus | str | Path, *, run: str | Path | None = None, **options: Any
) -> Report:
    """Search all judged queries of a split and measure the hits. Options: see `evaluation.evaluate`.

    `run` is a file to write the hits to, as a six-column TREC run.
    """
    from callslip.evaluation.evaluate import evaluate_with_run
    from callslip.evaluation.runs import write_run

    report, hits = evaluate_with_run(retriever, as_corpus(corpus), **options)
    if retriever.corpus_fingerprint.get("sha256") != report.dataset.get("sha256"):
        report.notes.append("The index was fitted on other data than this corpus (their fingerprints differ).")
    if run is not None:
        Path(run).parent.mkdir(parents=True, exist_ok=True)
        write_run(hits, Path(run), tag=retriever.method)
    return report


def compare(
    corpus: Corpus | str | Path,
    methods: Iterable[str],
    *,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    controls: bool = True,
    on_report: Callable[[str, Report], None] | None = None,
    out: str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Fit several methods on one corpus, evaluate each, and put them in one table.

    A name is a method's, or METHOD:PRESET. `settings` apply to every method that has them, and to the parts of a hybrid
    that do, except where the preset that its name gives says otherwise. The first method named is the baseline of the
    significance tests. Unless `controls` is False, the controls for the corpus's queries come first, whether named or
    not. The comparison is written to the folder `out`; if it is stopped, the same call goes on with the next method.
    """
    import dataclasses

    from callslip.evaluation.comparison import Comparison
    from callslip.evaluation.pruning import check_decoding

    data = as_corpus(corpus)
    names = list(dict.fromkeys(methods))
    if not names:
        raise BadSetting("no methods to compare", "Name some: --methods bm25,dense.")
    parts = {name: name.partition(":") for name in names}
    # What can be known to fail, a misspelt name among it, fails before hours of work.
    retrievers = {name: make(method, preset=own or None) for name, (method, _, own) in parts.items()}
    known = {field.name for r in retrievers.values() for field in dataclasses.fields(r.settings)}
    if options.get("exact"):
        for retriever in retrievers.values():
            check_decoding(retriever)
    baseline, named = names[0], set(names)
    split = options.get("split", "test")
    first = controls_for(data, split) if controls else []
    names = [*first, *(name for name in names if name not in first)]
    parts |= {name: (name, "", "") for name in first}
    retrievers = {name: retrievers[name] if name in retrievers else make(name) for name in names}
    known |= {field.name for name in first for field in dataclasses.fields(retrievers[name].settings)}
    for setting in settings or {}:
        in_parts = any(_values_of_parts(retriever, {setting: None}) for retriever in retrievers.values())
        if setting not in known and not in_parts:
            raise UnknownName("setting", setting, known)
    retrievers = {
        name: _configured(method, variant, preset, settings or {}, retrievers[name])
        for name, (method, _, variant) in parts.items()
    }
    histories = _are_histories(data, split)
    _check_queries_are_read({name: retrievers[name] for name in names if name in named}, histories, split)
    # A control that the settings made unable to read the queries is not what somebody asked for.
    names = [name for name in names if retrievers[name].could_read(histories=histories)]
    chosen = {name: retrievers[name] for name in names}
    reports = _reports(data, chosen, named, options, on_report, out)
    comparison = Comparison(reports, baseline=baseline, controls=first)
    if out is not None:
        comparison.save(out)
    return comparison


def _reports(
    data: Corpus,
    retrievers: dict[str, Retriever],
    named: Collection[str],
    options: Mapping[str, Any],
    on_report: Callable[[str, Report], None] | None,
    out: str | Path | None,
) -> dict[str, Report]:
    """The report of each method, fitted and evaluated in turn; those that a stopped run has finished are read."""
    from callslip.encoders.vector_cache import shared_cache
    from callslip.evaluation.unfinished import Unfinished
    from callslip.runtime.process import versions

    kept = None
    if out is not None:
        systems = {name: retriever.describe()["settings"] for name, retriever in retrievers.items()}
        about = {"systems": systems, "named": sorted(named), "options": dict(options), "versions": versions()}
        kept = Unfinished(out, about | {"dataset": data.fingerprint()})
    reports: dict[str, Report] = {}
    for name in list(retrievers):
        waiting = retrievers.pop(name)  # one index in memory at a time
        found = kept.get(name) if kept is not None else None
        if found is None:
            before = shared_cache().reused
            fitted = waiting.fit(data)
            reused = shared_cache().reused - before
            own = options if name in named else {key: value for key, value in options.items() if key != "exact"}
            found = evaluate(fitted, data, name=name, **own)
            if reused:
                found.timings["cached_texts"] = reused
            if kept is not None:
                kept.put(name, found)
        reports[name] = found
        if on_report is not None:
            on_report(name, found)
    return reports


def _configured(
    method: str, variant: str, preset: str | None, settings: Mapping[str, Any], untouched: Retriever
) -> Retriever:
    """A method as a comparison fits it: the preset for all, then the settings that it or its parts have, then the
    preset of its own name."""
    import dataclasses

    presets = find(method).presets()
    known = {field.name for field in dataclasses.fields(untouched.settings)}
    values = {key: value for key, value in settings.items() if key in known} | _values_of_parts(untouched, settings)
    return make(method, presets.get(preset or "", {}) | values | presets.get(variant, {}))


def controls_for(corpus: Corpus, split: str) -> list[str]:
    """The methods that a comparison on this split includes as controls: for texts or for histories, and the memory only
    if there are judged train queries."""
    if _are_histories(corpus, split):
        return list(LOG_CONTROLS)
    return [name for name in TEXT_CONTROLS if name != "memory" or corpus.split("train")[0]]


def _are_histories(corpus: Corpus, split: str) -> bool:
    from callslip.evaluation.evaluate import judged_split

    queries, _ = judged_split(corpus, split)
    return all(query.history and not query.text for query in queries.values())


def _values_of_parts(retriever: Retriever, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that parts of a hybrid have, as part.key; a hybrid of another encoder would not be comparable."""
    import dataclasses

    values = {}
    for part in getattr(retriever.settings, "parts", ()):
        known = {field.name for field in dataclasses.fields(find(part).load().Settings)}  # type: ignore[arg-type]
        for key in known & settings.keys():
            value = settings[key]
            values[f"{part}.{key}"] = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return values


def _check_queries_are_read(retrievers: Mapping[str, Retriever], histories: bool, split: str) -> None:
    """Refuse a method that could not answer the queries of the split."""
    unable = [name for name, retriever in retrievers.items() if not retriever.could_read(histories=histories)]
    if unable:
        kind, others = ("histories of items", "item-knn or tiger") if histories else ("texts", "bm25 or dsi-semantic")
        raise Unsupported(
            f"the queries of split {split!r} are {kind}, which {', '.join(unable)} cannot read",
            f"Leave it out of --methods, or compare methods such as {others}.",
        )
