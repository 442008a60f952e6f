"""What was acknowledged is accounted for outside SQLite's log: a log that lost its end is noticed and named."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from wal_trials import left_by_a_kill, trial
from word_codes import contents, make_index

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import CallslipError, IndexCorrupt
from callslip.storage import ledger
from callslip.storage.check import check
from callslip.storage.home import Home
from callslip.storage.rows import NewRow

TEXTS = {f"d{n}": f"text {n}" for n in range(12)}
ROW = NewRow(Document("new", "more"), (1, 2, 3))


def store_of(path):
    return next(path.glob("store-*.sqlite"))


def test_a_damaged_log_never_loses_a_change_in_silence(memory):
    found = Counter()
    for seed in range(40):
        kind, outcomes = trial(memory, seed)
        assert "silent" not in outcomes, f"seed {seed}: {kind}"
        found.update(outcomes)
    assert found["named"] > 40  # of 80: most damages cost something


def test_the_loss_is_named_and_can_be_accepted(memory):
    path = memory / "index"
    state = left_by_a_kill(path, random.Random(5))
    store = store_of(path)
    store.with_name(f"{store.name}-wal").unlink()
    with pytest.raises(IndexCorrupt, match=r"ends at version 1, and version \d+ was acknowledged") as caught:
        api.load(path)
    assert "--accept-loss" in caught.value.remedy
    command = [sys.executable, "-c", "from callslip.cli import main; main()", "check", str(path), "--accept-loss"]
    here = str(Path(__file__).parent)
    command[2] = f"import sys; sys.path.insert(0, {here!r}); import word_codes; word_codes.register()\n" + command[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "is intact" in done.stdout, done.stderr
    assert contents(path) != state
    check(path)


def test_a_commit_that_nobody_was_told_of_is_no_loss(memory, monkeypatch):
    """Killed after SQLite's commit and before the ledger's: the store is ahead."""
    make_index(memory / "index", TEXTS)
    home = Home.open(memory / "index")
    monkeypatch.setattr(ledger, "note", lambda store, entry: None)
    home.commit([ROW])
    monkeypatch.undo()
    home.close()
    home = Home.open(memory / "index")
    assert home.commit([], ["d1"]) == 3
    home.close()
    assert ledger.last(store_of(memory / "index")).version == 3


def test_a_store_from_before_there_were_ledgers_gets_one_with_its_next_commit(memory):
    from callslip.storage.rows import facts_digest

    path = memory / "index"
    make_index(path, TEXTS)
    store = store_of(path)
    connection = sqlite3.connect(store)
    facts = dict(connection.execute("SELECT name, value FROM facts"))
    facts.pop("mark", None)
    connection.execute("DELETE FROM facts WHERE name = 'mark'")
    connection.execute("UPDATE facts SET value = ? WHERE name = 'digest'", (facts_digest(facts),))
    connection.commit()
    connection.close()
    ledger.path_of(store).unlink(missing_ok=True)
    from callslip.storage.folder import read_manifest, write_manifest

    manifest = read_manifest(path)
    del manifest["digest"], manifest["store"]["seal"]
    write_manifest(path, manifest)
    index = api.load(path)
    assert not ledger.path_of(store).exists()
    index.add([Document("new", "more")])
    index.close()
    assert ledger.last(store).version == 2
    assert contents(path) == TEXTS | {"new": "more"}


def test_of_two_slots_one_may_be_torn(memory):
    path = memory / "store-00000000.sqlite"
    ledger.create(path, ledger.Entry(1, "ab" * 16))
    for version in range(2, 9):
        ledger.note(path, ledger.Entry(version, f"{version:032x}"))
        assert ledger.last(path) == ledger.Entry(version, f"{version:032x}")
        whole = ledger.path_of(path).read_bytes()
        for start in ledger.SLOTS:
            torn = whole[: start + 20] + bytes(44) + whole[start + 64 :]
            ledger.path_of(path).write_bytes(torn)
            assert ledger.last(path).version in (version, version - 1)
        ledger.path_of(path).write_bytes(whole)
    ledger.note(path, ledger.Entry(4, "cd" * 16))  # a writer who comes late
    assert ledger.last(path).version == 8
    ledger.path_of(path).write_bytes(bytes(len(whole)))
    with pytest.raises(IndexCorrupt, match="ledger"):
        ledger.last(path)


def test_a_store_whose_files_were_exchanged_takes_no_writes(memory):
    """As after a restore from a backup under a running process: such a write would be seen by nobody."""
    path = memory / "index"
    make_index(path, TEXTS)
    stale, other = Home.open(path), Home.open(path)
    for file in [store_of(path), *path.glob("*-wal"), *path.glob("*-shm")]:
        shutil.copy(file, memory / "copy")
        (memory / "copy").replace(file)  # the same contents in another file
    other.close()
    fresh = Home.open(path)
    fresh.commit([ROW])
    assert stale.store.detached and not fresh.store.detached
    with pytest.raises(CallslipError, match="replaced or removed"):
        stale.commit([NewRow(Document("lost", "never"), (1, 2, 3))])
    stale.close()
    fresh.close()
    home = Home.open(path)
    assert {row.document.doc_id for row in home.store.rows()} == {*TEXTS, "new"}
    home.close()
