"""Vectors that grow, against plain arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.errors import IndexCorrupt
from callslip.search import vector_table
from callslip.search.vector_table import VectorTable


def numbers(count: int, dim: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


@settings(deadline=None)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.integers(0, 3), st.booleans(), st.data())
def test_a_table_is_its_vectors_one_after_the_other(sizes, dim, half, data):
    parts = [numbers(size, dim, seed) for seed, size in enumerate(sizes)]
    if half:
        parts = [part.astype(np.float16).astype(np.float32) for part in parts]
    table = VectorTable.of(parts[0], np.float16 if half else None)
    for part in parts[1:]:
        table = table.extended(part)
    truth = np.concatenate(parts)
    assert table.shape == truth.shape and len(table) == len(truth)
    np.testing.assert_array_equal(np.asarray(table), truth)
    rows = np.array(data.draw(st.lists(st.integers(0, max(0, len(truth) - 1)), max_size=9 if len(truth) else 0)), int)
    np.testing.assert_array_equal(table[rows], truth[rows])
    np.testing.assert_array_equal(table[: len(truth) // 2], truth[: len(truth) // 2])
    np.testing.assert_array_equal(table[:, :1], truth[:, :1])
    np.testing.assert_array_equal(table[truth.sum(axis=1) > 0], truth[truth.sum(axis=1) > 0])
    np.testing.assert_array_equal(np.asarray(table.kept(rows)), truth[rows])
    query = numbers(1, dim, 99)[0]
    np.testing.assert_allclose(table @ query, truth @ query, atol=1e-5)
    if len(truth):
        np.testing.assert_array_equal(table[-1], truth[-1])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dim", [0, 5])
def test_files_are_mapped_and_keep_their_type(tmp_path, half, dim):
    table = VectorTable.of(numbers(70, dim, 0), np.float16 if half else None).extended(numbers(3, dim, 1))
    table.save(tmp_path / "vectors.npy")
    assert np.load(tmp_path / "vectors.npy", allow_pickle=False).dtype == (np.float16 if half else np.float32)
    again = VectorTable.load(tmp_path / "vectors.npy")
    np.testing.assert_array_equal(np.asarray(again), np.asarray(table))
    np.testing.assert_array_equal(
        again.extended(numbers(1, dim, 2))[72:], np.asarray(table.extended(numbers(1, dim, 2)))[72:]
    )


def test_files_of_something_else_are_refused(tmp_path):
    np.save(tmp_path / "vectors.npy", np.arange(6))
    with pytest.raises(IndexCorrupt, match="not one of vectors"):
        VectorTable.load(tmp_path / "vectors.npy")


def test_two_extensions_of_one_table_do_not_disturb_each_other():
    table = VectorTable(numbers(3, 2, 0)).extended(numbers(1, 2, 1))
    one, other = table.extended(numbers(1, 2, 2)), table.extended(numbers(2, 2, 3))
    np.testing.assert_array_equal(one[4:], numbers(1, 2, 2))
    np.testing.assert_array_equal(other[4:], numbers(2, 2, 3))
    assert len(table) == 4
    with pytest.raises(IndexError):
        table[np.array([4])]


def test_an_addition_copies_no_other_vector(monkeypatch):
    """Of many additions of one vector, few copy anything, and none the vectors of the beginning."""
    first, copies = numbers(50, 2, 0), []
    table, added = VectorTable(first), list(numbers(300, 2, 1)[:, None])
    original = np.empty
    monkeypatch.setattr(vector_table.np, "empty", lambda *a, **k: copies.append(a[0][0]) or original(*a, **k))
    for vector in added:
        table = table.extended(vector)
    assert len(copies) <= 5 and next(table.parts()) is first
