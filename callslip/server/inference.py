"""One thread that runs the model, for all requests: a bounded queue, micro-batches, deadlines.

Whatever waits when the thread is free is searched together, as far as it asks alike; nothing ever waits for company. A
batch that nobody waits for any more, because its clients left or its deadlines passed, ends at the next level.
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
    """What a search asks for; searches that are equal here are made together."""

    index: str
    k: int
    beam: int | None
    explain: bool


@dataclass(eq=False)
class Job:
    """A request that waits for the model: queries to search, or any other work (`call`) that needs it."""

    deadline: float
    """By the monotonic clock."""
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    asked: Asked | None = None
    queries: Sequence[Query] = ()
    filter: Filter | None = None
    call: Callable[[], Any] | None = None
    left: bool = False
    """Whether the client went away."""
    since: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        return max(1, len(self.queries))

    @property
    def over(self) -> bool:
        return self.left or time.monotonic() > self.deadline

    def settle(self, result: Any = None, error: BaseException | None = None) -> None:
        """Hand the answer to the task that waits for it, from whatever thread."""

        def deliver() -> None:
            if not self.answer.done():
                if error is None:
                    self.answer.set_result(result)
                else:
                    self.answer.set_exception(error)

        with suppress(RuntimeError):  # the server may be gone: then nobody waits
            self.loop.call_soon_threadsafe(deliver)


class Inference:
    """The queue, and the thread at its end."""

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
        self._pace = 0.0  # seconds that a query took lately
        self._condition = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="callslip-inference", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Queries that wait."""
        return self._queued

    @property
    def full(self) -> bool:
        """Whether one more would find no room, or would wait for half its time: then it had better come back."""
        return self._queued >= self.limits.queue or self._queued * self._pace > self.limits.deadline / 2

    def stop(self) -> None:
        """Answer what waits with an error, and end the thread."""
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
    ) -> Job:
        """Queue work for the running event loop; `Busy` if there is no room. Await its `answer`."""
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + self.limits.deadline
        job = Job(deadline, loop.create_future(), loop, asked, queries, filter, call)
        with self._condition:
            # An empty queue takes one request of any size.
            if self._stopping or (self._queued and (self.full or self._queued + job.size > self.limits.queue)):
                raise Busy
            self._waiting.append(job)
            self._queued += job.size
            self._condition.notify()
        return job

    def _run(self) -> None:
        while batch := self._next():
            began = time.monotonic()
            try:
                self._answer(batch)
            except BaseException as error:  # the thread must live, whatever a request does
                for job in batch:
                    job.settle(error=error)
            size, took = sum(job.size for job in batch), time.monotonic() - began
            self._pace += 0.2 * (took / size - self._pace)
            self.on_batch(size, took)

    def _next(self) -> list[Job]:
        """The oldest job, and all that wait and ask alike, up to a batch; nothing when it is time to stop."""
        with self._condition:
            while True:
                while self._waiting and self._waiting[0].over:
                    self._drop(self._waiting[0]).settle(error=TooLate())
                if self._stopping:
                    for job in list(self._waiting):
                        self._drop(job).settle(error=Busy())
                    return []
                if self._waiting:
                    break
                self._condition.wait()
            batch = [self._drop(self._waiting[0])]
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
                for job in batch:  # one of them asks for what cannot be; the others shall not suffer
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
            found: list[Hits] = retriever.search_batch(queries, asked.k, some, asked.explain)
        results, start = [], 0
        for job in batch:
            results.append(found[start : start + job.size])
            start += job.size
        return results


def _until_over(batch: list[Job]) -> Callable[..., None]:
    """A watch that ends the search when nobody waits for it any more."""

    def watch(level: int, nodes: Any, totals: Any) -> None:
        if all(job.over for job in batch):
            raise TooLate

    return watch


@contextmanager
def with_beam(retriever: Retriever, beam: int | None) -> Iterator[None]:
    """Search with another beam for a while. Only the thread that searches may do so."""
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
