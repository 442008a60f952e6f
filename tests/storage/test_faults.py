"""The disk refuses: the Nth call fails, or it is full, or read-only. The index stays as it was, and answers."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from counted_disk import CountedDisk
from word_codes import contents, make_index, state_of

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import CallslipError
from callslip.runtime import durable
from callslip.storage.check import check

TEXTS = {f"d{n}": f"text {n}" for n in range(12)}
STATE = {doc_id: text for doc_id, text in TEXTS.items() if doc_id != "d3"} | {"new": "text"}


class Failing(CountedDisk):
    """Fails at the nth call, once or from then on."""

    def __init__(self, at: int, number: int, for_ever: bool) -> None:
        self.left, self.number, self.for_ever, self.failed = at, number, for_ever, 0

    def on_call(self) -> None:
        self.left -= 1
        if self.left == 0 or (self.for_ever and self.left < 0):
            self.failed += 1
            raise OSError(self.number, os.strerror(self.number))

    def write(self, descriptor, data):
        return super().write(descriptor, data[: max(1, len(data) // 2)])  # and never all at once


def changed(path):
    make_index(path, TEXTS)
    index = api.load(path)
    index.add([Document("new", "text")])
    index.delete(["d3"])
    return index


@pytest.mark.parametrize(("number", "for_ever"), [(errno.EIO, False), (errno.ENOSPC, True)])
@pytest.mark.parametrize("what", ["compact", "replace"])
def test_the_nth_call_fails(memory, monkeypatch, number, for_ever, what):
    """For every n, until an operation gets through without a failure."""
    changed(memory / "first").close()
    new = {"x": "other"}
    for at in range(1, 500):
        path = memory / "index"
        shutil.copytree(memory / "first", path)
        index = api.load(path)
        failing = Failing(at, number, for_ever)
        monkeypatch.setattr(durable, "system", failing)
        done = True
        try:
            if what == "compact":
                index.compact()
            else:
                make_index(path, new)
        except CallslipError as error:
            assert error.remedy
            done = False
        finally:
            monkeypatch.setattr(durable, "system", durable.System())
        assert state_of(index) == STATE  # what is open goes on answering
        index.close()
        found = contents(path)
        if what == "compact":
            assert found == STATE
        if what == "compact" and at % 5 == 0:
            grown = api.load(path)
            grown.add([Document("later", "after the failure")])
            grown.compact()
            grown.close()
            assert contents(path) == STATE | {"later": "after the failure"}
        elif what == "replace":
            assert found == new if done else found in (STATE, new)
        check(path)
        shutil.rmtree(path)
        if not failing.failed:
            assert at > 10 and done
            return
    pytest.fail("there was no end to the calls")


FULL = """
import os, sys
sys.path.insert(0, sys.argv[2])
import word_codes
word_codes.register()
from contextlib import suppress
from pathlib import Path
from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import CallslipError
from callslip.storage.check import check

path = Path(sys.argv[1]) / "index"
word_codes.make_index(path, {f"d{n}": f"text {n}" for n in range(50)})
index = api.load(path)
state = word_codes.state_of(index)
failed = None
for n in range(10_000):
    try:
        index.add([Document(f"new{n}", f"text {n} " + "x" * 2000)])
    except CallslipError as error:
        failed = error
        break
    state[f"new{n}"] = f"text {n} " + "x" * 2000
assert failed is not None and failed.remedy, "the disk never filled"
assert "Traceback" not in str(failed)
assert "full" in failed.problem and "space" in failed.remedy, failed
assert word_codes.state_of(index) == state, "a full disk must go on answering"
try:
    index.compact()
except CallslipError as error:
    assert error.remedy
assert word_codes.state_of(index) == state
index.close()
assert word_codes.contents(path) == state, "and open again"
with suppress(OSError), (Path(sys.argv[1]) / "filler").open("wb", buffering=0) as filler:
    while True:
        filler.write(bytes(512))
