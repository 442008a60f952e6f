"""A lock that another process holds is waited for with patience, and not for ever."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from word_codes import contents, make_index

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import CallslipError
from callslip.runtime.patience import Locked, patience
from callslip.storage.copies import copy_index
from callslip.storage.folder import locked

TEXTS = {f"d{n}": f"text {n}" for n in range(12)}


@contextmanager
def held_by_another_process(path, what):
    """The lock of the folder, or the write lock of its store."""
    store = next(path.glob("store-*.sqlite"))
    program = {
        "folder": f"import fcntl, os; d = os.open({str(path / 'lock')!r}, os.O_RDWR | os.O_CREAT); "
        "fcntl.flock(d, fcntl.LOCK_EX)",
        "store": f"import sqlite3; c = sqlite3.connect({str(store)!r}, isolation_level=None); "
        "c.execute('BEGIN IMMEDIATE')",
    }[what]
    other = subprocess.Popen(
        [sys.executable, "-c", f"{program}\nprint('held', flush=True)\nimport time; time.sleep(600)"],
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout.readline() == b"held\n"
        yield
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(("what", "change"), [("folder", "compact"), ("store", "add"), ("folder", "snapshot")])
def test_patience_ends(tmp_path, what, change):
    make_index(tmp_path / "index", TEXTS)
    index, told = api.load(tmp_path / "index"), []
    with held_by_another_process(tmp_path / "index", what), patience(1.5, told.append):
        began = time.monotonic()
        with pytest.raises(Locked, match="another process") as caught:
            if change == "compact":
                index.compact()
            elif change == "add":
                index.add([Document("new", "text")])
            else:
                copy_index(tmp_path / "index", tmp_path / "copy")
        assert caught.value.remedy and 1.5 <= time.monotonic() - began < 15
        assert len(told) == 1 and "waiting" in told[0]
    index.add([Document("new", "text")])
    index.compact()
    index.close()
    assert contents(tmp_path / "index") == TEXTS | {"new": "text"}


def test_a_lock_that_is_freed_is_taken(tmp_path):
    make_index(tmp_path / "index", TEXTS)
    with held_by_another_process(tmp_path / "index", "folder"):
        pass
    with patience(0), locked(tmp_path / "index") as ours:
        assert ours


def killed_in_the_middle(path, target):
    """A snapshot that is killed while it copies; how many drafts it left."""
    pid = os.fork()
    if pid == 0:
        from callslip.storage import sqlite_store

        sqlite_store.SqliteStore.copy_to = lambda store, to: os.kill(os.getpid(), signal.SIGKILL)
        copy_index(path, target)
        os._exit(0)
    os.waitpid(pid, 0)
    return len(list(target.parent.glob(".*.new-*")))


def test_what_killed_snapshots_left_is_removed_by_the_next(tmp_path):
    make_index(tmp_path / "index", TEXTS)
    (tmp_path / "backups").mkdir()
    assert killed_in_the_middle(tmp_path / "index", tmp_path / "backups" / "monday") == 1
    foreign = tmp_path / "backups" / ".mine.new-folder"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("not yours")
    killed_in_the_middle(tmp_path / "index", tmp_path / "backups" / "tuesday")
    copy_index(tmp_path / "index", tmp_path / "backups" / "wednesday")
    assert sorted(p.name for p in (tmp_path / "backups").iterdir()) == [".mine.new-folder", "wednesday"]
    assert contents(tmp_path / "backups" / "wednesday") == TEXTS


def test_a_draft_that_somebody_writes_is_left_alone(tmp_path):
    from callslip.storage.folder import draft_of

    make_index(tmp_path / "index", TEXTS)
    with draft_of(tmp_path / "other") as draft:
        copy_index(tmp_path / "index", tmp_path / "copy")
        assert draft.is_dir()
    assert not list(tmp_path.glob(".*.new-*"))


def test_files_of_a_generation_have_the_same_permissions(tmp_path):
    from callslip.storage.folder import write_generation
    from callslip.storage.rows import Numbers

    def save(folder):
        (folder / "private.bin").write_bytes(b"x")
        (folder / "private.bin").chmod(0o600)

    write_generation(tmp_path, 1, save, Numbers([1], [2]))
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "generation-000001").iterdir()}
    assert len(modes) == 1 and modes != {0o600}


def test_why_a_snapshot_cannot_be_written(tmp_path):
    make_index(tmp_path / "index", TEXTS)
    with pytest.raises(CallslipError, match="/proc/nope") as caught:
        copy_index(tmp_path / "index", "/proc/nope")
    assert "space" not in caught.value.remedy
    with pytest.raises(CallslipError) as caught:
        make_index("/proc/nope", TEXTS)
    assert "space" not in caught.value.remedy


def test_a_database_that_is_locked_is_not_called_damaged(tmp_path):
    make_index(tmp_path / "index", TEXTS)
    index = api.load(tmp_path / "index")
    other = sqlite3.connect(next((tmp_path / "index").glob("store-*.sqlite")), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with patience(0.1), pytest.raises(Locked):
        index.delete(["d1"])
    other.execute("ROLLBACK")
    other.close()
    index.delete(["d1"])
    index.close()
