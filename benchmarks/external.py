"""Codes of many documents, sorted on disk as `callslip build` does: CPU seconds, memory, bytes a code, and a search.

    OMP_NUM_THREADS=1 python benchmarks/external.py [--codes 100000000 10000000] [--tokens 16 96]

Random codes of so many tokens, one a document, are made a shard at a time and become `Entries`, in a process of its
own. Then random queries read the documents of the best prefixes in the mapped table, as `tied-residual` does: a
thousand candidates. TMPDIR is where the files without names are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from timing import machine, save

from callslip.index.entries import Block, Entries

BLOCK, TREE, CANDIDATES, CHECKED = 100_000, 2, 1000, 2000


def blocks(count: int, tokens: int) -> Iterator[Block]:
    rng = np.random.default_rng(count)
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        yield rng.integers(0, 256, (size, tokens), dtype=np.uint8), np.arange(start, start + size), True


def measured(count: int, tokens: int, rounds: int) -> dict[str, float]:
    from callslip.runtime.process import peak_memory

    began = time.process_time()
    for codes, *_ in blocks(count, tokens):
        _ = codes.astype(np.float32).sum(axis=1)
    made = time.process_time() - began  # what the codes and their scales cost, which are not part of the sort
    began = time.process_time()
    found = blocks(count, tokens)
    entries = Entries.of_blocks(found, tokens, TREE, lambda codes: 1 / codes.astype(np.float32).sum(axis=1))
    spent, peak = time.process_time() - began - made, peak_memory() or 0
    layer, rng, costs = entries.layers[0], np.random.default_rng(0), []
    for _ in range(rounds):
        table = rng.standard_normal((tokens, 256), np.float32)
        began = time.process_time()
        entries.best_of_rows(opened := entries.open(table, CANDIDATES), entries.scores(table, opened))
        costs.append(1000 * (time.process_time() - began))
    checked = 0
    for codes, rows, _ in blocks(count, tokens):
        for code, row in zip(codes[:CHECKED], rows[:CHECKED].tolist(), strict=True):
            key = np.uint16(int(code[0]) << 8 | int(code[1]))
            here = slice(*(int(np.searchsorted(layer.keys, key, side=side)) for side in ("left", "right")))
            at = np.flatnonzero(layer.owners[here] == row)
            checked += len(at) == 1 and bool((layer.codes[here][at[0]] == code).all())
        break
    held = (layer.codes, layer.scales, layer.owners)
    return {
        "CPU seconds": round(spent, 1),
        "peak MB": round(peak / 2**20),
        "bytes a code": round(sum(array.nbytes for array in held) / count, 2),
        "search, CPU ms, median": round(float(np.median(costs)), 2),
        "search, CPU ms, p99": round(float(np.percentile(costs, 99)), 2),
        "codes looked up": min(CHECKED, count),
        "codes found": checked,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codes", type=int, nargs="+", default=[100_000_000, 10_000_000])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 96])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    both = list(zip(arguments.codes, arguments.tokens, strict=True))
    if arguments.one:
        print(json.dumps(measured(*both[0], arguments.rounds)))
        return
    report = {}
    for count, tokens in both:
        command = [sys.executable, __file__, "--one", "--rounds", str(arguments.rounds)]
        command += ["--codes", str(count), "--tokens", str(tokens)]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        report[f"{count} codes of {tokens} tokens"] = json.loads(said.splitlines()[-1])
        print(count, tokens, said, flush=True)
    save("external", {"machine": machine()} | report)


if __name__ == "__main__":
    main()
