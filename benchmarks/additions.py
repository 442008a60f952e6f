"""What the addition of one document costs methods other than the default, against making again what was made before.

    OMP_NUM_THREADS=1 python benchmarks/additions.py [--documents 1000000]

The parts that depend on the corpus, without a model or a store: the table of random codes of four tokens, its trie and
one beam search after every addition; random vectors; BM25 over random words. CPU milliseconds of one addition.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import machine, save

from callslip.decoders.writer import CodeWriter
from callslip.identifiers.table import Identifiers
from callslip.identifiers.vector_table import VectorTable
from callslip.search.beam import beam_search
from callslip.search.postings import Postings

LENGTH, WIDTH, DIM, WORDS = 4, 256, 128, 20


def spread(run: Callable[[int], Any], count: int) -> dict[str, float]:
    costs = []
    for number in range(count):
        began = time.process_time()
        run(number)
        costs.append(1000 * (time.process_time() - began))
    at = np.percentile(costs, [50, 99])
    return {"median": round(float(at[0]), 3), "p99": round(float(at[1]), 3)}


def of_codes(count: int, adds: int, folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made = Identifiers((f"d{n}" for n in range(count)), rng.integers(0, WIDTH, (count, LENGTH), dtype=np.int32))
    made.save(folder)
    del made
    table = Identifiers.load(folder, mmap=True, check=False)
    torch.manual_seed(0)
    model, query = CodeWriter(384, [WIDTH] * LENGTH).eval(), torch.randn(1, 384)
    codes = rng.integers(0, WIDTH, (20_000, 1, LENGTH), dtype=np.int32)

    def search(_: int) -> None:
        beam_search(model, query, table.trie(), 50)

    def add(number: int) -> None:
        nonlocal table
        table = table.with_later([f"new {len(table)}"], codes[number])

    def add_and_search(number: int) -> None:
        add(number)
        search(number)

    search(0)
    found = {"search": spread(search, adds), "add": spread(add, adds)}
    found["add, and the search after it"] = spread(add_and_search, adds)
    table = table.with_later([f"bulk {n}" for n in range(10_000)], codes[:10_000, 0])
    found["add, and the search after it, with 10,000 added"] = spread(add_and_search, adds)
    found["search with 10,000 added"] = spread(search, adds)
    table = Identifiers.load(folder, mmap=True, check=False)

    def again(number: int) -> None:
        table.with_added([f"new {number}"], codes[number]).trie()

    again(0)
    return found | {"merged, and the trie made again, as before": spread(again, 3)}


def of_vectors(count: int, adds: int, folder: Path) -> dict[str, Any]:
    made = np.random.default_rng(0).standard_normal((count, DIM), dtype=np.float32)
    VectorTable.of(made).save(folder)
    table, one = VectorTable.load(folder), made[:1].copy()

    def add(_: int) -> None:
        nonlocal table
        table = table.extended(one)

    return {"add": spread(add, adds), "concatenated, as before": spread(lambda _: np.concatenate([made, one]), 5)}


def of_words(count: int, adds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    texts = (" ".join(f"w{n}" for n in np.minimum(rng.zipf(1.3, WORDS), 50_000)) for _ in range(count))
    words = Postings(k1=0.9, b=0.4)
    began = time.process_time()
    words.index(texts)
    made = time.process_time() - began
    add = spread(lambda n: words.extend([f"zither{n} near the market of bonds"]), adds)
    return {"add": add, "all words indexed, as before, CPU s": round(made, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--texts", type=int, default=200_000, help="documents with words")
    parser.add_argument("--adds", type=int, default=200)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "CPU ms": {}}
    report |= {"documents": arguments.documents, "documents with words": arguments.texts}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        report["CPU ms"]["codes"] = of_codes(arguments.documents, arguments.adds, folder)
        report["CPU ms"]["vectors"] = of_vectors(arguments.documents, arguments.adds, folder)
    report["CPU ms"]["words"] = of_words(arguments.texts, arguments.adds)
    print(report, flush=True)
    save("additions", report)


if __name__ == "__main__":
    main()
