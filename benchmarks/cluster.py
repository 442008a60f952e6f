"""Twelve shards on every engine while processes are killed: the bytes of all parts against those of the plain loop.

    OMP_NUM_THREADS=1 python benchmarks/cluster.py [--documents 1200]      needs the extras ray and dask

Documents are those of the standard library, encoded by the embedded encoder. Local: three processes; workers and the
driver get 20 random SIGKILLs, and a killed driver is started again. Ray: three nodes on this machine. The driver is
killed after the third part; the next one sees a node removed. Dask: the same with three workers, of which one is
killed. Times are not compared: all engines share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from timing import machine, save, show

from callslip import api
from callslip.corpus.demo import demo_corpus
from callslip.errors import CallslipError
from callslip.jobs import engines

SHARDS, KILLS = 12, 20


def planned(folder: Path, documents: int) -> Path:
    """A job of twelve shards."""
    file = folder / "corpus.jsonl"
    rows = [{"id": d.doc_id, "title": d.title, "text": d.text} for d in demo_corpus(documents)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = api.plan(file, folder / "job", shard_rows=-(-len(rows) // SHARDS))
    assert len(job.shards) == SHARDS, len(job.shards)
    return folder / "job"


def twin(job: Path, name: str) -> Path:
    copy = job.with_name(name)
    shutil.copytree(job, copy, ignore=lambda folder, names: names if folder.endswith("parts") else [])
    return copy


def parts(job: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((job / "parts").iterdir())}


def made(job: Path) -> int:
    return len(list((job / "parts").glob("*.json")))


def children(pid: int) -> list[int]:
    """Child processes, whichever thread started them."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(part) for part in file.read_text().split()]
    return found


def driver(job: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "callslip", "encode", str(job), *options]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def local(job: Path) -> dict[str, Any]:
    """Three processes, and twenty kills of workers and drivers. A job that ends before them loses some parts again."""
    rng, kills, drivers, reopened = random.Random(1), {"worker": 0, "driver": 0}, 0, 0
    while sum(kills.values()) < KILLS:
        if made(job) == SHARDS:
            for file in rng.sample(sorted((job / "parts").glob("*.json")), k=4):
                file.unlink()
            reopened += 4
        process, drivers = driver(job, "--workers", "3"), drivers + 1
        while process.poll() is None and sum(kills.values()) < KILLS:
            time.sleep(rng.uniform(0.5, 4.0))
            workers = children(process.pid)
            target = rng.choice([process.pid, *2 * workers])
            if process.poll() is None:
                os.kill(target, signal.SIGKILL)
                kills["driver" if target == process.pid else "worker"] += 1
        if sum(kills.values()) >= KILLS and process.poll() is None:
            process.kill()
        process.wait()
    api.encode(job, workers=3)
    return {"kills": kills, "drivers started": drivers, "parts removed to go on": reopened}


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Count the tries that ended in an error."""
    found: dict[str, int] = {}
    again = engines.Tries.again

    def counting(self: engines.Tries, number: int, error: str | None) -> bool:
        if error:
            found[error] = found.get(error, 0) + 1
        return again(self, number, error)

    engines.Tries.again = counting  # type: ignore[method-assign]
    try:
        yield found
    finally:
        engines.Tries.again = again  # type: ignore[method-assign]


def on_cluster(job: Path, engine: str, address: str, lose: Callable[[], None]) -> dict[str, Any]:
    """Kill the driver after the third part, then one node or worker after the fifth."""
    process = driver(job, "--engine", engine, "--address", address)
    while made(job) < 3 and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.wait()
    stood, lost = made(job), False

    def tell(number: int) -> None:
        nonlocal lost
        if made(job) >= 5 and not lost:
            lost = True
            lose()

    with counted() as errors:
        rest = api.encode(job, engine=engine, address=address, tell=tell)
    assert lost, "the job ended before anything was killed"
    return {"parts when the driver was killed": stood, "parts missing for the next": rest, "errors": errors}


def on_ray(job: Path) -> dict[str, Any]:
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=options | {"include_dashboard": False})
    try:
        nodes = [cluster.add_node(**options) for _ in range(2)]
        found = on_cluster(job, "ray", cluster.address, lambda: cluster.remove_node(nodes[0], allow_graceful=False))
        return found | {"nodes before": 3, "nodes after": len(cluster.list_all_nodes())}
    finally:
        cluster.shutdown()


def on_dask(job: Path) -> dict[str, Any]:
    from distributed import LocalCluster

    with LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster:
        return on_cluster(
            job, "dask", cluster.scheduler_address, lambda: os.kill(cluster.workers[0].pid, signal.SIGKILL)
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=1200)
    parser.add_argument("--engines", default="local,ray,dask")
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    run = {"local": local, "ray": on_ray, "dask": on_dask}
    with tempfile.TemporaryDirectory() as folder:
        job = planned(Path(folder), options.documents)
        loop = twin(job, "loop")
        api.encode(loop)
        expected = parts(loop)
        found: dict[str, Any] = {}
        for engine in options.engines.split(","):
            copy = twin(job, engine)
            found[engine] = run[engine](copy)
            made_here = parts(copy)
            same = sum(made_here.get(name) == whole for name, whole in expected.items())
            found[engine] |= {"files": len(made_here), "files equal to the loop's": same}
            show(engine, found[engine])
            if made_here != expected:
                raise CallslipError(f"{engine}: {same} of {len(expected)} files are equal")
    save("cluster", {"machine": machine(), "documents": options.documents, "shards": SHARDS} | found)


if __name__ == "__main__":
    main()
