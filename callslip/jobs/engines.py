"""Engines: how the shards of a job reach workers. Here, one after the other in this process, or several processes;
`clusters` has Ray and Dask.

Any scheduler that can start a command is an engine, too: `callslip encode JOB --part i/n`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from callslip.errors import BadSetting, CallslipError
from callslip.jobs.plan import Job
from callslip.jobs.worker import Worker, said, standing

ENGINES = ("local", "ray", "dask")
TRIES = 3
"""How often a shard is tried before it is given up."""
Tell = Callable[[int], object]
"""Called with the number of each shard that is done."""


class Tries:
    """How often each shard was tried, and the errors of those that were given up, by number."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.failed: dict[int, str] = {}
        self._count: dict[int, int] = {}
        self._lock = threading.Lock()

    def again(self, number: int, error: str | None) -> bool:
        """Count a try of a shard and its error, None or empty for none; returns whether to try it again."""
        if not error:
            self.tell(number)
            return False
        with self._lock:
            self._count[number] = self._count.get(number, 0) + 1
            if self._count[number] < TRIES:
                return True
            self.failed[number] = f"failed {TRIES} times, last: {error}"
            return False


def encode_job(
    path: str | Path,
    *,
    part: tuple[int, int] | None = None,
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
    tell: Tell = lambda number: None,
) -> int:
    """Make the missing parts of a job, or of its share `part` (i, n), i from 1; returns how many were made."""
    _check_engine(engine, address, workers)
    job = Job.open(path)
    numbers = range(len(job.shards))
    if part is not None:
        i, n = part
        if not 1 <= i <= n:
            raise BadSetting(f"--part is {i}/{n}", "Give --part i/n with i from 1 to n, e.g. 1/8.")
        numbers = numbers[i - 1 :: n]
    missing = [number for number in numbers if standing(job, job.shards[number]) is None]
    if missing:
        tries = Tries(tell)
        _run(job, missing, tries, engine, address, workers)
        if tries.failed:
            failed = tries.failed
            raise CallslipError(
                "\n".join(f"{job.shards[n].name} ({job.shards[n].place}): {failed[n]}" for n in sorted(failed)),
                "All other shards of this run are done. Fix the cause, and run callslip encode again.",
            )
    return len(missing)


def _check_engine(engine: str, address: str | None, workers: int | None) -> None:
    if engine not in ENGINES:
        raise BadSetting(f"unknown engine {engine!r}", f"Engines: {', '.join(ENGINES)}.")
    if workers is not None and workers < 1:
        raise BadSetting(f"--workers is {workers}", "Use 1 or more.")
    if engine == "local" and address is not None:
        raise BadSetting(f"--address {address} without an engine", "Add --engine ray or --engine dask.")
    if address is not None and workers is not None:
        raise BadSetting(
            "--workers and --address exclude each other", "A cluster has its own workers: leave --workers out."
        )


def _run(job: Job, numbers: Sequence[int], tries: Tries, engine: str, address: str | None, workers: int | None) -> None:
    if engine == "local" and (workers or 1) == 1:
        _here(job, numbers, tries)
    elif engine == "local":
        _processes(job, numbers, tries, workers or 1)
    else:
        from callslip.jobs.clusters import on_dask, on_ray

        run = on_ray if engine == "ray" else on_dask
        run(job, numbers, tries, address, workers or os.cpu_count() or 1)


def _here(job: Job, numbers: Sequence[int], tries: Tries) -> None:
    """One shard after the other in this process."""
    worker = Worker(job)
    for number in numbers:
        again = True
        while again:
            try:
                worker.run(number)
                again = tries.again(number, None)
            except Exception as error:
                again = tries.again(number, said(error))


def _processes(job: Job, numbers: Sequence[int], tries: Tries, workers: int) -> None:
    """Shards in several processes. One that dies costs the shard that it has in hand, which another takes."""
    hands = _Hands(job, numbers, tries)
    threads = [threading.Thread(target=hands.work, daemon=True) for _ in range(min(workers, len(numbers)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:  # Ctrl-C
        hands.stop()


class _Hands:
    """The shards that are left, and the processes that work on them; one thread for each process."""

    def __init__(self, job: Job, numbers: Sequence[int], tries: Tries) -> None:
        self.job, self.tries = job, tries
        self.left: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in numbers:
            self.left.put(number)
        self._processes: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def work(self) -> None:
        """Give shards to a process until there are none left, and start another process when it dies."""
        process: subprocess.Popen[str] | None = None
        while True:
            try:
                number = self.left.get_nowait()
            except queue.Empty:
                break
            process = process or self._start()
            if process is None:
                return
            error = _ask(process, number)
            if process.poll() is not None:
                self._forget(process)
                process = None
            if self.tries.again(number, error):
                self.left.put(number)
        if process is not None:
            self._forget(process)

    def stop(self) -> None:
        """End the processes that are still there."""
        with self._lock:
            self._stopped = True
            processes = list(self._processes)
        for process in processes:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[str] | None:
        with self._lock:
            if self._stopped:
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "callslip.jobs.worker", str(self.job.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                # Threads that wait for each other on a busy core are slower than none.
                env={"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ},
            )
            self._processes.add(process)
            return process

    def _forget(self, process: subprocess.Popen[str]) -> None:
        """Let a process end: its input is closed."""
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        process.wait()
        with self._lock:
            self._processes.discard(process)


def _ask(process: subprocess.Popen[str], number: int) -> str | None:
    """Have a process make a part; returns what went wrong."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except OSError:
        answer = ""
    if not answer.endswith("\n"):
        return f"the worker died (exit code {process.wait()})"
    error = json.loads(answer).get("error")
    return None if error is None else str(error)
