"""Every disk that a power cut can leave while we write opens, and holds what was there before or what was being put."""

from __future__ import annotations

import shutil
import sqlite3

import pytest
from recorder import MODES, Recorder, image
from word_codes import contents, make_index

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import IndexCorrupt
from callslip.runtime import durable
from callslip.storage import ledger
from callslip.storage.check import check
from callslip.storage.sqlite_store import SqliteStore

TEXTS = {f"d{n}": f"text {n}" for n in range(12)}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Record an operation on a folder; gives the folder before it, and the events."""

    def record(prepare, operation):
        root = tmp_path / "disk"
        root.mkdir()
        prepare(root / "index")
        shutil.copytree(root, tmp_path / "base")
        for scratch in (tmp_path / "base").rglob("*-shm"):
            scratch.unlink()
        recorder = Recorder(root)
        purge = SqliteStore.purge

        def purge_and_note(store, version, keep, generation=None):
            purge(store, version, keep)
            store.settle()
            recorder.database(store.path)

        note = ledger.note

        def commit_and_note(path, entry):
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
            recorder.database(path)
            note(path, entry)

        monkeypatch.setattr(SqliteStore, "purge", purge_and_note)
        monkeypatch.setattr(ledger, "note", commit_and_note)
        monkeypatch.setattr(durable, "system", recorder)
        operation(root / "index")
        monkeypatch.undo()
        import word_codes

        monkeypatch.setitem(api.make.__globals__["METHODS"], "word-codes", word_codes.METHOD)
        return tmp_path / "base", recorder.events

    return record


def look_at_images(base, events, allowed, memory) -> int:
    """Open every image; each holds one of the allowed contents, and the last ones hold the last of them."""
    count, after = 0, []
    place = memory / "image"
    for length in range(len(events) + 1):
        for mode in MODES:
            image(base, events[:length], mode, place)
            found = contents(place / "index")
            assert found in allowed, f"after {length} of {len(events)} events, {mode}"
            if count % 5 == 0:
                check(place / "index")
            after = [*after, found][-len(MODES) :]
            shutil.rmtree(place)
            count += 1
    assert all(found == allowed[-1] for found in after)  # finished means lasting, whatever the disk forgets
    return count


def busy(path):
    make_index(path, TEXTS)
    index = api.load(path)
    index.add([Document("new1", "more"), Document("new2", "more still")])
    index.delete(["d3", "d4", "new2"])
    index.close()


def compact(path):
    index = api.load(path)
    index.compact()
    index.close()


STATE = {doc_id: text for doc_id, text in TEXTS.items() if doc_id not in ("d3", "d4")} | {"new1": "more"}


def test_a_thousand_images_of_compactions(recorded, memory):
    base, events = recorded(busy, lambda path: (compact(path), compact(path), compact(path)))
    assert look_at_images(base, events, [STATE], memory) >= 1000


def test_images_of_an_index_written_over_another(recorded, memory):
    """Its database is SQLite's to keep; it is on the disk before the manifest names it."""
    new = {"x": "other", "y": "texts"}
    base, events = recorded(busy, lambda path: make_index(path, new))
    stores = [event for event in events if event.path.endswith(".sqlite") and event.kind == "sync"]
    assert len(stores) == 1  # synced by us once it is complete
    assert look_at_images(base, events, [STATE, new], memory) > 100


def test_the_recorder_sees_a_missing_sync(recorded, memory):
    """The images of a program that forgets to sync its files are not all right: the test above can fail."""
    base, events = recorded(busy, compact)
    without = [event for event in events if event.kind != "sync" or event.path.endswith("index")]
    with pytest.raises(IndexCorrupt):
        look_at_images(base, without, [STATE], memory)