index = api.load(path)  # there is not even room for the files that SQLite shares
assert word_codes.state_of(index) == state
try:
    index.add([Document("late", "no room")])
except CallslipError as error:
    assert "full" in error.problem and "space" in error.remedy, error
else:
    raise AssertionError("the disk is full")
index.close()
(Path(sys.argv[1]) / "filler").unlink()
(Path(sys.argv[1]) / "ballast").unlink()
index = api.load(path)
index.delete(["d1"])
del state["d1"]
index.add([Document("room", "there is room again")])
state["room"] = "there is room again"
index.compact()
index.close()
assert word_codes.contents(path) == state
check(path)
print("answered", len(state))
"""


def test_a_full_disk_goes_on_answering(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare(1) to mount a small disk")
    place = tmp_path / "small"
    place.mkdir()
    program = tmp_path / "full.py"
    program.write_text(FULL)
    fill = f"mount -t tmpfs -o size=4m tmpfs {place} && head -c 1500000 /dev/zero > {place}/ballast"
    run = f"{sys.executable} {program} {place} {Path(__file__).parent}"
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", f"{fill} && exec {run}"], capture_output=True, text=True, check=False
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "answered" in done.stdout


READ_ONLY = """
import subprocess, sys
sys.path.insert(0, sys.argv[2])
import word_codes
word_codes.register()
from pathlib import Path
from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import CallslipError
from callslip.storage.check import check
from callslip.storage.copies import copy_index

path = Path(sys.argv[1]) / "index"
texts = {f"d{n}": f"text {n}" for n in range(20)}
word_codes.make_index(path, texts)
subprocess.run(["mount", "-o", "remount,ro", sys.argv[1]], check=True)
index = api.load(path)
assert word_codes.state_of(index) == texts
for change in (index.compact, lambda: index.add([Document("x", "y")]), lambda: index.delete(["d1"]),
               lambda: copy_index(path, Path(sys.argv[1]) / "copy"), lambda: word_codes.make_index(path, texts)):
    try:
        change()
    except CallslipError as error:
        assert error.remedy and "space" not in error.remedy, error
    else:
        raise AssertionError("a read-only disk was written")
assert word_codes.state_of(index) == texts
copy_index(path, Path(sys.argv[3]) / "copy")
assert word_codes.contents(Path(sys.argv[3]) / "copy") == texts
check(path)
print("answered")
"""


def test_a_read_only_disk_is_searched_and_not_changed(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare(1) to mount a disk")
    (tmp_path / "disk").mkdir()
    program = tmp_path / "program.py"
    program.write_text(READ_ONLY)
    run = f"{sys.executable} {program} {tmp_path / 'disk'} {Path(__file__).parent} {tmp_path}"
    mount = f"mount -t tmpfs -o size=8m tmpfs {tmp_path / 'disk'}"
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", f"{mount} && exec {run}"], capture_output=True, text=True, check=False
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "answered" in done.stdout


def test_a_read_only_folder_is_searched_and_not_changed(tmp_path):
    make_index(tmp_path / "index", TEXTS)
    files = [tmp_path / "index", *(tmp_path / "index").rglob("*")]
    for path in files:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        index = api.load(tmp_path / "index")
        assert state_of(index) == TEXTS
        if os.geteuid() != 0:  # root may write everywhere
            with pytest.raises(CallslipError, match="may not be written"):
                index.delete(["d1"])
        index.close()
    finally:
        for path in files:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_storage_needs_no_torch(tmp_path):
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import word_codes; word_codes.register()\n"
        "from pathlib import Path; from callslip import api; from callslip.storage.check import check\n"
        f"path = Path({str(tmp_path / 'index')!r}); word_codes.make_index(path, {{'a': 'b', 'c': 'd'}})\n"
        "index = api.load(path); index.delete(['a']); index.compact(); check(path); index.drift()\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
