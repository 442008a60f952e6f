"""Waiting: clients take turns, a lock of another process is not waited for without end, a hint costs little."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from server.conftest import ADMIN, WRITE, running
from server.test_inference import ask, begun, gated  # noqa: F401

from callslip.corpus.documents import Corpus, Document
from callslip.errors import CallslipError, closest
from callslip.filters.filter import Filter
from callslip.methods import make
from callslip.server.errors import Busy
from callslip.server.limits import Limits


def test_clients_take_turns(gated):  # noqa: F811
    """Six heavy requests of one client; a plain one of another comes after the one under way."""
    retriever, start = gated

    async def run():
        inference = start(batch=1)
        heavy = [ask(inference, f"heavy {n}", client="greedy") for n in range(6)]
        await asyncio.to_thread(begun, retriever)
        plain = [ask(inference, f"plain {n}", client="other") for n in range(2)]
        for _ in range(8):
            await asyncio.sleep(0.02)  # what a search costs is counted
            retriever.go.release()
        for job in [*heavy, *plain]:
            await job.answer

    asyncio.run(run())
    order = [batch[0] for batch in retriever.batches]
    assert order.index("plain 0") <= 2 and order.index("plain 1") <= 4, order
    assert [one for one in order if one.startswith("heavy")] == [f"heavy {n}" for n in range(6)]


def test_a_full_queue_has_room_for_another_client(gated):  # noqa: F811
    retriever, start = gated

    async def run():
        inference = start(queue=8, batch=1)
        first = ask(inference, "under way", client="greedy")
        await asyncio.to_thread(begun, retriever)
        heavy = [ask(inference, f"heavy {n}", client="greedy") for n in range(8)]
        assert inference.full("greedy") and not inference.full("other")
        with pytest.raises(Busy):
            ask(inference, "one more", client="greedy")
        plain = [ask(inference, f"plain {n}", client="other") for n in range(4)]
        with pytest.raises(Busy):  # an equal share, and no more
            ask(inference, "one more", client="other")
        with pytest.raises(Busy):
            await heavy[-1].answer
        for _ in range(20):
            retriever.go.release()
        assert await plain[0].answer == [["plain 0"]]
        assert await first.answer == [["under way"]] and await heavy[0].answer == [["heavy 0"]]
        assert inference.queued == 0 or [await job.answer for job in plain]

    asyncio.run(run())


def test_a_plain_search_is_answered_behind_fifty_heavy_ones(folder):
    """One client asks for batches with a wide beam, another one for three hits."""
    limits = Limits(deadline=4)
    with running([folder], limits=limits) as server:
        heavy = {"queries": [{"text": f"the apple with fruit{n}"} for n in range(64)], "k": 100, "beam": 128}
        over = threading.Event()

        def flood(_):
            with server.client("e" * 32) as client:
                while not over.is_set():
                    client.post("/v1/search", json=heavy)

        with ThreadPoolExecutor(50) as pool, server.client() as plain:
            for number in range(50):
                pool.submit(flood, number)
            try:
                time.sleep(1)
                found = [plain.post("/v1/search", json={"query": "the apple", "k": 3}).status_code for _ in range(5)]
            finally:
                over.set()
    assert found == [200] * 5


def test_a_lock_of_another_process_ends_in_503(folder):
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with (
            running([folder], limits=Limits(deadline=1.0)) as server,
            ThreadPoolExecutor(4) as pool,
            server.client(ADMIN) as admin,
            server.client(WRITE) as writer,
        ):
            began = time.monotonic()
            compacting = pool.submit(lambda: admin.post("/v1/compact", json={}))
            time.sleep(0.3)
            writing = pool.submit(lambda: writer.put("/v1/documents/new", json={"text": "a text"}))
            found = [compacting.result(), writing.result()]
            assert time.monotonic() - began < 8
            assert found[0].status_code == 503 and "Retry-After" in found[0].headers
            assert found[1].status_code in (200, 503)
            assert writer.put("/v1/documents/later", json={"text": "a text"}).status_code == 200
    finally:
        os.close(descriptor)


def test_a_write_whose_turn_does_not_come_is_not_made(folder):
    with running([folder], limits=Limits(deadline=0.5)) as server, server.client(WRITE) as writer:
        held = threading.Event()
        server.app.server.writer.submit(held.wait, 30)
        try:
            answer = writer.put("/v1/documents/never", json={"text": "a text"})
        finally:
            held.set()
        assert answer.status_code == 503 and "Retry-After" in answer.headers
        assert writer.get("/v1/documents/never").status_code == 404
        time.sleep(0.2)
        assert writer.get("/v1/documents/never").status_code == 404


def test_settings_of_a_fit_are_not_shown(served, anybody):
    for facts in (*anybody.get("/v1/indexes").json()["indexes"], anybody.get("/v1/health").json()["facts"]):
        retriever = served.app.server.served[facts["name"]].retriever
        assert set(facts["settings"]) <= set(retriever.search_settings)
        assert "encoder" not in facts["settings"] and "seed" not in facts["settings"]


def test_a_slow_filter_stalls_nobody_else(folder, monkeypatch):
    """Masks are made beside the model's thread: other searches, filtered ones among them, go on meanwhile."""
    from callslip.filters import metadata

    slow = threading.Event()
    check = metadata.MetadataIndex._check

    def dawdle(self, names):
        if "slow" in names:
            slow.wait(10)
        check(self, names)

    monkeypatch.setattr(metadata.MetadataIndex, "_check", dawdle)
    with (
        running([folder], limits=Limits(deadline=3)) as server,
        ThreadPoolExecutor(1) as pool,
        server.client() as client,
    ):
        ready = {"query": "apple", "filter": {"where": {"topic": "fruit"}}}
        assert client.post("/v1/search", json=ready).status_code == 200
        stuck = pool.submit(
            lambda: server.client().post("/v1/search", json={"query": "apple", "filter": {"where": {"slow": 1}}})
        )
        time.sleep(0.3)
        for body in ({"query": "apple"}, ready, {"query": "nickel", "k": 2}):
            assert client.post("/v1/search", json=body).status_code == 200
        assert not stuck.done()
        assert stuck.result().status_code == 504
        slow.set()
        unknown = {"query": "apple", "filter": {"where": {"no such field": 1}}}
        assert client.post("/v1/search", json=unknown).status_code == 400


def test_a_hint_for_a_mistyped_field_is_cheap(tmp_path, monkeypatch):
    """16,384 long field names: the comparisons are counted, because time says little here."""
    import difflib

    compared = []
    ratio = difflib.SequenceMatcher.ratio
    monkeypatch.setattr(
        difflib.SequenceMatcher, "ratio", lambda self: compared.append(len(self.a) * len(self.b)) or ratio(self)
    )
    names = [f"{n:06d}-{'field' * 40}" for n in range(16_384)]
    documents = [Document(f"d{n}", "text", metadata=dict.fromkeys(names[n::64], 1)) for n in range(64)]
    index = make("bm25").fit(Corpus(documents))
    with pytest.raises(CallslipError, match="no document has the metadata field") as caught:
        index.rows.mask(Filter({f"00000x-{'field' * 40}": 1}))
    assert len(caught.value.remedy) < 2000
    assert sum(compared) < 20_000_000 and len(compared) <= 1000
    assert closest("yaer", ["year", "name"]) == ["year"]
    assert closest("field9999", [f"field{n}" for n in range(20_000)]) == ["field9999"]
