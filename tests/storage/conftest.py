"""Storage is tested without torch; see `word_codes`."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def word_codes_method(monkeypatch):
    import word_codes

    from callslip.methods import METHODS

    monkeypatch.setitem(METHODS, "word-codes", word_codes.METHOD)


@pytest.fixture
def memory(tmp_path):
    """A folder in memory where there is one: for tests of logic, which open thousands of indexes."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else tmp_path))
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="session")
def postgres():
    """The address of a real server that is started for the tests, and how to restart it."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = shutil.which("initdb") or (binaries and str(binaries[-1]))
    if not found:
        pytest.skip("no PostgreSQL server is installed: initdb is neither on the path nor in /usr/lib/postgresql")
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    place = Path(tempfile.mkdtemp(prefix="callslip-postgres-"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        if shutil.which("runuser") is None or subprocess.run(["id", "postgres"], capture_output=True).returncode:
            pytest.skip("running as root, without a user `postgres` to run the server as")
        shutil.chown(place, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    data = place / "data"

    def run(program, *arguments):
        command = [*as_user, str(Path(found).parent / program), *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=place)

    run("initdb", "-D", data, "-U", "callslip", "--auth=trust", "--no-sync")
    options = f"-c listen_addresses='' -k {place}"
    run("pg_ctl", "-D", data, "-l", place / "log", "-o", options, "-w", "start")
    restart = functools.partial(run, "pg_ctl", "-D", data, "-l", place / "log", "-m", "immediate", "-w", "restart")
    yield f"host={place} dbname=postgres user=callslip", restart
    run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgres"])
def new_index(request):
    """Makes an index of texts, with its documents in one store or the other."""
    import word_codes

    if request.param == "sqlite":
        return word_codes.make_index
    address, _ = request.getfixturevalue("postgres")

    def make(path, texts):
        from callslip.storage.copies import share_index

        word_codes.make_index(path, texts)
        share_index(path, address)

    return make
