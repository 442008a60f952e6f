"""Results for documents that share a code: ranked, optimistic, expected and by code.

When a model writes a code, it retrieves a bucket of documents. Results then depend on the order inside the bucket, and
published results do not always say which order they use. Reports therefore give four values:

- *ranked*: the actual order, which users see;
- *optimistic*: relevant documents first inside each bucket, an upper bound over all orders;
- *expected*: the mean over all orders inside each bucket, the value of the code alone;
- *code*: every code takes one rank, and is right if one of its documents is. Papers on codes that documents share count
  so; it cannot be compared with methods whose codes are unique.

Buckets keep their order and every document takes a rank, so a large bucket before the right one lowers even the
optimistic value (but not the value by code). Pass whole buckets, not truncated at k: the measures apply their own
cutoff.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from callslip.corpus.documents import Judgements
from callslip.evaluation.measures import PerQuery, cutoff_of, parse_measures, per_query

Buckets = Sequence[Sequence[str]]
"""One query's hits: buckets best first, each with its doc_ids in ranked order."""

Span = tuple[int, int, list[int]]
"""A bucket with relevant documents: number of documents before it, its size, and its grades above 0."""

SAMPLES = 1000
"""Number of sampled orders for a measure without a closed form."""


@dataclass(frozen=True)
class BucketFigures:
    """The values per measure and query, and how the expected one was computed."""

    ranked: PerQuery
    optimistic: PerQuery
    expected: PerQuery
    expected_by: dict[str, str] = field(default_factory=dict)
    code: PerQuery = field(default_factory=dict)
    """Values of the codes themselves; empty if the codes are not known."""

    def means(self) -> dict[str, dict[str, float]]:
        """measure -> {"ranked", "optimistic", "expected"} and, if the codes are known, "code" -> mean over queries."""
        return {
            measure: {
                kind: float(np.mean(list(figures[measure].values())))
                for kind, figures in (
                    ("ranked", self.ranked),
                    ("optimistic", self.optimistic),
                    ("expected", self.expected),
                    ("code", self.code),
                )
                if figures
            }
            for measure in self.ranked
        }


def group_by_code(hits: Iterable[tuple[str, Hashable]]) -> list[list[str]]:
    """Group (doc_id, code) hits, best first, into buckets; a bucket has the rank of its first document."""
    buckets: dict[Hashable, list[str]] = {}
    for doc_id, code in hits:
        buckets.setdefault(code, []).append(doc_id)
    return list(buckets.values())


