"""A fit of a million short documents on one machine, and what a change costs there.

    OMP_NUM_THREADS=1 nice -n 5 python benchmarks/million.py [--sizes 100000 1000000] [--adds 200]

The documents are windows of twenty words of real texts (the BEIR sets in CALLSLIP_DATA, by default ../shared/data), the
vectors those of the `scratch` encoder, so that the figures are those of everything but an encoder. Each stage is a
process of its own: CPU seconds and peak memory are what the system counted for it. Wall times are reported only where
waiting is the question, as the machine may be busy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from timing import machine, save

DATA = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
SETS = ("fiqa", "scifact", "nfcorpus")
WORDS, STRIDE = 20, 7
ENCODER = "scratch:dim=128"
STAGES = ("plan", "encode", "build")


def texts() -> Iterator[str]:
    for name in SETS:
        with (DATA / name / "corpus.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def windows() -> Iterator[str]:
    """Overlapping windows of the texts; every text gives some, so that a part of them is like the whole."""
    for text in texts():
        words = text.split()
        for start in range(0, max(min(1, len(words)), len(words) - WORDS + 1), STRIDE):
            yield " ".join(words[start : start + WORDS])


def write_corpus(path: Path, count: int) -> int:
    """`count` documents, spread over all texts; returns the bytes of their texts."""
    available = sum(1 for _ in windows())
    if available < count:
        raise SystemExit(f"only {available:,} windows; use a smaller STRIDE")
    chosen, size = iter(np.linspace(0, available - 1, count).astype(int).tolist()), 0
    wanted, number = next(chosen), 0
    with path.open("w", encoding="utf-8") as file:
        for at, text in enumerate(windows()):
            if at != wanted:
                continue
            size += len(text.encode())
            file.write(json.dumps({"_id": f"w{number}", "text": text}, ensure_ascii=False) + "\n")
            wanted, number = next(chosen, None), number + 1
    return size


def stage(arguments: list[str]) -> None:
    """A command of callslip in this process; at the end its peak memory is printed. (What the system counts for a child
    includes the memory of the process that started it.)"""
    import runpy

    from callslip.runtime.process import peak_memory

    sys.argv = ["callslip", *arguments]
    try:
        runpy.run_module("callslip", run_name="__main__")
    except SystemExit as error:
        if error.code:
            raise
    print(peak_memory())


def run(*arguments: str) -> tuple[dict[str, Any], str]:
    """A process: CPU seconds, peak memory as it printed it last, and what it printed."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed")
    cpu = used.ru_utime + used.ru_stime
    return {"CPU seconds": round(cpu, 1)}, out


def sizes_of(index: Path, count: int, texts: int) -> dict[str, Any]:
    """Bytes a document of every file, of what is searched, and of what the store has beside the texts."""
    manifest = json.loads((index / "manifest.json").read_text())
    files = {name.partition("/")[2]: entry["bytes"] / count for name, entry in manifest["files"].items()}
    store = (index / manifest["store"]["file"]).stat().st_size
    return {
        "files": {name: round(size, 2) for name, size in sorted(files.items(), key=lambda item: -item[1])},
        "searched": round(sum(files.values()), 1),
        "store beside texts": round((store - texts) / count, 1),
        "texts": round(texts / count, 1),
    }


