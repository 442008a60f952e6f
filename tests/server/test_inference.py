"""The model's thread: batches of what waits, a bounded queue, deadlines, clients that leave."""

from __future__ import annotations

import asyncio
import threading

import pytest

from callslip.corpus.documents import Query
from callslip.errors import BadSetting
from callslip.search import observer
from callslip.server.errors import Busy, TooLate
from callslip.server.inference import Asked, Inference
from callslip.server.limits import Limits


class Gated:
    """A retriever that waits for a sign before each search, and remembers what it was asked together."""

    search_settings = frozenset({"beam"})
    method = "gated"

    def __init__(self):
        self.go, self.began = threading.Semaphore(0), threading.Semaphore(0)
        self.batches = []

    def search_batch(self, queries, k, filter, explain, *, keep_history):
        self.began.release()
        assert self.go.acquire(timeout=10)
        watch = observer.OBSERVER.get()
        watch(0, None, None)
        if any(query.text == "wrong" for query in queries):
            raise BadSetting("wrong")
        self.batches.append([query.text for query in queries])
        return [[query.text] for query in queries]


@pytest.fixture
def gated():
    retriever = Gated()
    made = []

    def start(**limits):
        made.append(Inference(lambda name: retriever, Limits(**limits)))
        return made[-1]

    yield retriever, start
    for _ in range(100):
        retriever.go.release()
    for one in made:
        one.stop()


def ask(inference, text, k=1, **more):
    queries = [Query("0", one) for one in ([text] if isinstance(text, str) else text)]
    return inference.put(Asked("x", k, None, False), queries, **more)


def begun(retriever):
    assert retriever.began.acquire(timeout=10)


def test_what_waits_is_searched_together(gated):
    retriever, start = gated

    async def run():
        inference = start(batch=4)
        first = ask(inference, "a")
        await asyncio.to_thread(begun, retriever)
        rest = [ask(inference, text) for text in "bcdef"] + [ask(inference, "other", k=2)]
        for _ in range(4):
            retriever.go.release()
        assert await first.answer == [["a"]]
        assert [await job.answer for job in rest] == [[[text]] for text in [*"bcdef", "other"]]

    asyncio.run(run())
    assert retriever.batches == [["a"], ["b", "c", "d", "e"], ["f"], ["other"]]


def test_a_full_queue_refuses_and_recovers(gated):
    retriever, start = gated

    async def run():
        inference = start(queue=3)
        jobs = [ask(inference, "a")]
        await asyncio.to_thread(begun, retriever)
        jobs += [ask(inference, ["b", "c"]), ask(inference, "d")]
        assert inference.full and inference.queued == 3
        with pytest.raises(Busy):
            ask(inference, "e")
        for _ in range(3):
            retriever.go.release()
        assert [await job.answer for job in jobs] == [[["a"]], [["b"], ["c"]], [["d"]]]
        assert inference.queued == 0
        ask(inference, "e")

    asyncio.run(run())


def test_who_would_wait_too_long_is_refused_at_once(gated):
    """Sixty-four that wait are too many for a model that takes a second for each."""
    retriever, start = gated

    async def run():
        inference = start(queue=64, deadline=10.0)
        first = ask(inference, "a")
        await asyncio.to_thread(begun, retriever)
        inference._pace = 1.0
        waiting = [ask(inference, str(number)) for number in range(6)]
        assert inference.full()
        with pytest.raises(Busy):
            ask(inference, "one more")
        for _ in range(3):
            retriever.go.release()
        await first.answer
        assert [await job.answer for job in waiting] == [[[str(number)]] for number in range(6)]
        assert not inference.full() and inference._pace < 1.0

    asyncio.run(run())


def test_an_empty_queue_takes_a_request_of_any_size(gated):
    retriever, start = gated

    async def run():
        inference = start(queue=2)
        retriever.go.release()
        assert len(await ask(inference, list("abcdef")).answer) == 6

    asyncio.run(run())


def test_one_mistake_does_not_spoil_the_batch(gated):
    retriever, start = gated

    async def run():
        inference = start()
        first = ask(inference, "a")
        await asyncio.to_thread(begun, retriever)
        jobs = [ask(inference, text) for text in ("b", "wrong", "c")]
        for _ in range(10):
            retriever.go.release()
        await first.answer
        assert await jobs[0].answer == [["b"]] and await jobs[2].answer == [["c"]]
        with pytest.raises(BadSetting):
            await jobs[1].answer

    asyncio.run(run())


def test_deadlines_end_searches_between_levels_and_in_the_queue(gated):
    retriever, start = gated

    async def run():
        inference = start(deadline=0.05)
        late = ask(inference, "a")
        await asyncio.to_thread(begun, retriever)
        waiting = ask(inference, "b")
        await asyncio.sleep(0.1)
        retriever.go.release()
        for job in (late, waiting):
            with pytest.raises(TooLate):
                await job.answer

    asyncio.run(run())
    assert retriever.batches == []  # the first was ended by its watch, the second never began


def test_a_search_goes_on_while_one_client_of_its_batch_stays(gated):
    retriever, start = gated

    async def run():
        inference = start()
        first = ask(inference, "a")
        await asyncio.to_thread(begun, retriever)
        gone, stays = ask(inference, "b"), ask(inference, "c")
        retriever.go.release()
        await first.answer
        await asyncio.to_thread(begun, retriever)
        gone.left = True
        retriever.go.release()
        assert await stays.answer == [["c"]]
        alone = ask(inference, "d")
        await asyncio.to_thread(begun, retriever)
        alone.left = True
        retriever.go.release()
        with pytest.raises(TooLate):
            await alone.answer

    asyncio.run(run())
    assert retriever.batches == [["a"], ["b", "c"]]


def test_stopping_answers_those_who_wait(gated):
    retriever, start = gated

    async def run():
        inference = start()
        first = ask(inference, "a")
        await asyncio.to_thread(begun, retriever)
        second = ask(inference, "b")
        stopping = asyncio.create_task(asyncio.to_thread(inference.stop))
        await asyncio.sleep(0.05)
        retriever.go.release()
        assert await first.answer == [["a"]]
        with pytest.raises(Busy):
            await second.answer
        await stopping
        with pytest.raises(Busy):
            ask(inference, "c")

    asyncio.run(run())


def test_other_work_for_the_model_waits_in_the_same_line(gated):
    _, start = gated

    async def run():
        inference = start()
        assert await inference.put(call=lambda: threading.current_thread().name).answer == "callslip-inference"

    asyncio.run(run())
