"""A table of many random codes, sorted on disk and searched: CPU seconds, memory, bytes a code.

    OMP_NUM_THREADS=1 python benchmarks/external.py [--codes 100000000] [--folder FOLDER]

Codes of four levels of 256 tokens are made a block at a time and sorted by `callslip.identifiers.external`, in a
process of its own, whose memory is measured. Then our code writer with random weights searches the mapped trie: one
query, beam 50.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from timing import machine, save

LENGTH, WIDTH, BEAM, BLOCK = 4, 256, 50, 1_000_000


def blocks(count: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(count)
    for start in range(0, count, BLOCK):
        yield rng.integers(0, WIDTH, (min(BLOCK, count - start), LENGTH), dtype=np.int32)


def build(count: int, folder: Path) -> dict[str, float]:
    from callslip.identifiers.external import write_table
    from callslip.runtime.process import peak_memory

    began = time.process_time()
    write_table(blocks(count), folder, LENGTH, with_codes=False)
    return {"CPU seconds": round(time.process_time() - began, 1), "peak MB": round(peak_memory() / 2**20)}


def search(folder: Path, rounds: int) -> dict[str, float]:
    import torch

    from callslip.decoders.writer import CodeWriter
    from callslip.identifiers.trie import Trie
    from callslip.search.beam import beam_search

    trie, rows = Trie.load(folder, LENGTH), np.load(folder / "rows.npy", mmap_mode="r")
    torch.manual_seed(0)
    model, costs = CodeWriter(384, [WIDTH] * LENGTH).eval(), []
    for _ in range(rounds):
        query = torch.randn(1, 384)
        began = time.process_time()
        beams = beam_search(model, query, trie, BEAM)[0]
        _ = rows[trie.below[-1][beams.nodes]]
        costs.append(1000 * (time.process_time() - began))
    checked = 0
    for block in blocks(trie.count):  # the rows of the first block are where the trie has their codes
        for row in range(0, min(len(block), 2000)):
            inside = trie.documents_of(LENGTH - 1, trie.node_of(block[row].tolist()))
            checked += bool((rows[inside] == row).any())
        break
    at = np.percentile(costs, [50, 99])
    return {"CPU ms, median": round(float(at[0]), 2), "CPU ms, p99": round(float(at[1]), 2), "codes found": checked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codes", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, help="where the table is written; it is removed")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", choices=["build", "search"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only == "build":
        print(json.dumps(build(arguments.codes, arguments.folder)))
        return
    if arguments.only == "search":
        print(json.dumps(search(arguments.folder, arguments.rounds)))
        return
    folder = Path(tempfile.mkdtemp(prefix="external-", dir=arguments.folder))
    report = {"machine": machine(), "codes": arguments.codes}
    try:
        for only in ("build", "search"):
            command = [sys.executable, __file__, "--only", only, "--codes", str(arguments.codes)]
            command += ["--folder", str(folder), "--rounds", str(arguments.rounds)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            report[only] = json.loads(said.splitlines()[-1])
            print(only, report[only], flush=True)
        size = sum(path.stat().st_size for path in folder.iterdir())
        report["bytes a code"] = round(size / arguments.codes, 2)
    finally:
        shutil.rmtree(folder)
    save("external", report)


if __name__ == "__main__":
    main()
