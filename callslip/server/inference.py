"""One thread that runs the model, for all requests: a bounded queue, micro-batches, deadlines, fair turns.

Whatever waits when the thread is free is searched together, as far as it asks alike; nothing ever waits for company. A
batch that nobody waits for any more, because its clients left or its deadlines passed, ends at the next level.

Clients take turns by the time that the thread has spent on them (start-time fair queueing): however much one of them
asks for, another's search waits for the batch under way and not for the queue. When the queue is full, a client with
less in it than another takes the place of the other's latest request.
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
    client: str = ""
    """Whose turn it uses."""
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
        self._clock = 0.0  # seconds of work, as far as the client served last had come
        self._spent: dict[str, float] = {}  # the same for every client that is ahead of the clock
        self._condition = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="callslip-inference", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Queries that wait."""
        return self._queued

    def full(self, client: str = "") -> bool:
        """Whether one more of this client would find no room, or would wait for half its time: then it had better come
        back."""
        with self._condition:
            return self._is_full(client)

    def _is_full(self, client: str, more: int = 1) -> bool:
        waiting = self._by_client()
        own = waiting.get(client, 0)
        if self._queued + more > self.limits.queue and own + more >= max(waiting.values(), default=0):
            return True
        # By turns, others are served as often as this client before it is its last one's turn.
        ahead = own + sum(min(count, own + 1) for other, count in waiting.items() if other != client)
        return ahead * self._pace > self.limits.deadline / 2

    def _by_client(self) -> dict[str, int]:
        """Queries that wait, by client."""
        found: dict[str, int] = {}
        for job in self._waiting:
            found[job.client] = found.get(job.client, 0) + job.size
        return found

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
        client: str = "",
    ) -> Job:
        """Queue work for the running event loop; `Busy` if there is no room. Await its `answer`."""
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + self.limits.deadline
        job = Job(deadline, loop.create_future(), loop, asked, queries, filter, call, client)
        with self._condition:
            # An empty queue takes one request of any size.
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
            except BaseException as error:  # the thread must live, whatever a request does
                for job in batch:
                    job.settle(error=error)
            size, took = sum(job.size for job in batch), time.monotonic() - began
            self._charge(batch, took / size)
            self._pace += 0.2 * (took / size - self._pace)
            self.on_batch(size, took)

    def _charge(self, batch: list[Job], seconds: float) -> None:
        """Count the time of each query of a batch to its client."""
        with self._condition:
            for job in batch:
                self._spent[job.client] = self._spent.get(job.client, self._clock) + seconds * job.size
            self._spent = {client: spent for client, spent in self._spent.items() if spent > self._clock}

    def _next(self) -> list[Job]:
        """The oldest job of the client whose turn it is, and all that wait and ask alike, up to a batch; nothing when
        it is time to stop."""
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
