"""Evaluate a retriever: search the judged queries of a split, and report honestly on what came back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from callslip.corpus.documents import Corpus, Judgements, Query
from callslip.errors import BadSetting
from callslip.evaluation.measures import DEFAULT_MEASURES, Run, cutoff_of, parse_measures, per_query
from callslip.evaluation.pruning import DECODINGS, Pruning, check_decoding, decoding_as, measure_pruning
from callslip.evaluation.report import Report, evaluate_run
from callslip.evaluation.shared_codes import group_by_code
from callslip.evaluation.typos import typo_queries
from callslip.identifiers import quality
from callslip.index.retriever import Retriever
from callslip.search.hits import Hit, Hits

BATCH = 64
HISTORY_NOTES = {
    True: "Every item is ranked but those of the user's history, which are left out.",
    False: "Every item is ranked, those of the user's history, too.",
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
) -> Report:
    """Search every judged query of the split for `depth` hits (more if a measure looks deeper) and measure them.

    `typos` puts that many typing errors into each query. If documents can share a code, the report adds
    the optimistic and expected figures; if there are training queries, the seen/unseen split.

    `exact` adds what the beam loses to pruning: the queries are searched once more, exactly (or by beam search, if
    the settings say exact). Measures and hits are compared as searches give them, codes as the model writes them
    when it may write just as many as the beam is wide; see `callslip.evaluation.pruning` for why that is two things.

    Of a log of users and items every item is ranked for every user; `exclude_history` leaves out those that the user
    had already. The report says which it was.
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
    )[0]


def judged_split(corpus: Corpus, split: str) -> tuple[dict[str, Query], Judgements]:
    """The judged queries of a split and their judgements, of which there must be some."""
    queries, judgements = corpus.split(split)
    if not queries:
        known = ", ".join(sorted(corpus.judgements)) or "none"
        raise BadSetting(f"the corpus has no judged queries in split {split!r}", f"Splits with judgements: {known}.")
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
) -> tuple[Report, Run]:
    """As `evaluate`, with the run that was measured."""
    if exact:
        check_decoding(retriever)
    parsed = parse_measures(measures)
    queries, judgements = judged_split(corpus, split)
    if typos:
        queries = typo_queries(queries, edits=typos, seed=seed)
    depth = max([depth, *(cutoff_of(measure) or 0 for measure in parsed)])
    codes = code_quality(retriever)
    shared = shares_codes(retriever, codes)
    # Whole buckets are needed for the expected figures, so the last one must not be cut at `depth`.
    k = depth + (codes["bucket_max"] if shared else 0)
    found, seconds = search_all(retriever, list(queries.values()), k, exclude_history)
    run = run_of(found, depth)
    buckets = {
        qid: group_by_code((hit.doc_id, hit.code) for hit in whole_buckets(hits, depth)) for qid, hits in found.items()
    }
    report = evaluate_run(
        run,
        judgements,
        measures=parsed,
        corpus=corpus,
        split=split if not typos else f"{split} with {typos} typo{'s' * (typos > 1)} a query",
        name=name or retriever.method,
        buckets=buckets if shared else None,
        seen=None if split == "train" else trained_on(corpus),
        identifiers=codes,
        timings={
            "fit_seconds": retriever.fit_seconds,
            "search_seconds": seconds,
            "search_ms_per_query": 1000 * seconds / max(1, len(queries)),
        },
        settings=retriever.describe()["settings"],
        seed=seed,
    )
    report.notes += missing_answers(retriever, judgements)
    if any(query.history for query in queries.values()):
        report.notes.append(HISTORY_NOTES[exclude_history])
    if exact:
        report.pruning = pruning_of(
            retriever, list(queries.values()), k, depth, report, run, judgements, parsed, exclude_history
        )
    return report, run


def missing_answers(retriever: Retriever, judgements: Judgements) -> list[str]:
    """A note, if documents that answer queries are not in the index: whatever it does, it cannot find them."""
    answers = {d for judged in judgements.values() for d, grade in judged.items() if grade > 0}
    missing = answers - retriever.row_of().keys()
    if not missing:
        return []
    return [
        f"{len(missing):,} of {len(answers):,} documents that answer queries are not there to be found: the index lacks"
        f" {min(missing)!r}{' and others' * (len(missing) > 1)}."
    ]


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
    """What the beam loses, given the report and run of the decoding that the settings say; the other is searched."""
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
    """The first `depth` hits of each query, and those that share the last one's code."""
    return {qid: [(hit.doc_id, hit.score) for hit in whole_buckets(hits, depth)] for qid, hits in found.items()}


def trained_on(corpus: Corpus) -> set[str] | None:
    """The documents that a training query asks for, or that a training history holds; None if there are none."""
    train = corpus.judgements.get("train")
    if train is None:
        return None
    asked = {d for judged in train.values() for d, grade in judged.items() if grade > 0}
    return asked | {item for query_id in train for item in corpus.queries[query_id].history}


def search_all(
    retriever: Retriever, queries: list[Query], k: int, exclude_history: bool = False
) -> tuple[dict[str, Hits], float]:
    """The hits of every query, searched in batches, and the seconds it took."""
    from callslip.runtime.progress import track

    starts = range(0, len(queries), BATCH)
    retriever.search(queries[0], k)  # loads what is loaded on first use, which is not search time
    began = time.perf_counter()
    found: dict[str, Hits] = {}
    for start in track(starts, "searching"):
        batch = queries[start : start + BATCH]
        some = retriever.search_batch(batch, k, exclude_history=exclude_history, texts=False)
        for query, hits in zip(batch, some, strict=True):
            found[query.query_id] = hits
    return found, time.perf_counter() - began


def whole_buckets(hits: Hits, depth: int) -> list[Hit]:
    """The first `depth` hits, and those after them that share the last one's code."""
    end = min(depth, len(hits))
    while 0 < end < len(hits) and hits[end].code is not None and hits[end].code == hits[end - 1].code:
        end += 1
    return hits[:end]


def code_quality(retriever: Retriever) -> dict[str, Any]:
    """The figures of the method's codes, without those of deleted documents; nothing for methods without codes."""
    identifiers = getattr(retriever, "identifiers", None)
    if identifiers is None or not len(retriever):
        return {}
    alive = retriever.rows.mask(None)  # None if all are
    codes = identifiers if alive is None else identifiers.codes[alive[identifiers.rows]]
    return quality.measure(codes).to_dict()


def shares_codes(retriever: Retriever, codes: dict[str, Any]) -> bool:
    """Whether hits come bucket by bucket and some bucket holds several documents."""
    in_buckets = getattr(retriever.settings, "ranking", None) in ("bucket", "share")
    return bool(codes) and in_buckets and codes["bucket_max"] > 1
