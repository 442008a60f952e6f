"""GLEN: pure codes against dense ranking, exact search against beams, collisions, and transfer to other documents.

    python benchmarks/glen.py scifact --to nfcorpus [--split test] [--short 2] [--set key=value]

`figures`: one index under each order of hits. `search`: exact and beam search of that index, timed in turns.
`transfer`: its documents are deleted, those of `--to` added, and that set's questions asked. `collision`: an index
whose codes have `--short` words, on the questions that have an answer with a shared code: ranked by identifier weights,
and expected of a random order. `--split dev` holds a third of the train queries out where there is no dev split.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import timing
from two_stage import held_out

import callslip
from callslip.corpus.documents import Corpus
from callslip.methods import make
from callslip.methods.glen import GLEN
from callslip.settings import parse_assignments

MEASURES = ["nDCG@10", "R@100"]
ORDERS = {
    "codes, then identifier weights": {"ranking": "bucket"},
    "codes plus similarity": {"ranking": "sum"},
}
PARTS = ("figures", "search", "transfer", "collision")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", help="a folder in CALLSLIP_DATA")
    parser.add_argument("--to", help="another, whose documents are added")
    parser.add_argument("--split", default="test")
    parser.add_argument("--short", type=int, default=2)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    arguments = parser.parse_args()
    corpus, parts = read(arguments.set, arguments.split), arguments.parts.split(",")
    values = parse_assignments(arguments.assignments)
    name = f"glen-{arguments.set}-{arguments.split}"
    if {"figures", "search", "transfer"} & set(parts):
        index = fitted(values, corpus)
        found: dict[str, Any] = {"corpus": corpus.fingerprint(), "index": index.describe()["settings"]}
        if "figures" in parts:
            found["figures"] = figures(index, corpus, arguments.split)
        if "search" in parts:
            found["search"] = search_times(index, corpus, arguments.split) | {"machine": timing.machine()}
        if "transfer" in parts and arguments.to:
            found["transfer"] = {arguments.to: transfer(index, read(arguments.to, "test"))}
        timing.save(name, found)
    if "collision" in parts:
        timing.save(name, {"collision": collisions(values, corpus, arguments.split, arguments.short)})


def read(name: str, split: str) -> Corpus:
    corpus = callslip.load_corpus(Path(os.environ.get("CALLSLIP_DATA", "../shared/data")) / name)
    return held_out(corpus) if split == "dev" and "dev" not in corpus.judgements else corpus


def fitted(values: dict[str, Any], corpus: Corpus) -> GLEN:
    index = make("glen", values)
    assert isinstance(index, GLEN)
    return index.fit(corpus)


def measured(index: GLEN, corpus: Corpus, split: str) -> dict[str, float]:
    report = callslip.evaluate(index, corpus, split=split, measures=MEASURES)
    return {measure: round(interval.mean, 4) for measure, interval in report.measures.items()}


def figures(index: GLEN, corpus: Corpus, split: str) -> dict[str, Any]:
    assert index.log is not None
    found: dict[str, Any] = {"fit_seconds": round(index.fit_seconds, 1), "codes": index.identifiers.unique}
    found["training_seconds"] = round(sum(record["seconds"] for record in index.log.records), 1)
    found["words"] = len(index.vocabulary)
    for label, order in ORDERS.items():
        found[label] = measured(index.adjust(order), corpus, split)
    index.adjust(ORDERS["codes, then identifier weights"])
    timing.show("figures", found)
    return found


def search_times(index: GLEN, corpus: Corpus, split: str) -> dict[str, Any]:
    """Milliseconds to write the codes of one query, encoded and read beforehand, and how many lists agree."""
    queries = list(corpus.split(split)[0].values())[:50]
    inputs = index.model.read(index.texts.encode([query.text for query in queries])).cpu().numpy()
    ways = {"exact": ("exact", 100), "beam 10": ("beam", 10), "beam 100": ("beam", 100), "beam 1000": ("beam", 1000)}

    def write(decoding: str, beam: int) -> list[np.ndarray]:
        index.adjust({"decoding": decoding})
        return [index.write(inputs[n : n + 1], beam)[0].codes[:10] for n in range(len(queries))]

    lists = {way: write(*how) for way, how in ways.items()}
    times = timing.interleaved({way: lambda how=how: write(*how) for way, how in ways.items()}, rounds=5, warm_up=1)
    index.adjust({"decoding": "exact"})
    found = {
        way: {
            "ms_per_query": round(times[way] / len(queries), 3),
            "same_first_ten": float(np.mean([np.array_equal(a, b) for a, b in zip(lists["exact"], some, strict=True)])),
        }
        for way, some in lists.items()
    }
    timing.show("search", found)
    return found


def transfer(index: GLEN, other: Corpus) -> dict[str, Any]:
    """The other set's documents coded by a model that was never trained on any of them."""
    index.delete(list(index.row_of()))
    index.add(other.documents)
    found = {label: measured(index.adjust(order), other, "test") for label, order in ORDERS.items()}
    timing.show("transfer", found)
    return found


def collisions(values: dict[str, Any], corpus: Corpus, split: str, length: int) -> dict[str, Any]:
    index = fitted(values | {"length": length}, corpus)
    _, codes = index.identifiers.in_row_order()
    _, bucket, size = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    shared, row_of = size[bucket.ravel()] > 1, corpus.rows()
    hit = {
        query_id: grades
        for query_id, grades in corpus.judgements[split].items()
        if any(grade > 0 and shared[row_of[doc_id]] for doc_id, grade in grades.items() if doc_id in row_of)
    }
    found: dict[str, Any] = {
        "length": length,
        "codes": index.identifiers.unique,
        "documents": len(corpus),
        "training_seconds": round(sum(record["seconds"] for record in index.log.records), 1),  # type: ignore[union-attr]
    }
    for label, judgements in {"all": corpus.judgements[split], "colliding": hit}.items():
        some = dataclasses.replace(corpus, judgements={split: judgements})
        of = found[label] = {"questions": len(judgements)}
        report = callslip.evaluate(index, some, split=split, measures=["nDCG@10", "R@1"])
        of["weights"] = {measure: round(interval.mean, 4) for measure, interval in report.measures.items()}
        assert report.shared_codes is not None
        of["random"] = {measure: round(row["expected"], 4) for measure, row in report.shared_codes.items()}
    timing.show("collision", found)
    return found


if __name__ == "__main__":
    main()
