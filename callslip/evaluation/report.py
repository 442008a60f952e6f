"""The report of an evaluation: results with intervals, and everything needed to interpret and reproduce them."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from callslip.corpus.documents import Corpus, Judgements
from callslip.errors import BadInput, BadSetting
from callslip.evaluation.measures import DEFAULT_MEASURES, PerQuery, Run, cutoff_of, parse_measures, per_query
from callslip.evaluation.plain import plain, to_json, write_json
from callslip.evaluation.pruning import Pruning
from callslip.evaluation.shared_codes import BucketFigures, Buckets, bucket_figures, code_figures, group_by_code
from callslip.evaluation.significance import CONFIDENCE, RESAMPLES, Interval, bootstrap_intervals
from callslip.runtime.process import versions
from callslip.search.hits import Hits

FORMAT = "callslip-report"
FORMAT_VERSION = 1

SEEN_GROUPS = {
    "all_seen": "all answers had a training query",
    "some_seen": "some answers had a training query",
    "none_seen": "no answer had a training query",
}
"""Groups of queries by seen answers. A document is *seen* if it answers a training query. Unseen documents are in the
index too, and the model may have been trained on their text, but on no query for them."""

Figures = dict[str, Interval]
"""measure -> mean with its interval."""


@dataclass(frozen=True)
class Group:
    """A subset of the queries with its results; an empty subset has none."""

    queries: int
    measures: Figures = field(default_factory=dict)


@dataclass
class Report:
    """Results of one system on one split of a data set."""

    name: str
    """Name of the system: that of the method, or one chosen by the user."""
    dataset: dict[str, Any]
    """The fingerprint of the corpus: its name, counts and hash."""
    split: str
    measures: Figures
    per_query: PerQuery
    confidence: float = CONFIDENCE
    """Confidence level of the intervals: percentile bootstrap over queries, with `resamples` resamples."""
    resamples: int = RESAMPLES
    shared_codes: dict[str, Any] | None = None
    """measure -> ranked, optimistic, expected, code; for methods whose documents can share a code."""
    codes_alone: Figures | None = None
    """measure -> expected result of the order by codes alone, before any ranking by vectors; None for methods without
    codes, and if it was not requested."""
    seen: dict[str, Group] | None = None
    """Keys of SEEN_GROUPS -> queries and results, if the seen documents were given."""
    pruning: Pruning | None = None
    """Loss of the beam against exact search, if requested."""
    identifiers: dict[str, Any] = field(default_factory=dict)
    """Quality of the codes, by callslip.identifiers.quality."""
    timings: dict[str, float] = field(default_factory=dict)
    """Durations: `fit_seconds`, `search_seconds` for all queries of the split, …"""
    settings: dict[str, Any] = field(default_factory=dict)
    changed_settings: dict[str, Any] = field(default_factory=dict)
    """The settings that differ from the method's defaults."""
    versions: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    notes: list[str] = field(default_factory=list)
    """Caveats for the interpretation of the results."""
    created: str = ""

    @property
    def queries(self) -> int:
        """Number of queries in the means: all judged queries, with or without hits."""
        return len(next(iter(self.per_query.values()), {}))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without NaN or NumPy types; the inverse of `from_dict`."""
        data: dict[str, Any] = {"format": FORMAT, "format_version": FORMAT_VERSION, "queries": self.queries}
        data |= {
            key: value
            for key, value in vars(self).items()
            if key not in ("measures", "codes_alone", "seen", "pruning", "per_query")
        }
        data["measures"] = _figures_to_dict(self.measures)
        data["codes_alone"] = self.codes_alone and _figures_to_dict(self.codes_alone)
        data["seen"] = self.seen and {
            key: {
                "meaning": SEEN_GROUPS[key],
                "queries": part.queries,
                "measures": _figures_to_dict(part.measures),
            }
            for key, part in self.seen.items()
        }
        data["pruning"] = self.pruning and self.pruning.to_dict()
        data["per_query"] = self.per_query
        return plain(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The inverse of `to_dict`."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        known["measures"] = _figures_from_dict(data["measures"])
        if known.get("codes_alone"):
            known["codes_alone"] = _figures_from_dict(data["codes_alone"])
        if known.get("seen"):
            known["seen"] = {
                key: Group(part["queries"], _figures_from_dict(part["measures"])) for key, part in data["seen"].items()
            }
        if known.get("pruning"):
            known["pruning"] = Pruning.from_dict(data["pruning"])
        return cls(**known)

    def save(self, path: str | Path) -> None:
        """Write the report as a JSON file."""
        write_json(self.to_dict(), path)

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read a report written by `save`."""
        remedy = "Give a report written by `callslip evaluate` or `Report.save`."
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise BadInput(path, error.strerror or "cannot be read", remedy=remedy) from None
        except ValueError as error:
            raise BadInput(path, f"is not JSON: {error}", remedy=remedy) from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise BadInput(path, "is not a report", remedy=remedy)
        if data.get("format_version") != FORMAT_VERSION:
            problem = f"has report format {data.get('format_version')}, this version reads {FORMAT_VERSION}"
            raise BadInput(path, problem, remedy="Evaluate again, or install the version that wrote it.")
        try:
            return cls.from_dict(data)
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(path, f"is not a complete report: {error}", remedy=remedy) from None

    def per_query_json(self) -> str:
        """JSON text: query_id -> measure -> value."""
        names = list(self.per_query)
        ids = next(iter(self.per_query.values()), {})
        return to_json({qid: {name: self.per_query[name][qid] for name in names} for qid in ids})

    def text(self, width: int = 100) -> str:
        """The report for a terminal, without colours."""
        from callslip.evaluation.terminal import report_text

        return report_text(self, width)

    def __rich__(self) -> Any:
        from callslip.evaluation.terminal import report_view

        return report_view(self)


