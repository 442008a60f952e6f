"""A served index that another process changes and compacts: nothing acknowledged is lost, by either of them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from server.conftest import WRITE, running

from callslip.storage.check import check

OTHER = """
import sys, time
from callslip import api
from callslip.corpus.documents import Document

index, number = api.load(sys.argv[1]), sys.argv[2]
index.add([Document(f"theirs/{number}/1", "one visitor"), Document(f"theirs/{number}/gone", "not for long")])
index.delete([f"theirs/{number}/gone"])
index.compact()
index.close()
time.sleep(1.5)  # the server looks for a new generation once a second
for step in ("add", "update", "add"):
    index = api.load(sys.argv[1])
    name = f"theirs/{number}/2" if step != "add" or f"theirs/{number}/2" not in index.row_of() else f"theirs/{number}/3"
    getattr(index, step)([Document(name, f"{step} visitor")])
    index.close()
"""


def change(folder, number):
    done = subprocess.run([sys.executable, "-c", OTHER, str(folder), str(number)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def doc_ids(folder):
    """As a process of its own sees them."""
    program = f"from callslip import api; print(*api.load({str(folder)!r}).row_of(), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


@pytest.mark.parametrize("kind", ["words", "codes"])
def test_nothing_is_lost_when_another_process_compacts_a_served_index(kind, folder, words_folder, tmp_path):
    path = folder if kind == "codes" else shutil.copytree(words_folder, tmp_path / "words")
    acknowledged = {}
    with running([path]) as server, server.client(WRITE) as writer:
        for number in range(3):
            change(path, number)
            written = writer.put(f"/v1/documents/ours/{number}", json={"text": f"our number {number}"})
            assert written.status_code == 200, written.text
            acknowledged[f"ours/{number}"] = written.json()["version"]
            answer = writer.get(f"/v1/documents/theirs/{number}/3")
            assert answer.status_code == 200, answer.text
            search = writer.post("/v1/search", json={"query": "visitor", "filter": {"allow": [f"theirs/{number}/2"]}})
            assert search.status_code == 200, search.text
            assert [hit["doc_id"] for hit in search.json()["results"][0]["hits"]] == [f"theirs/{number}/2"]
            kept = doc_ids(path)
            assert kept >= acknowledged.keys()
            assert {f"theirs/{number}/{n}" for n in (1, 2, 3)} <= kept
    assert check(path).version >= max(acknowledged.values())
