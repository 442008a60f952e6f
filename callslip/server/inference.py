"""The inference thread, which runs the model for all requests: a bounded queue, micro-batches, deadlines, fairness.

When the thread is free, all queued searches with the same parameters are batched; no request waits for a batch to fill.
A batch is aborted at the next level if all its clients have disconnected or its deadlines have passed.

Clients are scheduled by the time the thread has spent on them (start-time fair queueing): however much one client
requests, another's search waits only for the current batch, not for the queue. When the queue is full, a client with
fewer queued queries displaces the latest request of a client with more.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from callslip.corpus.documents import Query
from callslip.errors import BadSetting, CallslipError
from callslip.filters.filter import Filter
from callslip.index.retriever import Retriever
from callslip.search.hits import Hits
from callslip.search.observer import watched
from callslip.server.errors import Busy, TooLate
from callslip.server.limits import Limits


@dataclass(frozen=True)
class Asked:
    """Parameters of a search; searches with equal parameters are batched."""

    index: str
    k: int
    beam: int | None
    explain: bool
    keep_history: bool = False


@dataclass(eq=False)
class Job:
    """A queued request: queries to search, or any other work (`call`) for the inference thread."""

    deadline: float
    """Deadline, by the monotonic clock."""
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    asked: Asked | None = None
    queries: Sequence[Query] = ()
    filter: Filter | None = None
    call: Callable[[], Any] | None = None
    client: str = ""
    """The client that is charged for the job."""
    left: bool = False
    """Whether the client has disconnected."""
    since: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        return max(1, len(self.queries))

    @property
    def over(self) -> bool:
        return self.left or time.monotonic() > self.deadline

    def settle(self, result: Any = None, error: BaseException | None = None) -> None:
        """Deliver the result to the waiting task, from any thread."""

        def deliver() -> None:
            if not self.answer.done():
                if error is None:
                    self.answer.set_result(result)
                else:
                    self.answer.set_exception(error)

        with suppress(RuntimeError):  # the event loop may be closed: then no task is waiting
            self.loop.call_soon_threadsafe(deliver)


class Inference:
    """The queue, and the thread that processes it."""

    def __init__(
        self,
        retriever_of: Callable[[str], Retriever],
        limits: Limits,
        *,
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self.retriever_of, self.limits, self.on_batch = retriever_of, limits, on_batch
        self._waiting: deque[Job] = deque()
        self._queued = 0
        self._pace = 0.0  # recent seconds per query
        self._clock = 0.0  # virtual time: seconds of work of the client served last
        self._spent: dict[str, float] = {}  # virtual time of every client that is ahead of the clock
        self._condition = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="callslip-inference", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Number of queued queries."""
        return self._queued

    def full(self, client: str = "") -> bool:
        """Whether another query of this client would not fit into the queue, or would wait for half of its timeout; it
        should then be rejected."""
        with self._condition:
            return self._is_full(client)

    def _is_full(self, client: str, more: int = 1) -> bool:
        waiting = self._by_client()
        own = waiting.get(client, 0)
        if self._queued + more > self.limits.queue and own + more >= max(waiting.values(), default=0):
            return True
        # Clients are served in turn, so the others are served as often as this one before its last query.
        ahead = own + sum(min(count, own + 1) for other, count in waiting.items() if other != client)
        return ahead * self._pace > self.limits.deadline / 2

    def _by_client(self) -> dict[str, int]:
        """Number of queued queries by client."""
        found: dict[str, int] = {}
        for job in self._waiting:
            found[job.client] = found.get(job.client, 0) + job.size
        return found

    def stop(self) -> None:
        """Fail all queued requests, and stop the thread."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._thread.join(timeout=30)

    def put(
        self,
        asked: Asked | None = None,
        queries: Sequence[Query] = (),
        filter: Filter | None = None,
        call: Callable[[], Any] | None = None,
        client: str = "",
    ) -> Job:
        """Queue work for the running event loop; raises `Busy` if the queue is full. Await the job's `answer`."""
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + self.limits.deadline
        job = Job(deadline, loop.create_future(), loop, asked, queries, filter, call, client)
        with self._condition:
            # An empty queue accepts one request of any size.
            if self._stopping or (self._queued and self._is_full(client, job.size)):
                raise Busy
            while self._queued and self._queued + job.size > self.limits.queue:
                counts = self._by_client()
                greedy = max(counts, key=lambda one: counts[one])
                latest = next(other for other in reversed(self._waiting) if other.client == greedy)
                self._drop(latest).settle(error=Busy())
            self._waiting.append(job)
            self._queued += job.size
            self._condition.notify()
        return job

    def _run(self) -> None:
        while batch := self._next():
            began = time.monotonic()
            try:
                self._answer(batch)
            except BaseException as error:  # the thread must survive any request
                for job in batch:
                    job.settle(error=error)
            size, took = sum(job.size for job in batch), time.monotonic() - began
            self._charge(batch, took / size)
            self._pace += 0.2 * (took / size - self._pace)
            self.on_batch(size, took)

    def _charge(self, batch: list[Job], seconds: float) -> None:
        """Charge the time of a batch to its clients, by query."""
        with self._condition:
            for job in batch:
                self._spent[job.client] = self._spent.get(job.client, self._clock) + seconds * job.size
            self._spent = {client: spent for client, spent in self._spent.items() if spent > self._clock}

    def _next(self) -> list[Job]:
        """The next batch: the oldest job of the client whose turn it is, and queued jobs with the same parameters;
        empty when the thread should stop."""
        with self._condition:
            while True:
                for job in [job for job in self._waiting if job.over]:
                    self._drop(job).settle(error=TooLate())
                if self._stopping:
                    for job in list(self._waiting):
                        self._drop(job).settle(error=Busy())
                    return []
                if self._waiting:
                    break
                self._condition.wait()
            first = min(self._waiting, key=lambda job: self._spent.get(job.client, self._clock))
            self._clock = max(self._clock, self._spent.get(first.client, self._clock))
            batch = [self._drop(first)]
            if batch[0].asked is None:
                return batch
            room = self.limits.batch - batch[0].size
            for job in list(self._waiting):
                if room <= 0:
                    break
                if job.asked == batch[0].asked and job.size <= room and not job.over:
                    batch.append(self._drop(job))
                    room -= job.size
            return batch

    def _drop(self, job: Job) -> Job:
        self._waiting.remove(job)
        self._queued -= job.size
        return job

    def _answer(self, batch: list[Job]) -> None:
        with watched(_until_over(batch)):
            try:
                results = self._searched(batch)
            except TooLate as error:
                for job in batch:
                    job.settle(error=error)
                return
            except CallslipError as error:
                if len(batch) == 1:
                    batch[0].settle(error=error)
                    return
                for job in batch:  # one job is invalid; run each alone, so that the others succeed
                    self._answer([job])
                return
        for job, result in zip(batch, results, strict=True):
            job.settle(result) if not job.over else job.settle(error=TooLate())

    def _searched(self, batch: list[Job]) -> list[Any]:
        first = batch[0]
        if first.call is not None:
            return [first.call()]
        asked = first.asked
        assert asked is not None
        retriever = self.retriever_of(asked.index)
        queries = [query for job in batch for query in job.queries]
        filters = [job.filter for job in batch for _ in job.queries]
        some = filters if any(one is not None for one in filters) else None
        with with_beam(retriever, asked.beam):
            found: list[Hits] = retriever.search_batch(
                queries, asked.k, some, asked.explain, keep_history=asked.keep_history
            )
        results, start = [], 0
        for job in batch:
            results.append(found[start : start + job.size])
            start += job.size
        return results


def _until_over(batch: list[Job]) -> Callable[..., None]:
    """An observer that aborts the search when no client waits for it any more."""

    def watch(level: int, nodes: Any, totals: Any) -> None:
        if all(job.over for job in batch):
            raise TooLate

    return watch


@contextmanager
def with_beam(retriever: Retriever, beam: int | None) -> Iterator[None]:
    """Context manager that changes the beam size. Only for the inference thread."""
    if beam is None:
        yield
        return
    if "beam" not in retriever.search_settings:
        raise BadSetting(f"{retriever.method} has no beam", "Leave it out.")
    before = retriever.settings
    retriever.settings = replace(before, beam=beam)
    try:
        yield
    finally:
        retriever.settings = before
