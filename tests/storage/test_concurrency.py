"""Four writers and four readers of one index, each a process: what they saw must fit into one order of events."""

from __future__ import annotations

import json
import os
import random
import threading
import time
import traceback

import pytest
from word_codes import WordCodes, contents, make_index, state_of

from callslip import api
from callslip.corpus.documents import Document
from callslip.storage.check import check
from callslip.storage.rows import Gone

KEYS = [f"k{n}" for n in range(8)]


def write(path, number: int, steps: int, log) -> None:
    """Change the writer's own two keys; note when each change began and when it was acknowledged."""
    chance, index = random.Random(number), api.load(path)
    mine = dict.fromkeys(KEYS[2 * number : 2 * number + 2])
    for step in range(steps):
        key = chance.choice(sorted(mine))
        gone = mine[key] is not None and chance.random() < 0.3
        text = None if gone else f"{key} {step}"
        began = time.monotonic()
        if gone:
            index.delete([key])
        elif mine[key] is None:
            index.add([Document(key, text)])
        else:
            index.update([Document(key, text)])
        log({"write": key, "text": text, "began": began, "ended": time.monotonic()})
        mine[key] = text
        if number == 0 and step % 10 == 9:
            index.compact()
    index.close()


def look_up(index, key: str) -> tuple[str | None, int]:
    while True:
        row = index.refresh(now=True).row_of().get(key)
        try:
            return (None if row is None else index.documents.rows([row])[0].text), index.living.version
        except Gone:  # replaced since we looked: look again
            continue


def read(path, number: int, log, until) -> None:
    """Look keys up by search; note what was seen, when, and of which version."""
    chance, index = random.Random(100 + number), api.load(path)
    while not until.exists():
        key = chance.choice(KEYS)
        began = time.monotonic()
        text, version = look_up(index, key)
        log({"read": key, "text": text, "began": began, "ended": time.monotonic(), "version": version})
    index.close()


def spawn(work) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


def consistent(history: list[dict], key: str) -> int:
    """Every read of a key saw a value that was the last one at some moment of the read; how many reads there were."""
    writes = sorted((e for e in history if e.get("write") == key), key=lambda e: e["began"])
    reads = [e for e in history if e.get("read") == key]
    for seen in reads:
        # A value may be seen from the moment its change began until the next change was acknowledged.
        possible = [None] if not writes or seen["began"] < writes[0]["ended"] else []
        for number, one in enumerate(writes):
            ends = writes[number + 1]["ended"] if number + 1 < len(writes) else float("inf")
            if one["began"] <= seen["ended"] and seen["began"] <= ends:
                possible.append(one["text"])
        assert seen["text"] in possible, f"{key}: saw {seen}, possible were {possible}"
    return len(reads)


def test_four_writers_and_four_readers(tmp_path, new_index):
    path = tmp_path / "index"
    new_index(path, {"other": "text"})
    stop, history = tmp_path / "stop", []

    def logger(name):
        file = (tmp_path / f"{name}.jsonl").open("a")
        return lambda entry: file.write(json.dumps(entry) + "\n") and file.flush()

    readers = [spawn(lambda n=n: read(path, n, logger(f"r{n}"), stop)) for n in range(4)]
    writers = [spawn(lambda n=n: write(path, n, 25, logger(f"w{n}"))) for n in range(4)]
    ended = [os.waitpid(pid, 0)[1] for pid in writers]
    stop.touch()
    ended += [os.waitpid(pid, 0)[1] for pid in readers]
    assert ended == [0] * 8
    for file in tmp_path.glob("*.jsonl"):
        entries = [json.loads(line) for line in file.read_text().splitlines()]
        versions = [entry["version"] for entry in entries if "version" in entry]
        assert versions == sorted(versions), "a reader went back in time"
        history += entries
    assert sum(consistent(history, key) for key in KEYS) > 100
    last = {}
    for entry in sorted((e for e in history if "write" in e), key=lambda e: e["ended"]):
        last[entry["write"]] = entry["text"]
    expected = {"other": "text"} | {key: text for key, text in last.items() if text is not None}
    assert contents(path) == expected
    check(path)


def test_threads_search_while_one_changes(tmp_path, monkeypatch):
    """No search sees half a change: each finds every document that it lists."""
    whole = WordCodes.extend

    def slowly(self, documents, parts):
        vectors = self.vectors
        whole(self, documents, parts)
        grown, self.vectors = self.vectors, vectors
        time.sleep(0.003)  # half done: codes without their vectors
        self.vectors = grown

    searching = WordCodes.find

    def search_slowly(self, queries, k, mask, explain):
        time.sleep(0.002)  # time for a change to come between the mask and the codes
        return searching(self, queries, k, mask, explain)

    monkeypatch.setattr(WordCodes, "extend", slowly)
    monkeypatch.setattr(WordCodes, "find", search_slowly)
    make_index(tmp_path / "index", {f"d{n}": f"text {n}" for n in range(20)})
    index = api.load(tmp_path / "index")
    failures, done = [], threading.Event()

    def search():
        while not done.is_set():
            try:
                for n in range(0, 20, 3):
                    hits = index.search(f"text {n}", k=50)
                    assert [hit.text for hit in hits] == [f"text {n}"] * len(hits)
                    assert any(hit.doc_id == f"d{n}" for hit in hits)
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(40):
        index.add([Document(f"n{n}", f"text {n % 20}")])
        if n % 3 == 0:
            index.delete([f"n{n}"])
        if n % 10 == 9:
            index.compact()
    done.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert len(state_of(index)) == 20 + 40 - 14


@pytest.mark.parametrize("what", ["delete", "update"])
def test_what_another_process_has_just_deleted_is_not_returned(tmp_path, what):
    """Even before the reader has heard of it: a hit is read from the store, which knows."""
    make_index(tmp_path / "index", {"a": "same", "b": "same", "c": "other"})
    reader, writer = api.load(tmp_path / "index"), api.load(tmp_path / "index")
    reader.refresh = lambda now=False, real=reader.refresh: real(now) if now else reader  # hears nothing by itself
    if what == "delete":
        writer.delete(["a"])
        assert reader.search("same", k=5).doc_ids == ["b"]
    else:
        writer.update([Document("a", "other")])
        assert reader.search("same", k=5).doc_ids == ["b"]
        assert sorted(reader.search("other", k=5).doc_ids) == ["a", "c"]
