"""Records that are sorted on disk against those that are sorted in memory."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.identifiers import external
from callslip.identifiers.external import sorted_by_key

RECORD = np.dtype([("keys", np.uint16), ("number", np.int32), ("more", np.uint8, (3,))])


def records(keys) -> np.ndarray:
    """Records with these keys, numbered in their order."""
    found = np.zeros(len(keys), RECORD)
    found["keys"], found["number"] = keys, np.arange(len(keys))
    found["more"] = np.random.default_rng(0).integers(0, 256, (len(keys), 3))
    return found


@settings(deadline=None, max_examples=80)
@given(st.data(), st.sampled_from([1, 3, 10, 1000]), st.sampled_from([1, 3, 256, 1 << 16]))
def test_records_come_in_the_order_of_keys_and_then_as_they_came(data, held, keys):
    made = records(data.draw(st.lists(st.integers(0, keys - 1), max_size=60)))
    blocks = np.split(made, sorted(data.draw(st.lists(st.integers(0, len(made)), max_size=4))))
    pieces = list(sorted_by_key(iter(blocks), keys, held))
    np.testing.assert_array_equal(np.concatenate([made[:0], *pieces]), made[np.argsort(made["keys"], kind="stable")])
    assert len(made) <= held or max(map(len, pieces)) <= held


@pytest.mark.parametrize("held", [50, 700, 10**6])
def test_many_records_and_many_with_one_key(held, monkeypatch):
    """Ranges whose records have to be distributed again, and again; never more than a few files each time."""
    monkeypatch.setattr(external, "FILES", 5)
    original, opened = external._Spool.sorted, []

    def counted(self, held):
        opened.append(len(self._files))
        return original(self, held)

    monkeypatch.setattr(external._Spool, "sorted", counted)
    rng = np.random.default_rng(held)
    made = records(rng.permutation(np.concatenate([rng.integers(0, 1000, 2000), np.full(900, 7)])))
    pieces = list(sorted_by_key(np.array_split(made, 7), 1000, held))
    np.testing.assert_array_equal(np.concatenate(pieces), made[np.argsort(made["keys"], kind="stable")])
    assert held == 10**6 or max(map(len, pieces)) <= held
    assert max(opened, default=0) <= 5 and (held > 50 or len(opened) > 6)


def test_nobody_else_sees_the_files(tmp_path, monkeypatch):
    """A process that is killed leaves nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = []
    original = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **k: opened.append(original(**k)) or opened[-1])
    pieces = sorted_by_key([records(np.arange(256))], 256, held=10)
    next(pieces)
    assert len(opened) == external.FILES and not list(tmp_path.iterdir())
    list(pieces)
    assert all(file.closed for file in opened)
