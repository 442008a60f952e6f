"""How search time, memory and opening time grow with the number of codes, at a fixed model.

    OMP_NUM_THREADS=1 python benchmarks/scale.py [--largest 10000000]

Random codes of four levels of 256 tokens; our code writer with random weights; one query, beam 50. All sizes are
searched in turns within one run.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import interleaved, machine, save, show

from callslip.decoders.writer import CodeWriter
from callslip.identifiers.trie import Trie
from callslip.runtime import durable
from callslip.search.beam import beam_search

LENGTH, WIDTH, BEAM = 4, 256, 50


def build(count: int, folder: Path) -> dict[str, Any]:
    """Write the arrays that a search reads: the trie, and for every sorted position the document's row."""
    codes = np.random.default_rng(count).integers(0, WIDTH, (count, LENGTH), dtype=np.int32)
    began = time.perf_counter()
    rows = np.lexsort(codes.T[::-1])
    trie = Trie.from_sorted(codes[rows])
    built = time.perf_counter() - began
    folder.mkdir()
    trie.save(folder)
    durable.replace(folder / "rows.npy", durable.array(rows.astype(np.int32)))
    return {
        "codes": count,
        "different codes": trie.node_counts[-1],
        "bytes a document": round((trie.nbytes + 4 * count) / count, 2),
        "seconds to sort and build": round(built, 2),
    }


def open_index(folder: Path) -> tuple[Trie, np.ndarray]:
    return Trie.load(folder, LENGTH), np.asarray(np.load(folder / "rows.npy", mmap_mode="r"))


def opening_seconds(folder: Path) -> dict[str, float]:
    """Opening and the first search of a fresh process: nothing is warm but the disk's cache."""
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[2]); import scale; from pathlib import Path;"
        "model, query = scale.model_and_query(); import callslip.search.trees;"
        "began = time.perf_counter(); trie, rows = scale.open_index(Path(sys.argv[1])); opened = time.perf_counter();"
        "beams = scale.beam_search(model, query, trie, scale.BEAM)[0]; rows[trie.below[-1][beams.nodes]];"
        "print(opened - began, time.perf_counter() - opened)"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(Path(__file__).parent)],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    return {"seconds to open": round(float(out[0]), 4), "seconds of the first search": round(float(out[1]), 3)}


def model_and_query() -> tuple[CodeWriter, torch.Tensor]:
    torch.manual_seed(0)
    return CodeWriter(384, [WIDTH] * LENGTH).eval(), torch.randn(1, 384)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    where, model_query = Path(tempfile.mkdtemp()), model_and_query()
    model, query = model_query
    sizes = [count for count in (10_000, 100_000, 1_000_000, 10_000_000) if count <= arguments.largest]
    results: dict[str, Any] = {"machine": machine()}
    for count in sizes:
        results[str(count)] = build(count, where / str(count)) | opening_seconds(where / str(count))
    tries = {count: open_index(where / str(count))[0] for count in sizes}
    rare = {count: masked(trie) for count, trie in tries.items()}
    functions = {f"{count}": lambda trie=trie: beam_search(model, query, trie, BEAM) for count, trie in tries.items()}
    functions |= {
        f"{count} filtered": lambda count=count: beam_search(model, query, tries[count], BEAM, [rare[count]])
        for count in sizes
    }
    medians = interleaved(functions, arguments.rounds)
    for count in sizes:
        figures = results[str(count)]
        figures["ms a search"] = medians[str(count)]
        figures["time / time at the smallest"] = round(medians[str(count)] / medians[str(sizes[0])], 3)
        figures["time under a mask that keeps 1 % / without"] = round(
            medians[f"{count} filtered"] / medians[str(count)], 3
        )
        figures["ms to make that mask"] = interleaved({"mask": lambda count=count: masked(tries[count])}, 3)["mask"]
        show(f"{count:,} codes", figures)
    results["peak memory of this process, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    save("scale", results)
    shutil.rmtree(where)


def masked(trie: Trie) -> list[np.ndarray]:
    """Nodes above one document in a hundred."""
    return trie.live(np.random.default_rng(1).random(trie.count) < 0.01)


if __name__ == "__main__":
    main()
