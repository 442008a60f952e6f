"""What a paper's method adds to the similarity of query and code: the tied start, by codes alone, beside every control.

    OMP_NUM_THREADS=1 python benchmarks/tied_start.py scifact [--methods dsi-semantic,…] [--seeds 0]

For each method, one short fit (preset `quick`, judged queries a third as many as pseudo-queries) with `start=tied`, and
three figures of it on the test questions, all without float vectors:

- tied: the index as it is, with the trust that held-out training queries decided;
- beginning: the same with trust 0, which is the similarity of query and reconstructed document;
- without: the same model without the start, by its codes alone (documents of a code in random order, on average).

`dsi-random` says what a model adds to codes that mean nothing. Controls: BM25, dense, hybrid, memory. On SciFact also
without questions that have a twin among the training claims (see twins.py). Nothing is chosen on test questions.
Figures go to `results/tied-start.json`, one entry for each set, method and seed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from twins import groups

import callslip
from callslip.corpus.documents import Corpus
from callslip.evaluation.significance import paired_test

DATA = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
RESULTS = Path(__file__).parent / "results" / "tied-start.json"
MEASURE = "nDCG@10"
CONTROLS: dict[str, dict[str, Any]] = {"bm25": {"k1": 1.2, "b": 0.75}, "dense": {}, "hybrid": {}, "memory": {}}
METHODS = "dsi-random,dsi-semantic,genret,asi++,uri"
SHORT = {"query_repeat": None, "start": "tied", "ranking": "sum"}


def means(values: dict[str, float], rest: list[str] | None) -> dict[str, float]:
    """The mean, and that of the questions without a twin."""
    found = {MEASURE: round(float(np.mean(list(values.values()))), 4)}
    return found if rest is None else found | {"without_twins": round(float(np.mean([values[q] for q in rest])), 4)}


def measured(index: Any, corpus: Corpus) -> dict[str, float]:
    return callslip.evaluate(index, corpus, measures=[MEASURE], codes_alone=False).per_query[MEASURE]


def by_codes(index: Any, corpus: Corpus, rest: list[str] | None) -> dict[str, float]:
    """The expected figure of codes alone, by the report of the evaluation."""
    found = {MEASURE: round(callslip.evaluate(index, corpus, measures=[MEASURE]).codes_alone[MEASURE].mean, 4)}
    if rest is not None:
        some = replace(corpus, judgements={"test": {q: corpus.judgements["test"][q] for q in rest}})
        part = callslip.evaluate(index, some, measures=[MEASURE]).codes_alone[MEASURE].mean
        found["without_twins"] = round(part, 4)
    return found


def one_method(name: str, seed: int, corpus: Corpus, vectors: np.ndarray, rest: list[str] | None) -> dict[str, Any]:
    began = time.process_time()
    index: Any = callslip.fit(corpus, name, preset="quick", settings=SHORT | {"seed": seed})
    record = {key: value for key, value in index.log.records[-1].items() if key not in ("phase", "epoch", "seconds")}
    result: dict[str, Any] = {"fit_cpu_seconds": round(time.process_time() - began), "held_out": record}
    result["codes"] = {"unique": index.identifiers.unique, "length": index.identifiers.length}
    start, asked = index.reader.start, list(corpus.judgements["test"])
    values = measured(index, corpus)
    result["tied"] = means(values, rest)
    index.reader.start = replace(start, trust=0.0)
    beginning = measured(index, corpus)
    result["beginning"] = means(beginning, rest)
    test = paired_test([beginning[q] for q in asked], [values[q] for q in asked])
    result["gain"] = {"difference": round(test.difference, 4), "p": round(test.p, 4)}
    index.reader.start, index.vectors = None, vectors  # `share` also ranks inside buckets, which codes alone leave out
    result["without"] = by_codes(index, corpus, rest)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", default="0")
    arguments = parser.parse_args()
    corpus = callslip.load_corpus(DATA / arguments.set)
    asked = list(corpus.judgements["test"])
    rest = None
    if arguments.set == "scifact":
        rest = [qid for qid, has in zip(asked, groups(corpus, asked)[0], strict=True) if not has]
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    mine = kept.setdefault(arguments.set, {"documents": len(corpus), "questions": len(asked)})
    dense: Any = None
    for name, settings in CONTROLS.items():
        if name in mine and name != "dense":
            continue
        index = callslip.fit(corpus, name, settings=settings)
        dense = index if name == "dense" else dense
        mine[name] = means(measured(index, corpus), rest)
        print(name, mine[name], flush=True)
    for name in filter(None, arguments.methods.split(",")):
        for seed in arguments.seeds.split(","):
            mine[f"{name} {seed}"] = one_method(name, int(seed), corpus, dense.vectors, rest)
            print(name, seed, json.dumps(mine[f"{name} {seed}"]), flush=True)
            RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