def measure(path: str, adds: int) -> dict[str, Any]:
    """Open an index, search it, add to it, and search it while another thread adds."""
    import callslip

    began = time.process_time()
    index = callslip.load(path)
    opened = time.process_time() - began
    queries = [" ".join(text.split()[:8]) for text in islice(windows(), 0, 40_000, 100)]
    held: list[float] = []
    changing = index.living.gate.changing

    def watched():
        from contextlib import contextmanager

        @contextmanager
        def block():
            with changing():
                began = time.thread_time()
                yield
                held.append(1000 * (time.thread_time() - began))

        return block()

    index.living.gate.changing = watched

    def search(some: list[str]) -> list[tuple[float, float]]:
        found = []
        for query in some:
            began, cpu = time.perf_counter(), time.thread_time()
            index.search(query)
            found.append((1000 * (time.perf_counter() - began), 1000 * (time.thread_time() - cpu)))
        return found

    search(queries[:20])
    alone = [cpu for _, cpu in search(queries[:200])]
    fresh = (
        callslip.Document(f"fresh {os.getpid()} {n}", f"A fresh zither{n} near the market of bonds")
        for n in range(10**6)
    )
    index.add([next(fresh)])  # the first also writes the log of the store
    costs = []
    for _ in range(adds):
        cpu = time.process_time()
        index.add([next(fresh)])
        costs.append(1000 * (time.process_time() - cpu))
    after = [cpu for _, cpu in search(queries[:200])]
    quiet, busy = [], []
    for block in range(10):  # in turns, so that a busy machine is busy for both
        some = queries[20 * block : 20 * block + 20]
        quiet += [wall for wall, _ in search(some)]
        over = threading.Event()

        def add(over: threading.Event = over) -> None:
            while not over.wait(0.05):
                index.add([next(fresh)])

        thread = threading.Thread(target=add)
        thread.start()
        busy += [wall for wall, _ in search(some)]
        over.set()
        thread.join()
    memory = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if "rss" in line.lower()
    )
    hits = [[(hit.doc_id, hit.score) for hit in index.search(query)] for query in queries[:20]]
    again = callslip.load(path)
    same = hits == [[(hit.doc_id, hit.score) for hit in again.search(query)] for query in queries[:20]]
    began = time.process_time()
    again.compact()
    compacted = time.process_time() - began
    folded = hits == [[(hit.doc_id, hit.score) for hit in again.search(query)] for query in queries[:20]]
    return {
        "CPU seconds to open": round(opened, 2),
        "search, CPU ms": spread(alone),
        "search after the adds, CPU ms": spread(after),
        "add of one document, CPU ms": spread(costs),
        "under the lock of an add, CPU ms": spread(held),
        "search, wall ms": spread(quiet),
        "search while adding, wall ms": spread(busy),
        "RSS MB": round(int(memory["VmRSS"].split()[0]) / 1024),
        "of it not mapped from files, MB": round(int(memory["RssAnon"].split()[0]) / 1024),
        "opened again: same hits": same,
        "compacted: same hits": folded,
        "CPU seconds to compact": round(compacted, 1),
        "added": adds,
    }


def spread(values: list[float]) -> dict[str, float]:
    at = np.percentile(values, [50, 95, 99])
    return {"median": round(float(at[0]), 2), "p95": round(float(at[1]), 2), "p99": round(float(at[2]), 2)}


def main() -> None:
    if sys.argv[1:2] == ["--stage"]:
        stage(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--adds", type=int, default=200)
    parser.add_argument("--measure", metavar="INDEX", help="only measure searches and additions of an index")
    parser.add_argument("--keep", type=Path, help="folder for the indexes, which are otherwise removed")
    parser.add_argument("--name", default="million", help="name of the file of results")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.adds)))
        return
    report: dict[str, Any] = {"machine": machine(), "encoder": ENCODER, "words a document": WORDS, "sizes": {}}
    for count in arguments.sizes:
        folder = Path(tempfile.mkdtemp(prefix="million-", dir=arguments.keep))
        try:
            corpus, job, index = folder / "corpus.jsonl", folder / "job", folder / "index"
            written = write_corpus(corpus, count)
            plan = ["--shard-rows", "50000", "--set", f"encoder={ENCODER}"]
            commands = {
                "plan": ["plan", str(corpus), "--out", str(job), *plan],
                "encode": ["encode", str(job)],
                "build": ["build", str(job), "--out", str(index)],
            }
            one: dict[str, Any] = {}
            for name, command in commands.items():
                cost, said = run(__file__, "--stage", *command)
                one[name] = cost | {"peak MB": round(int(said.split()[-1]) / 2**20)}
                print(name, one[name], flush=True)
            one["bytes a document"] = sizes_of(index, count, written)
            shutil.rmtree(job)
            _, said = run(__file__, "--measure", str(index), "--adds", str(arguments.adds))
            one["index"] = json.loads(said.splitlines()[-1])
            report["sizes"][f"{count}"] = one
            print(json.dumps(one, indent=1), flush=True)
        finally:
            if arguments.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
        report["growth"] = growth(report["sizes"])
        save(arguments.name, report)


def growth(sizes: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds of each stage against linear growth, and bytes of memory that a further document costs."""
    if len(sizes) < 2:
        return {}
    (small, one), *_, (large, other) = ((int(count), found) for count, found in sizes.items())
    ratio = large / small
    return {
        stage: {
            "times linear": round(other[stage]["CPU seconds"] / one[stage]["CPU seconds"] / ratio, 2),
            "bytes of memory a further document": round(
                (other[stage]["peak MB"] - one[stage]["peak MB"]) * 2**20 / (large - small)
            ),
        }
        for stage in STAGES
    }


if __name__ == "__main__":
    main()
