"""Evaluate a retriever: search the judged queries of a split, and report the results."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from callslip.corpus.documents import Corpus, Judgements, Query
from callslip.errors import BadSetting
from callslip.evaluation.measures import DEFAULT_MEASURES, Run, cutoff_of, parse_measures, per_query
from callslip.evaluation.plain import plain
from callslip.evaluation.pruning import DECODINGS, Pruning, check_decoding, decoding_as, measure_pruning
from callslip.evaluation.report import Report, evaluate_run, expected_figures
from callslip.evaluation.shared_codes import group_by_code
from callslip.evaluation.typos import typo_queries
from callslip.identifiers import quality
from callslip.index.retriever import Retriever
from callslip.search.hits import Hit, Hits

BATCH = 64
CODES = 10
"""Number of codes that results by code need: deeper cutoffs count the codes of the documents found."""
HISTORY_NOTES = {
    True: "Items in the user's history are left out of the hits.",
    False: "Items in the user's history may be among the hits.",
}


def evaluate(
    retriever: Retriever,
    corpus: Corpus,
    *,
    split: str = "test",
    measures: str | Iterable[Any] = DEFAULT_MEASURES,
    depth: int = 100,
    typos: int = 0,
    name: str = "",
    seed: int = 0,
    exact: bool = False,
    exclude_history: bool = False,
    codes_alone: bool = True,
) -> Report:
    """Search every judged query of the split for `depth` hits (more if a measure has a higher cutoff) and evaluate.

    `typos` adds that many typos to each query. If documents can share a code, the report includes optimistic and
    expected results and those of the codes themselves; if there are training queries, it separates seen from unseen
    answers.

    `exact` adds the loss by pruning: the queries are searched again, exactly (or by beam search, if the settings choose
    exact decoding). Measures and hits are compared between whole searches, codes between decodings of as many codes as
    the beam size; see `callslip.evaluation.pruning` for the difference.

    For a method with codes, the report also has the expected results of its codes alone, without any ranking by
    vectors. Where the ranking uses vectors, that takes a second search; `codes_alone=False` saves it.

    In an interaction log, every item of the index may be a hit; `exclude_history` excludes the items of the user's
    history. The report states which.
    """
    return evaluate_with_run(
        retriever,
        corpus,
        split=split,
        measures=measures,
        depth=depth,
        typos=typos,
        name=name,
        seed=seed,
        exact=exact,
        exclude_history=exclude_history,
        codes_alone=codes_alone,
    )[0]


def judged_split(corpus: Corpus, split: str) -> tuple[dict[str, Query], Judgements]:
    """The judged queries of a split and their judgements; raises an error if there are none."""
    queries, judgements = corpus.split(split)
    if not queries:
        known = ", ".join(sorted(corpus.judgements))
        add = "It has no judged queries at all: add some with --queries FILE and --qrels FILE (queries=, qrels=)."
        remedy = f"Splits with judgements: {known}." if known else add
        raise BadSetting(f"the corpus has no judged queries in split {split!r}", remedy)
    return queries, judgements


def evaluate_with_run(
    retriever: Retriever,
    corpus: Corpus,
    *,
    split: str = "test",
    measures: str | Iterable[Any] = DEFAULT_MEASURES,
    depth: int = 100,
    typos: int = 0,
    name: str = "",
    seed: int = 0,
    exact: bool = False,
    exclude_history: bool = False,
    codes_alone: bool = True,
) -> tuple[Report, Run]:
    """Like `evaluate`, and also returns the run."""
    if exact:
        check_decoding(retriever)
    parsed = parse_measures(measures)
    queries, judgements = judged_split(corpus, split)
    if typos:
        queries = typo_queries(queries, edits=typos, seed=seed)
    depth = max([depth, *(cutoff_of(measure) or 0 for measure in parsed)])
    codes = code_quality(retriever)
    shared = shares_codes(retriever, codes)
    # Expected results need whole buckets, so the last one must not be truncated at `depth`; results by code, as many
    # documents as the first codes can have.
    k = max(depth + codes["bucket_max"], largest(codes["bucket_histogram"], CODES)) if shared else depth
    found, seconds = search_all(retriever, list(queries.values()), k, exclude_history)
    run, buckets = run_of(found, depth), {qid: buckets_of(hits, depth) for qid, hits in found.items()}
    code_of = codes_of_answers(retriever, judgements) if shared else {}
    report = evaluate_run(
        run,
        judgements,
        measures=parsed,
        corpus=corpus,
        split=split if not typos else f"{split} with {typos} typo{'s' * (typos > 1)} a query",
        name=name or retriever.method,
        buckets=buckets if shared else None,
        codes={qid: [without_end(hit.code) for hit in hits] for qid, hits in found.items()} if shared else None,
        code_of=code_of,
        seen=None if split == "train" else trained_on(corpus),
        identifiers=codes | queries_per_code(code_of, judgements),
        timings=timings_of(retriever, seconds, len(queries)),
        settings=retriever.describe()["settings"],
        seed=seed,
    )
    report.changed_settings = plain(changed_settings(retriever.settings))
    report.notes += missing_answers(retriever, judgements)
    if split != "train":
        report.notes += learned_queries(retriever, queries.values())
    if codes_alone and retriever.code_settings is not None:
        by_codes = found_by_codes(retriever, list(queries.values()), found, depth, codes, exclude_history)
        report.codes_alone = expected_figures(by_codes, judgements, parsed, report)
    if any(query.history for query in queries.values()):
        report.notes.append(HISTORY_NOTES[exclude_history])
    if exact:
        report.pruning = pruning_of(
            retriever, list(queries.values()), k, depth, report, run, judgements, parsed, exclude_history
        )
    return report, run


def found_by_codes(
    retriever: Retriever,
    queries: list[Query],
    found: dict[str, Hits],
    depth: int,
    codes: dict[str, Any],
    exclude_history: bool,
) -> dict[str, Hits]:
    """The hits in the order of codes alone: those that were found if that is their order, else those of a second
    search."""
    wanted = dict(retriever.code_settings or {})
    before = {name: getattr(retriever.settings, name) for name in wanted}
    if before == wanted:
        return found
    retriever.adjust(wanted)
    try:
        return search_all(retriever, queries, depth + codes.get("bucket_max", 0), exclude_history)[0]
    finally:
        retriever.adjust(before)


def timings_of(retriever: Retriever, search_seconds: float, queries: int) -> dict[str, float]:
    """Seconds of the fit and of the search of so many queries."""
    return {
        "fit_seconds": retriever.fit_seconds,
        "search_seconds": search_seconds,
        "search_ms_per_query": 1000 * search_seconds / max(1, queries),
    }


def changed_settings(settings: Any) -> dict[str, Any]:
    """The settings that differ from their defaults."""
    changed = {}
    for field in dataclasses.fields(settings):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if getattr(settings, field.name) != default:
            changed[field.name] = getattr(settings, field.name)
    return changed


def missing_answers(retriever: Retriever, judgements: Judgements) -> list[str]:
    """A note if documents that answer queries are missing from the index, which therefore cannot find them."""
    answers = {d for judged in judgements.values() for d, grade in judged.items() if grade > 0}
    missing = answers - retriever.row_of().keys()
    if not missing:
        return []
    return [
        f"{len(missing):,} of {len(answers):,} documents that answer queries are missing from the index:"
        f" {min(missing)!r}{' and others' * (len(missing) > 1)}."
    ]


def learned_queries(retriever: Retriever, queries: Iterable[Query]) -> list[str]:
    """A note if the index has learned the answers of queries that it is evaluated on."""
    asked = [query.text for query in queries if query.text]
    known = sum(map(retriever.remembers, asked))
    if not known:
        return []
    have = "has" if known == 1 else "have"
    return [f"{known:,} of {len(asked):,} queries of this split {have} been learned: the index knows their answers."]


def pruning_of(
    retriever: Retriever,
    queries: list[Query],
    k: int,
    depth: int,
    report: Report,
    run: Run,
    judgements: Judgements,
    measures: list[Any],
    exclude_history: bool = False,
) -> Pruning:
    """The beam's loss, from the report and run of the decoding in the settings; runs the other decoding."""
    writer = check_decoding(retriever)
    mine = writer.settings.decoding
    other = DECODINGS[mine == "beam"]
    with decoding_as(writer, other):
        found, seconds = search_all(writer, queries, k, exclude_history)
    theirs = run_of(found, depth)
    return measure_pruning(
        writer,
        queries,
        k,
        runs={mine: run, other: theirs},
        seconds={mine: report.timings["search_seconds"], other: seconds},
        values={mine: report.per_query, other: per_query(theirs, judgements, measures)},
        confidence=report.confidence,
        resamples=report.resamples,
        seed=report.seed,
    )


