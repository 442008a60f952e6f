"""Loss by beam pruning: compares beam search with exact search on the same queries.

There are two separate comparisons. *Codes*: the model writes as many codes as the beam size, once by beam search and
once exactly (`GenerativeRetriever.write`), with a fixed beam. *Measures, hits and search times*: whole searches as a
user runs them. A search whose codes cover fewer than k documents writes four times as many codes, and repeats this; a
wider beam prunes less. These results therefore show the cost of pruning in practice, and at large k they may hide the
loss of the original beam. `grown` is the share of such queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from callslip.corpus.documents import Query
from callslip.errors import BadSetting, Unsupported
from callslip.evaluation.measures import PerQuery, Run
from callslip.evaluation.significance import Interval, bootstrap_intervals
from callslip.index.retriever import Retriever
from callslip.search import candidates

if TYPE_CHECKING:
    from callslip.index.generative import GenerativeRetriever
    from callslip.search.beam import Beams

Decoding = Literal["beam", "exact"]
DECODINGS: tuple[Decoding, Decoding] = ("beam", "exact")
FIRST_HITS = 10
BATCH = 64


@dataclass(frozen=True)
class Loss:
    """One measure by both searches."""

    beam: float
    exact: float
    difference: Interval
    """Exact minus beam, with the bootstrap interval of the per-query differences."""


@dataclass(frozen=True)
class Pruning:
    """Loss of the beam. Shares are fractions of the split's queries, from 0 to 1."""

    beam: int
    """Beam size in the settings, and number of codes that both searches wrote."""
    measures: dict[str, Loss]
    best_lost: float
    """Share of queries for which the beam missed the best code."""
    codes_found: float
    """Mean share of the `beam` best codes that the beam found."""
    hits_differ: float
    """Share of queries whose first 10 hits differ, in documents or order."""
    grown: float
    """Share of queries for which one of the searches wrote more codes than `beam`. Their measures and hits are those of
    a wider beam; the two shares of codes are unaffected."""
    write_ms: dict[str, float]
    """Milliseconds per query to write `beam` codes, by beam search and exactly."""
    search_ms: dict[str, float]
    """Milliseconds per query of the whole search, by beam search and exactly, including encoding and ranking."""

    def to_dict(self) -> dict[str, Any]:
        losses = {
            name: {**asdict(loss), "difference": loss.difference._asdict()} for name, loss in self.measures.items()
        }
        return {**vars(self), "measures": losses}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Pruning:
        """The inverse of `to_dict`."""
        losses = {
            name: Loss(loss["beam"], loss["exact"], Interval(**loss["difference"]))
            for name, loss in data["measures"].items()
        }
        return cls(**{field.name: data[field.name] for field in fields(cls)} | {"measures": losses})

    def sentences(self) -> list[str]:
        """Everything except the measures, as sentences."""
        lines = [
            f"The beam missed the best code for {_percent(self.best_lost)} of the queries, and found "
            f"{_percent(self.codes_found)} of the {self.beam:,} best codes. The first {FIRST_HITS} hits differ for "
            f"{_percent(self.hits_differ)}.",
            "Milliseconds per query: "
            f"decoding {self.write_ms['beam']:.3g} by beam and {self.write_ms['exact']:.3g} exactly, "
            f"whole search {self.search_ms['beam']:.3g} and {self.search_ms['exact']:.3g}.",
        ]
        if self.grown:
            lines.append(
                f"For {_percent(self.grown)} of the queries the hits needed more codes than {self.beam:,}: their "
                "measures and hits are those of a wider beam; the shares of codes are unaffected."
            )
        return lines


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def check_decoding(retriever: Retriever) -> GenerativeRetriever:
    """The retriever, if its beam can be compared with exact search; otherwise an error."""
    from callslip.index.generative import GenerativeRetriever

    if isinstance(retriever, GenerativeRetriever) and "decoding" in retriever.search_settings:
        if retriever.settings.decoding not in DECODINGS:
            raise BadSetting(
                f"decoding={retriever.settings.decoding} cannot be compared with exact search, which is constrained",
                "Add --set decoding=beam, or leave out --exact (exact=True).",
            )
        return retriever
    if "decoding" in retriever.search_settings:
        raise Unsupported(
            f"{retriever.method} merges the hits of several parts, whose beam losses cannot be separated",
            "Leave out --exact (exact=True), or evaluate a method with one beam, such as dsi-semantic.",
        )
    raise Unsupported(
        f"{retriever.method} has no setting 'decoding': it writes no codes, so it has no beam",
        "Leave out --exact (exact=True), or evaluate a method that writes codes, such as dsi-semantic, on its own.",
    )


