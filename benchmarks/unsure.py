"""How often an index says that it is not sure: for queries that it can answer, and for queries that it cannot.

    python benchmarks/unsure.py scifact nfcorpus [--without-queries] [--set key=value]

The dev queries are those of the split `dev`, or else a fifth of the train queries, which are then left out of the fit.
Each is asked twice, the second time with its answers denied by a filter, as if the corpus did not have them. Then
queries of other collections are asked (`--foreign`). With `--without-queries` the fit knows no judged query, as with a
folder of one's own, and is calibrated on sentences of the documents.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import callslip
from callslip.corpus.documents import Corpus, Judgements, Query
from callslip.filters.filter import Filter
from callslip.index.retriever import Retriever
from callslip.methods import make
from callslip.settings import parse_assignments

RESULTS = Path(__file__).parent / "results"
MOST = 300
"""Queries of a kind that are asked; of more, the first ones in a random order."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help="folders in CALLSLIP_DATA")
    parser.add_argument("--foreign", default="fiqa,wikiqa,nfcorpus,scifact")
    parser.add_argument("--without-queries", action="store_true")
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    arguments = parser.parse_args()
    root = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
    for name in arguments.sets:
        others = [other for other in arguments.foreign.split(",") if other != name]
        found = measured(root, name, others, arguments.without_queries, parse_assignments(arguments.assignments))
        print(json.dumps(found, indent=1))
        RESULTS.mkdir(exist_ok=True)
        suffix = "-sentences" if arguments.without_queries else ""
        (RESULTS / f"unsure-{name}{suffix}.json").write_text(json.dumps(found, indent=1) + "\n")


def measured(root: Path, name: str, others: list[str], blind: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """The shares of queries of each kind that an index is unsure about."""
    corpus, queries, judged = held_out(callslip.load_corpus(root / name))
    if blind:
        corpus = dataclasses.replace(corpus, judgements={})
    index = make("tied-residual", settings).fit(corpus)
    calibration = index.weights.calibration
    answers = [frozenset(d for d, grade in judged[query.query_id].items() if grade > 0) for query in queries]
    found: dict[str, Any] = {
        "set": name,
        "calibrated_on": f"{calibration.queries} {index.weights.fitted_on}",
        "signals": calibration.to_dict()["signals"],
        "with their answers": unsure(index, queries, None),
        "without their answers": unsure(index, queries, [Filter(deny=denied) for denied in answers]),
    }
    for other in others:
        asked = callslip.load_corpus(root / other)
        split = next(split for split in ("dev", "test") if split in asked.judgements)
        found[f"of {other}"] = unsure(index, some(list(asked.split(split)[0].values())), None)
    return found


def held_out(corpus: Corpus) -> tuple[Corpus, list[Query], Judgements]:
    """The corpus to fit, and dev queries with their judgements."""
    if "dev" in corpus.judgements:
        queries, judged = corpus.split("dev")
        return corpus, some(list(queries.values())), judged
    queries, judged = corpus.split("train")
    names = list(queries)
    dev = set(np.random.default_rng(0).permutation(names)[: len(names) // 5].tolist())
    train = {qid: grades for qid, grades in judged.items() if qid not in dev}
    rest = dataclasses.replace(corpus, judgements=corpus.judgements | {"train": train})
    return rest, some([queries[qid] for qid in names if qid in dev]), judged


def some(queries: list[Query]) -> list[Query]:
    """At most `MOST` queries with a text, in a random order."""
    asked = [query for query in queries if query.text]
    order = np.random.default_rng(0).permutation(len(asked))[:MOST]
    return [asked[number] for number in order.tolist()]


def unsure(index: Retriever, queries: list[Query], filters: list[Filter] | None) -> dict[str, Any]:
    """The share of queries that an index is unsure about, with a 95 % interval (Wilson)."""
    hits = index.search_batch(queries, 10, filters, texts=False)
    count, n, z = sum(one.unsure for one in hits), len(queries), 1.96
    share = count / n
    centre, half = share + z * z / (2 * n), z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = ((centre + sign * half) / (1 + z * z / n) for sign in (-1, 1))
    return {"queries": n, "unsure": round(share, 3), "interval": [round(float(low), 3), round(float(high), 3)]}


if __name__ == "__main__":
    main()
