"""Clusters as engines: the shards of a job as tasks of Ray (extra `ray`) or Dask (extra `dask`).

A task is the path of the job and the number of a shard; its answer is an error in words, empty for none. Both libraries
pickle what they send, so nothing else is sent: the documents go from the job folder to the worker and back by files.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from callslip.errors import CallslipError, MissingExtra
from callslip.jobs.engines import Tries
from callslip.jobs.plan import PLAN, Job
from callslip.jobs.worker import Worker, said

WAIT = 30
"""Seconds to wait for a Dask scheduler."""

_lock = threading.Lock()
_loaded: dict[str, Worker] = {}
"""The worker of this process, by the hash of its plan: one is loaded for many shards."""


def make_part(path: str, number: int) -> str:
    """The task: make one part of a job, on whichever node this runs. Returns what went wrong, or nothing."""
    try:
        with _lock:  # a Dask worker may have several threads, and a model is not for two of them
            plan = hashlib.sha256((Path(path) / PLAN).read_bytes()).hexdigest()
            if f"{path} {plan}" not in _loaded:
                _loaded.clear()
                _loaded[f"{path} {plan}"] = Worker(Job.open(path))
            _loaded[f"{path} {plan}"].run(number)
        return ""
    except FileNotFoundError as error:
        return f"{error}; every node needs the job folder under the same path"
    except Exception as error:
        return said(error)


def on_ray(job: Job, numbers: Sequence[int], tries: Tries, address: str | None, workers: int) -> None:
    """Shards as Ray tasks. Without an address, Ray is started on this machine for as long as this takes."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtra("--engine ray", "ray") from None

    own: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="error", **own)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise _no_cluster("Ray", address, error) from None
    try:
        # A process or node that dies is an error of its shard, which counts as a try, as in the other engines.
        task, path = ray.remote(num_cpus=1, max_retries=0)(make_part), str(job.path.resolve())
        running = {task.remote(path, number): number for number in numbers}
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            number = running.pop(done)
            try:
                wrong = ray.get(done)
            except ray.exceptions.RayError as lost:
                wrong = f"the worker or its node died ({type(lost).__name__})"
            if tries.again(number, wrong):
                running[task.remote(path, number)] = number
    finally:
        ray.shutdown()


def on_dask(job: Job, numbers: Sequence[int], tries: Tries, address: str | None, workers: int) -> None:
    """Shards as tasks of a Dask scheduler. Without an address, workers are started on this machine."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise MissingExtra("--engine dask", "dask") from None

    own: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    try:
        client = Client(**own) if address is None else Client(address, timeout=WAIT)
    except (OSError, ValueError) as error:
        raise _no_cluster("Dask", address, error) from None
    with client:
        path, running = str(job.path.resolve()), {}

        def start(number: int) -> Any:
            # Not pure: a second try of a shard must not be answered with the first one's result.
            future = client.submit(make_part, path, number, pure=False)
            running[future.key] = number
            return future

        waiting = as_completed([start(number) for number in numbers])
        for future in waiting:
            number = running.pop(future.key)
            lost = None if future.status == "finished" else future.exception()
            wrong = future.result() if lost is None else f"the worker died ({type(lost).__name__})"
            if tries.again(number, wrong):
                waiting.add(start(number))


def _no_cluster(name: str, address: str | None, error: Exception) -> CallslipError:
    return CallslipError(
        f"no {name} cluster at {address or 'this machine'}: {said(error)}",
        "Check --address, or leave it out to start workers on this machine.",
    )