@contextmanager
def decoding_as(retriever: GenerativeRetriever, decoding: Decoding) -> Iterator[None]:
    """Context manager that changes the decoding, and restores the settings afterwards."""
    before = retriever.settings
    retriever.settings = replace(before, decoding=decoding)
    try:
        yield
    finally:
        retriever.settings = before


def measure_pruning(
    retriever: GenerativeRetriever,
    queries: Sequence[Query],
    k: int,
    runs: Mapping[Decoding, Run],
    seconds: Mapping[Decoding, float],
    values: Mapping[Decoding, PerQuery],
    **bounds: Any,
) -> Pruning:
    """Loss of the beam, from each decoding's run for k hits, its search time in seconds, and its values per query.
    `bounds` are passed to the bootstrap."""
    best_lost, codes_found, grown, writing = _compare_codes(retriever, queries, k)
    differ = [
        [doc_id for doc_id, _ in runs["beam"].get(query.query_id, [])[:FIRST_HITS]]
        != [doc_id for doc_id, _ in runs["exact"].get(query.query_id, [])[:FIRST_HITS]]
        for query in queries
    ]
    per_query = 1000 / len(queries)
    return Pruning(
        beam=retriever.settings.beam,
        measures=_losses(values["beam"], values["exact"], **bounds),
        best_lost=best_lost,
        codes_found=codes_found,
        hits_differ=float(np.mean(differ)),
        grown=grown,
        write_ms={decoding: writing[decoding] * per_query for decoding in DECODINGS},
        search_ms={decoding: seconds[decoding] * per_query for decoding in DECODINGS},
    )


def _losses(beam: PerQuery, exact: PerQuery, **bounds: Any) -> dict[str, Loss]:
    ids = list(next(iter(beam.values())))
    first, second = (np.array([[values[name][qid] for name in beam] for qid in ids]) for values in (beam, exact))
    differences = bootstrap_intervals(second - first, **bounds)  # resampling differences keeps each query paired
    means = zip(first.mean(axis=0).tolist(), second.mean(axis=0).tolist(), differences)
    return dict(zip(beam, (Loss(*of_one) for of_one in means)))


def _compare_codes(
    retriever: GenerativeRetriever, queries: Sequence[Query], k: int
) -> tuple[float, float, float, dict[Decoding, float]]:
    """Share of queries whose best code was missed, share of codes found, share of queries that need more codes for k
    hits, and decoding times in seconds. Without filters; codes of deleted documents are excluded."""
    beam, mask = retriever.settings.beam, retriever.rows.mask(None)
    live = None if mask is None else retriever.live_nodes(mask)
    wanted = min(k, len(retriever)) if beam < retriever.identifiers.unique else 0
    lost, found, grown = [], [], []
    writing: dict[Decoding, float] = dict.fromkeys(DECODINGS, 0.0)
    for start in range(0, len(queries), BATCH):
        batch = list(queries[start : start + BATCH])
        inputs = retriever.reader.query_inputs(batch)
        lists: dict[Decoding, list[Beams]] = {}
        for decoding in DECODINGS:
            with decoding_as(retriever, decoding):
                began = time.perf_counter()
                lists[decoding] = retriever.write(inputs, beam, live)
                writing[decoding] += time.perf_counter() - began
        for some, best in zip(lists["beam"], lists["exact"], strict=True):
            there = np.isin(best.nodes, some.nodes)
            lost.append(not there[:1].all())  # no code at all, if all documents are deleted, is no loss
            found.append(there.mean() if len(there) else 1.0)
            held = (len(candidates.candidates(beams, retriever.identifiers, mask)[0]) for beams in (some, best))
            grown.append(min(held) < wanted)
    return float(np.mean(lost)), float(np.mean(found)), float(np.mean(grown)), writing
