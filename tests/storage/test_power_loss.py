"""A power cut after any sync: commits that were acknowledged are on the disk, in both stores.

SIGKILL leaves the page cache as it is, so it shows nothing of this. The system calls of real commits are recorded, and
replayed up to every sync and every acknowledgement; what was not synced is dropped, or is there in part.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from syscalls import MODES, Disk, needs_strace, options, read
from word_codes import contents, make_index

from callslip.errors import CallslipError
from callslip.storage.check import check

FIRST = {f"d{n}": f"text {n}" for n in range(9)}
LARGE = "many words " * 400_000
"""Longer than SQLite lets its log grow, so that the commit moves the log into the database as well."""
PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[2])
import word_codes
word_codes.register()
from callslip import api
from callslip.corpus.documents import Document

index = api.load(sys.argv[1])
for number in range(8):
    index.add([Document(f"new{number}", sys.stdin.readline().strip() if number == 4 else f"words {number}")])
    os.write(1, b"!")
    if number % 3 == 0:
        index.delete([f"d{number}"])
        os.write(1, b"!")
index.close()
"""


def states() -> list[dict[str, str]]:
    """What the index holds after each acknowledgement."""
    found = [dict(FIRST)]
    for number in range(8):
        found.append({**found[-1], f"new{number}": LARGE.strip() if number == 4 else f"words {number}"})
        if number % 3 == 0:
            found.append({key: value for key, value in found[-1].items() if key != f"d{number}"})
    return found


@pytest.fixture
def recorded(tmp_path, memory):
    """An index with its documents in SQLite, changed while its system calls are recorded."""
    strace = needs_strace()
    path, trace = tmp_path / "disk" / "index", tmp_path / "trace"
    make_index(path, FIRST)
    shutil.copytree(tmp_path / "disk", memory / "base")
    command = [strace, *options(trace), sys.executable, "-c", PROGRAM, str(path), str(Path(__file__).parent)]
    done = subprocess.run(command, input=LARGE.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return Disk((tmp_path / "disk").resolve(), memory / "base"), list(read(trace))


def look(disk, calls, memory, only=lambda call: True):
    """The states of all images; each must hold what was acknowledged by then, and at most one change more."""
    expected, acknowledged, images = states(), 0, 0
    for call in calls:
        ours = disk.do(call) if only(call) else False
        told = call.name == "write" and call.data == b"!"
        acknowledged += told
        if not told and not (ours and call.name == "sync"):
            continue
        for mode in MODES:
            place = memory / "image"
            shutil.copytree(disk.base, place)
            disk.leave(place, mode)
            found = contents(place / "index")
            assert found in expected[acknowledged : acknowledged + 2], f"after {acknowledged} changes, {mode}"
            if images % 7 == 0:
                check(place / "index")
            shutil.rmtree(place)
            images += 1
    assert acknowledged == len(expected) - 1
    return images


def test_commits_of_sqlite_survive_a_power_cut(recorded, memory):
    assert look(*recorded, memory) > 60


@pytest.mark.parametrize("file", ["-wal", "-ledger"])
def test_a_missing_sync_is_seen(recorded, memory, file):
    """Without the syncs of the log, or with those of the ledger alone: the test above can fail."""
    disk, calls = recorded

    def only(call):
        return call.name != "sync" or not call.path.endswith(file)

    if file == "-ledger":  # it is the store that holds the documents; a ledger that is behind loses nothing by itself
        assert look(disk, calls, memory, only) > 20
    else:
        with pytest.raises((AssertionError, CallslipError)):
            look(disk, calls, memory, only)


@pytest.fixture
def own_postgres(tmp_path_factory):
    """A server whose files may be copied and replaced: how to start it on a folder, and how to stop it."""
    import tempfile

    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = shutil.which("initdb") or (binaries and str(binaries[-1]))
    if not found:
        pytest.skip("no PostgreSQL server is installed")
    pytest.importorskip("psycopg")
    place, as_user = Path(tempfile.mkdtemp(prefix="callslip-power-")), []
    if os.geteuid() == 0:
        if shutil.which("runuser") is None or subprocess.run(["id", "postgres"], capture_output=True).returncode:
            pytest.skip("running as root, without a user `postgres` to run the server as")
        shutil.chown(place, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    programs = Path(os.path.realpath(found)).parent
    if not (programs / "pg_ctl").exists():
        programs = Path(found).parent

    def run(program, *arguments):
        subprocess.run([*as_user, programs / program, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

    run("initdb", "-D", place / "data", "-U", "callslip", "--auth=trust")
    settings = f"-c listen_addresses='' -k {place} -c shared_buffers=8MB -c autovacuum=off"
    start = functools.partial(run, "pg_ctl", "-D", place / "data", "-l", place / "log", "-o", settings, "-w", "start")
    stop = functools.partial(run, "pg_ctl", "-D", place / "data", "-m", "immediate", "-w", "stop")
    start()
    yield place / "data", f"host={place} dbname=postgres user=callslip", start, stop
    if (place / "data" / "postmaster.pid").exists():
        stop()
    shutil.rmtree(place, ignore_errors=True)


def test_commits_of_postgresql_survive_a_power_cut(own_postgres, tmp_path, memory):
    """The server's own system calls; the images are started as a server, which recovers from its log."""
    import psycopg

    from callslip import api
    from callslip.corpus.documents import Document
    from callslip.storage.copies import share_index

    strace = needs_strace()
    data, address, start, stop = own_postgres
    make_index(tmp_path / "index", FIRST)
    share_index(tmp_path / "index", address)
    index = api.load(tmp_path / "index")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        pids = [pid for (pid,) in connection.execute("SELECT pid FROM pg_stat_activity")]
    postmaster = int((data / "postmaster.pid").read_text().split()[0])
    shutil.copytree(data, memory / "base", symlinks=True)
    trace = tmp_path / "trace"
    watching = [argument for pid in {postmaster, *pids} for argument in ("-p", str(pid))]
    tracer = subprocess.Popen([strace, *options(trace), *watching], stderr=subprocess.PIPE)
    time.sleep(1.0)  # until it is attached to all of them
    acknowledged = [0.0]
    for number in range(4):
        index.add([Document(f"new{number}", f"words {number}")])
        acknowledged.append(time.time())
        index.delete([f"d{number}"])
        acknowledged.append(time.time())
    tracer.send_signal(signal.SIGINT)
    tracer.wait(timeout=30)
    index.close()
    stop()
    calls = [call for call in read(trace) if call.path.startswith(str(data))]
    assert any(call.name == "sync" and "pg_wal" in call.path for call in calls)

    def recovered(calls, number, mode):
        """What a server finds that starts after a power cut at an acknowledgement."""
        disk = Disk(data, memory / "base")
        for call in calls:
            if call.time <= acknowledged[number]:
                disk.do(call)
        shutil.rmtree(data)
        shutil.copytree(memory / "base", data, symlinks=True)
        disk.leave(data, mode)
        (data / "postmaster.pid").unlink(missing_ok=True)
        for path in [data, *data.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)
            if os.geteuid() == 0:
                shutil.chown(path, "postgres", "postgres")
        start()
        try:
            return contents(tmp_path / "index").keys()
        finally:
            stop()

    for number in (1, 4, 8):
        found = recovered(calls, number, MODES[number % 2])
        assert {f"new{n}" for n in range((number + 1) // 2)} <= found, f"after {number} changes"
        assert not {f"d{n}" for n in range(number // 2)} & found, f"after {number} changes"
    without = [call for call in calls if call.name != "sync" or "pg_wal" not in call.path]
    assert "new3" not in recovered(without, 8, "dropped")  # so this test can fail