def run_of(found: dict[str, Hits], depth: int) -> Run:
    """The first `depth` hits of each query, and further hits that share the last one's code."""
    return {qid: [(hit.doc_id, hit.score) for hit in whole_buckets(hits, depth)] for qid, hits in found.items()}


def trained_on(corpus: Corpus) -> set[str] | None:
    """The documents that answer a training query, or occur in a training history; None if there are none."""
    train = corpus.judgements.get("train")
    if train is None:
        return None
    asked = {d for judged in train.values() for d, grade in judged.items() if grade > 0}
    return asked | {item for query_id in train for item in corpus.queries[query_id].history}


def search_all(
    retriever: Retriever, queries: list[Query], k: int, exclude_history: bool = False
) -> tuple[dict[str, Hits], float]:
    """The hits of every query, searched in batches, and the search time in seconds."""
    from callslip.runtime.progress import track

    starts = range(0, len(queries), BATCH)
    retriever.search(queries[0], k)  # warm-up: lazy loading does not count as search time
    began = time.perf_counter()
    found: dict[str, Hits] = {}
    for start in track(starts, "searching"):
        batch = queries[start : start + BATCH]
        some = retriever.search_batch(batch, k, keep_history=not exclude_history, texts=False)
        for query, hits in zip(batch, some, strict=True):
            found[query.query_id] = hits
    return found, time.perf_counter() - began


