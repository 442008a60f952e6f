"""Searches go on: while documents are added, while the index is compacted, and while another one takes its place."""

from __future__ import annotations

import threading
import time

from server.conftest import ADMIN, QUICK, WRITE, running

from callslip import api
from callslip.corpus.documents import Corpus, Document
from callslip.methods import make


class Asking:
    """A client that searches without end, and remembers every answer."""

    def __init__(self, server, query="the apple with fruit0"):
        self.server, self.query = server, query
        self.statuses, self.found = [], []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        with self.server.client() as client:
            while not self.over.is_set():
                answer = client.post("/v1/search", json={"query": self.query, "k": 3})
                self.statuses.append(answer.status_code)
                self.found.append([hit["doc_id"] for hit in answer.json()["results"][0]["hits"]])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(timeout=30)


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_acknowledged_document_is_found_by_the_next_search(folder):
    with running([folder]) as server, server.client(WRITE) as client, Asking(server) as asking:
        for number in range(10):
            name = f"new/{number}"
            body = {
                "documents": [
                    {"doc_id": name, "text": f"the quux{number} of number {number}", "title": f"quux{number}"}
                ]
            }
            assert client.post("/v1/documents", json=body).status_code == 200
            filter = {"allow": [name]}
            hits = client.post("/v1/search", json={"query": "quux", "filter": filter}).json()["results"][0]["hits"]
            assert [hit["doc_id"] for hit in hits] == [name]
            assert client.delete(f"/v1/documents/{name}").status_code == 200
            hits = client.post("/v1/search", json={"query": "quux", "filter": filter}).json()["results"][0]["hits"]
            assert hits == []
    assert len(asking.statuses) > 10 and set(asking.statuses) == {200}


def test_changes_of_another_process_are_seen(folder):
    other = api.load(folder)
    with running([folder]) as server, server.client() as client:
        other.add([Document("theirs", "a visitor from elsewhere", "visitor")])
        assert client.get("/v1/documents/theirs").status_code == 200
        assert client.get("/v1/codes").json()["documents"] == 42


def test_compacting_drops_no_search(folder):
    with (
        running([folder]) as server,
        server.client(ADMIN) as admin,
        server.client(WRITE) as writer,
        Asking(server) as asking,
    ):
        assert writer.delete("/v1/documents/river/1").status_code == 200
        assert admin.post("/v1/compact", json={}).status_code == 200
        facts = admin.get("/v1/indexes").json()["indexes"][0]
        assert (facts["generation"], facts["documents"]) == (2, 40)
        assert server.app.server.served["small"].swaps == 0  # it is its own generation, and need not be opened
        seen = len(asking.statuses)
        until(lambda: len(asking.statuses) > seen + 5)
    assert set(asking.statuses) == {200}


def test_a_generation_of_another_process_is_taken_up(folder):
    other = api.load(folder)
    with running([folder]) as server, server.client() as client, Asking(server) as asking:
        other.delete(["river/2"])
        other.compact()
        until(lambda: client.get("/v1/indexes").json()["indexes"][0]["generation"] == 2)
        assert len(server.app.server.served["small"].retriever.documents) == 40
    assert set(asking.statuses) == {200}


def test_another_index_takes_the_place_without_dropping_a_request(folder, small_corpus):
    """The folder is fitted anew under the running server: no request fails, and writes go to the new one."""
    other = Corpus([*small_corpus.documents[:20], Document("only/here", "fresh", "The fresh one")], name="other")
    with running([folder]) as server, server.client(WRITE) as client, Asking(server) as asking:
        make("dsi-semantic", QUICK | {"epochs": 1}).fit(other).save(folder)
        written = client.put("/v1/documents/late", json={"text": "it came after"})
        assert written.status_code == 200
        until(lambda: client.get("/v1/indexes").json()["indexes"][0]["documents"] == 22)
        assert client.get("/v1/documents/only/here").status_code == 200
        assert client.get("/v1/documents/late").status_code == 200
        assert client.get("/v1/documents/river/1").status_code == 404
        seen = len(asking.statuses)
        until(lambda: len(asking.statuses) > seen + 3)
    assert set(asking.statuses) == {200}
    assert "late" in api.load(folder).row_of()