def bucket_figures(
    runs_of_buckets: Mapping[str, Buckets],
    judgements: Judgements,
    measures: str | Iterable[Any],
    *,
    ranked: PerQuery | None = None,
    code: PerQuery | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> BucketFigures:
    """The ranked, optimistic and expected value of every measure for every judged query.

    `ranked` gives the values of the actual run, if they are already known or the run is not the concatenation of the
    buckets; `code` those of the codes, by `code_figures`. Expected values are exact for nDCG, R, P, Success, RR and AP
    with any cutoff and `rel`; for other measures they are means over `samples` random orders, as stated in
    `expected_by`.
    """
    parsed = parse_measures(measures)
    judged_runs = {qid: buckets for qid, buckets in runs_of_buckets.items() if qid in judgements}
    best = {
        qid: _run_of([_relevant_first(bucket, judgements[qid]) for bucket in buckets])
        for qid, buckets in judged_runs.items()
    }
    exact = [measure for measure in parsed if _closed_form(measure)]
    sampled = [measure for measure in parsed if not _closed_form(measure)]
    expected: PerQuery = {str(measure): {} for measure in parsed}
    for qid, judged in judgements.items():
        spans = _spans(judged_runs.get(qid, ()), judged)
        for measure in exact:
            expected[str(measure)][qid] = _expected(measure, spans, judged)
    if sampled:
        expected |= _sampled(judged_runs, judgements, sampled, samples, seed)
    if ranked is None:
        ranked = per_query({qid: _run_of(buckets) for qid, buckets in judged_runs.items()}, judgements, parsed)
    return BucketFigures(
        ranked=ranked,
        optimistic=per_query(best, judgements, parsed),
        expected=expected,
        expected_by={str(m): "exact" if m in exact else f"mean of {samples} random orders" for m in parsed},
        code=code or {},
    )


def code_figures(
    runs_of_codes: Mapping[str, Sequence[Hashable]],
    code_of: Mapping[str, Hashable],
    judgements: Judgements,
    measures: str | Iterable[Any],
) -> PerQuery:
    """Every measure for every judged query with codes in place of documents.

    `runs_of_codes` gives the codes found for each query, best first; `code_of` the code of each document. A code has
    the highest grade of its documents; a relevant document without a code counts as one that is never found.
    """
    run = {
        qid: [(str(code), -float(rank)) for rank, code in enumerate(dict.fromkeys(codes))]
        for qid, codes in runs_of_codes.items()
        if qid in judgements
    }
    graded: dict[str, dict[str, int]] = {}
    for qid, judged in judgements.items():
        graded[qid] = {}
        for doc_id, grade in judged.items():
            name = str(code_of[doc_id]) if doc_id in code_of else f"no code: {doc_id}"
            graded[qid][name] = max(grade, graded[qid].get(name, grade))
    return per_query(run, graded, parse_measures(measures))


def expected_value(measure: Any, buckets: Buckets, judged: Mapping[str, int]) -> float:
    """The exact expectation of one measure for one query over random orders inside the buckets."""
    return _expected(measure, _spans(buckets, judged), judged)


def _spans(buckets: Buckets, judged: Mapping[str, int]) -> list[Span]:
    """The buckets with a relevant document. Other buckets only shift their ranks."""
    spans, before = [], 0
    for bucket in buckets:
        grades = [grade for grade in map(judged.get, bucket) if grade is not None and grade > 0]
        if grades:
            spans.append((before, len(bucket), grades))
        before += len(bucket)
    return spans


def _expected(measure: Any, spans: list[Span], judged: Mapping[str, int]) -> float:
    threshold, cutoff = measure.params.get("rel", 1), cutoff_of(measure)
    relevant = sum(grade >= threshold for grade in judged.values())
    if relevant == 0 or not spans:
        return 0.0
    if measure.NAME == "nDCG":
        ideal = sorted((grade for grade in judged.values() if grade > 0), reverse=True)
        best = sum(grade / np.log2(rank + 1) for rank, grade in enumerate(ideal[:cutoff], start=1))
        # The expected gain at each rank of a bucket is the bucket's mean gain.
        gains = (sum(grades) / size * (1 / np.log2(_ranks(at, size, cutoff) + 1)).sum() for at, size, grades in spans)
        return float(sum(gains) / best)
    shapes = [(before, size, sum(grade >= threshold for grade in grades)) for before, size, grades in spans]
    if measure.NAME in ("R", "P"):
        found = sum(hits / size * len(_ranks(before, size, cutoff)) for before, size, hits in shapes)
        return float(found / (relevant if measure.NAME == "R" else cutoff))
    if measure.NAME == "AP":
        return _expected_precisions(shapes, cutoff) / relevant
    return _expected_first_hit(shapes, cutoff, reciprocal=measure.NAME == "RR")


def _ranks(before: int, size: int, cutoff: int | None) -> np.ndarray:
    """The ranks of a bucket, up to the cutoff."""
    end = before + size if cutoff is None else min(before + size, cutoff)
    return np.arange(before + 1, end + 1)


def no_hit_chances(size: int, hits: int) -> np.ndarray:
    """Probabilities [size + 1] that the first 0, 1, … of `size` documents in random order contain no hit."""
    drawn = np.arange(size)
    return np.concatenate([[1.0], np.cumprod(np.maximum(size - hits - drawn, 0) / (size - drawn))])


def _closed_form(measure: Any) -> bool:
    return measure.NAME in ("nDCG", "R", "P", "Success", "RR", "AP") and set(measure.params) <= {
        "cutoff",
        "rel",
    }


def _expected_precisions(shapes: list[tuple[int, int, int]], cutoff: int | None) -> float:
    """The sum over ranks of E[relevant here × precision here].

    Given a relevant document at rank j of a bucket, each of the j − 1 ranks before it is equally likely to hold one of
    the bucket's other relevant documents.
    """
    total, found = 0.0, 0
    for before, size, hits in shapes:
        ranks = _ranks(before, size, cutoff)
        others = (hits - 1) / (size - 1) if size > 1 else 0.0
        total += float((hits / size * (1 + found + others * (ranks - before - 1)) / ranks).sum())
        found += hits
    return total


def _expected_first_hit(shapes: list[tuple[int, int, int]], cutoff: int | None, *, reciprocal: bool) -> float:
    """E[1 / rank of the first relevant document], or the probability that there is one above the cutoff.

    Only the first bucket with a relevant document matters, since the next bucket comes after all of it.
    """
    for before, size, hits in shapes:
        if hits:
            ranks = _ranks(before, size, cutoff)
            none_yet = no_hit_chances(size, hits)[: len(ranks) + 1]
            return float(((none_yet[:-1] - none_yet[1:]) / ranks).sum() if reciprocal else 1.0 - none_yet[-1])
    return 0.0


def _relevant_first(bucket: Sequence[str], judged: Mapping[str, int]) -> list[str]:
    return sorted(bucket, key=lambda doc_id: -max(judged.get(doc_id, 0), 0))


def _run_of(buckets: Buckets) -> list[tuple[str, float]]:
    """A ranking with arbitrary scores, since only the order is evaluated."""
    return [(doc_id, 0.0) for bucket in buckets for doc_id in bucket]


def _sampled(
    judged_runs: Mapping[str, Buckets],
    judgements: Judgements,
    measures: list[Any],
    samples: int,
    seed: int,
) -> PerQuery:
    rng = np.random.default_rng(seed)
    totals: PerQuery = {str(measure): dict.fromkeys(judgements, 0.0) for measure in measures}
    for _ in range(samples):
        run = {
            qid: _run_of([[bucket[i] for i in rng.permutation(len(bucket))] for bucket in buckets])
            for qid, buckets in judged_runs.items()
        }
        for name, values in per_query(run, judgements, measures).items():
            for qid, value in values.items():
                totals[name][qid] += value / samples
    return totals