def evaluate_run(
    run: Run,
    judgements: Judgements,
    *,
    measures: str | Iterable[Any] = DEFAULT_MEASURES,
    corpus: Corpus | None = None,
    dataset: Mapping[str, Any] | None = None,
    split: str = "test",
    name: str = "",
    buckets: Mapping[str, Buckets] | None = None,
    codes: Mapping[str, Sequence[Hashable]] | None = None,
    code_of: Mapping[str, Hashable] | None = None,
    seen: Iterable[str] | None = None,
    identifiers: Mapping[str, Any] | None = None,
    timings: Mapping[str, float] | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> Report:
    """Evaluate a run: query_id -> (doc_id, score) best first.

    The data set is given by `corpus`, or by its fingerprint (`dataset`). `buckets` gives the hits of each query as
    whole buckets, and adds optimistic and expected results; `codes`, the codes found for each query, and `code_of`, the
    code of each document, add results of the codes themselves; `seen` gives the doc_ids that answer training queries,
    and adds results by seen answers. The other arguments are recorded in the report.
    """
    parsed = parse_measures(measures)
    _check(run, judgements, split)
    values = per_query(run, judgements, parsed)
    bounds = {"confidence": confidence, "resamples": resamples, "seed": seed}
    by_code = code_figures(codes, code_of, judgements, parsed) if codes is not None and code_of is not None else None
    shared = None
    if buckets is not None:
        shared = bucket_figures(buckets, judgements, parsed, ranked=values, code=by_code, seed=seed)
    return Report(
        name=name,
        dataset=dict(dataset) if dataset is not None else corpus.fingerprint() if corpus is not None else {},
        split=split,
        measures=_figures(values, list(judgements), **bounds),
        per_query=values,
        confidence=confidence,
        resamples=resamples,
        shared_codes=_shared_to_dict(shared),
        seen=None if seen is None else seen_groups(values, judgements, set(seen), **bounds),
        identifiers=plain(identifiers or {}),
        timings=plain(timings or {}),
        settings=plain(settings or {}),
        versions=versions(),
        seed=seed,
        notes=_notes(run, judgements, parsed),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def expected_figures(found: Mapping[str, Hits], judgements: Judgements, measures: list[Any], report: Report) -> Figures:
    """Means with intervals of the expected value of each measure, over all orders of hits with the same score."""
    ties = {qid: group_by_code((hit.doc_id, hit.score) for hit in hits) for qid, hits in found.items()}
    figures = bucket_figures(ties, judgements, measures, ranked=report.per_query, seed=report.seed)
    bounds = {"confidence": report.confidence, "resamples": report.resamples, "seed": report.seed}
    return _figures(figures.expected, list(judgements), **bounds)


def seen_groups(values: PerQuery, judgements: Judgements, seen: set[str], **bounds: Any) -> dict[str, Group]:
    """Groups of queries by whether their answers had training queries, with results.

    Queries without answers belong to no group.
    """
    parts: dict[str, list[str]] = {key: [] for key in SEEN_GROUPS}
    for qid, judged in judgements.items():
        answers = [doc_id for doc_id, grade in judged.items() if grade > 0]
        known = sum(doc_id in seen for doc_id in answers)
        if answers:
            parts["none_seen" if known == 0 else "all_seen" if known == len(answers) else "some_seen"].append(qid)
    return {key: Group(len(ids), _figures(values, ids, **bounds)) for key, ids in parts.items()}


def _check(run: Run, judgements: Judgements, split: str) -> None:
    if not judgements:
        raise BadSetting(f"split {split!r} has no judged queries", "Give judgements (qrels), or choose another split.")
    if run and not any(qid in judgements for qid in run):
        raise BadSetting(
            f"no query of the run is judged in split {split!r}",
            f"The run has ids like {next(iter(run))!r}, the judgements like {next(iter(judgements))!r}.",
        )


def _notes(run: Run, judgements: Judgements, parsed: list[Any]) -> list[str]:
    notes = []
    missing = sum(not run.get(qid) for qid in judgements)
    if missing:
        notes.append(f"{missing} of {len(judgements)} queries have no hits and count 0.")
    unanswerable = sum(all(grade <= 0 for grade in judged.values()) for judged in judgements.values())
    if unanswerable:
        notes.append(f"{unanswerable} of {len(judgements)} queries have no relevant document and count 0.")
    depth = max((len(run[qid]) for qid in judgements if qid in run), default=0)
    deeper = [str(measure) for measure in parsed if (cutoff_of(measure) or 0) > depth]
    if depth and deeper:
        notes.append(f"No query has more than {depth} hits, which limits {', '.join(deeper)}.")
    return notes


def _figures(values: PerQuery, query_ids: list[str], **bounds: Any) -> Figures:
    if not query_ids:
        return {}
    table = np.array([[values[name][qid] for name in values] for qid in query_ids])
    return dict(zip(values, bootstrap_intervals(table, **bounds)))


def _figures_to_dict(figures: Figures) -> dict[str, dict[str, float]]:
    return {name: interval._asdict() for name, interval in figures.items()}


def _figures_from_dict(data: Mapping[str, Mapping[str, float]]) -> Figures:
    return {name: Interval(item["mean"], item["low"], item["high"]) for name, item in data.items()}


def _shared_to_dict(figures: BucketFigures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    return {name: {**means, "expected_by": figures.expected_by[name]} for name, means in figures.means().items()}
