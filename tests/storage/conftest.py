"""Storage is tested without torch; see `word_codes`."""

from __future__ import annotations

import shutil
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