def buckets_of(hits: Hits, depth: int) -> list[list[str]]:
    """The first `depth` hits as whole buckets."""
    return group_by_code((hit.doc_id, hit.code) for hit in whole_buckets(hits, depth))


def whole_buckets(hits: Hits, depth: int) -> list[Hit]:
    """The first `depth` hits, and further hits that share the last one's code."""
    end = min(depth, len(hits))
    while 0 < end < len(hits) and hits[end].code is not None and hits[end].code == hits[end - 1].code:
        end += 1
    return hits[:end]


def code_quality(retriever: Retriever) -> dict[str, Any]:
    """Quality of the method's codes, without deleted documents; empty for methods without codes."""
    identifiers = getattr(retriever, "identifiers", None)
    if identifiers is None or not len(retriever):
        return {}
    alive = retriever.rows.mask(None)  # None if no document is deleted
    codes = identifiers if alive is None else identifiers.codes[alive[identifiers.rows]]
    return quality.measure(codes).to_dict()


def largest(histogram: dict[int, int], count: int) -> int:
    """The number of documents in the `count` largest buckets, given bucket size -> number of buckets."""
    documents = 0
    for size, buckets in sorted(((int(size), n) for size, n in histogram.items()), reverse=True):
        documents += size * min(buckets, count)
        count -= min(buckets, count)
    return documents


def codes_of_answers(retriever: Retriever, judgements: Judgements) -> dict[str, tuple[int, ...]]:
    """The code of every judged document of the index."""
    row_of, codes = retriever.row_of(), retriever.codes_by_row()
    assert codes is not None
    asked = {doc_id for judged in judgements.values() for doc_id in judged if doc_id in row_of}
    return {doc_id: without_end(codes[row_of[doc_id]]) for doc_id in asked}


def without_end(code: Iterable[int] | None) -> tuple[int, ...]:
    """The tokens of a code, without padding."""
    return tuple(int(token) for token in (() if code is None else code) if token >= 0)


def queries_per_code(code_of: dict[str, tuple[int, ...]], judgements: Judgements) -> dict[str, Any]:
    """How the judged queries are spread over the codes of their answers."""
    counts: Counter[tuple[int, ...]] = Counter()
    for judged in judgements.values():
        counts.update({code_of[d] for d, grade in judged.items() if grade > 0 and d in code_of})
    if not counts:
        return {}
    mean = sum(counts.values()) / len(counts)
    return {"codes_asked": len(counts), "queries_per_code_mean": mean, "queries_per_code_max": max(counts.values())}


def shares_codes(retriever: Retriever, codes: dict[str, Any]) -> bool:
    """Whether hits are ordered by bucket and some bucket has several documents."""
    in_buckets = getattr(retriever.settings, "ranking", None) in ("bucket", "share", "code")
    return bool(codes) and in_buckets and codes["bucket_max"] > 1
