"""What half precision costs: the same indexes with vectors in float32, float16 and int8.

    OMP_NUM_THREADS=1 python benchmarks/half_precision.py [--data scifact nfcorpus] [--methods …]

Each method is fitted once; then its vectors are replaced, and the test queries asked again. int8 has a scale a vector.
`moved` counts queries whose first ten hits are others, or in another order, than those by float32. The milliseconds of
CPU are medians of searches, one query at a time, and the vectors take turns.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from timing import machine, save

import callslip
from callslip.identifiers.vector_table import VectorTable
from callslip.methods import make
from callslip.search.nearest import inner_products

DATA = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
METHODS = {
    "dense": {},
    "memory": {},
    "dsi-semantic, ranking=sum": {"ranking": "sum"},
    "dsi-semantic, ranking=bucket": {"ranking": "bucket"},
}
SHORT = {"training_texts": ("document",)}
"""A short training: the documents themselves and the judged queries, without pseudo-queries."""
MEASURES = ("nDCG@10", "R@100")
HITS = 10


def tables(vectors: np.ndarray) -> dict[str, VectorTable]:
    scales = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-9) / 127
    return {
        "float32": VectorTable(vectors),
        "float16": VectorTable(vectors.astype(np.float16)),
        "int8": VectorTable((np.rint(vectors / scales) * scales).astype(np.float32)),
    }


def measured(index: Any, corpus: Any, vectors: np.ndarray) -> dict[str, Any]:
    found, firsts = {}, {}
    queries = list(corpus.split("test")[0].values())
    for kind, table in tables(vectors).items():
        use(index, table)
        report = callslip.evaluate(index, corpus, measures=MEASURES, codes_alone=False)
        firsts[kind] = [hits.doc_ids for hits in index.search_batch(queries, k=HITS)]
        moved = sum(one != other for one, other in zip(firsts[kind], firsts["float32"], strict=True))
        found[kind] = {name: round(report.measures[name].mean, 4) for name in MEASURES} | {"moved": moved}
    costs: dict[str, list[float]] = {kind: [] for kind in ("float32", "float16")}
    for query in queries[:100]:
        for kind, table in tables(vectors).items():
            if kind in costs:
                use(index, table)
                began = time.process_time()
                index.search(query, k=HITS)
                costs[kind].append(1000 * (time.process_time() - began))
    for kind, values in costs.items():
        found[kind]["search, CPU ms"] = round(float(np.median(values)), 2)
    return found


def exact_search(count: int = 200_000, dim: int = 384, rounds: int = 15) -> dict[str, float]:
    """CPU ms of comparing one query with many random vectors, as `dense` and `memory` do."""
    vectors = np.random.default_rng(0).standard_normal((count, dim), np.float32)
    held = {"float32": VectorTable(vectors), "float16": VectorTable.of(vectors)}
    costs: dict[str, list[float]] = {kind: [] for kind in held}
    for number in range(rounds):
        for kind, table in held.items():
            began = time.process_time()
            next(inner_products(vectors[number : number + 1], table))
            costs[kind].append(1000 * (time.process_time() - began))
    return {kind: round(float(np.median(values)), 1) for kind, values in costs.items()}


def use(index: Any, table: VectorTable) -> None:
    """Search these vectors."""
    if index.method == "dense":
        index.index(table)
    else:
        index.vectors = table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["scifact", "nfcorpus"])
    parser.add_argument("--methods", nargs="+", default=["dense", "memory", "dsi-semantic"])
    arguments = parser.parse_args()
    for name in arguments.data:
        corpus, fitted, report = callslip.load_corpus(DATA / name), dict[str, Any](), dict[str, Any]()
        for label, settings in METHODS.items():
            method = label.partition(",")[0]
            if method not in arguments.methods:
                continue
            coded = method == "dsi-semantic"
            if method not in fitted:
                fitted[method] = make(method, SHORT if coded else {}, preset="quick" if coded else None).fit(corpus)
            index: Any = fitted[method].adjust(settings) if settings else fitted[method]
            vectors = index.texts.documents(corpus, "encoding documents")
            report[f"{name}, {label}"] = measured(index, corpus, vectors)
            print(name, label, report[f"{name}, {label}"], flush=True)
            save("half-precision", {"machine": machine()} | report)
    if "dense" in arguments.methods:
        compared = exact_search()
        print(compared)
        save("half-precision", {"one query, 200,000 vectors, CPU ms": compared})


if __name__ == "__main__":
    main()
