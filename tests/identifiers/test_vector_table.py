"""Vectors that grow, against plain arrays."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.errors import IndexCorrupt
from callslip.identifiers import vector_table
from callslip.identifiers.vector_table import VectorTable


def numbers(count: int, dim: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def table_of(vectors: np.ndarray, half: bool) -> VectorTable:
    return VectorTable.of(vectors) if half else VectorTable(vectors)


def in_order_of(rows: np.ndarray, vectors: np.ndarray, half: bool, folder: Path) -> VectorTable:
    """A table that is mapped from a file in which the vectors lie in the order of `rows`."""
    np.save(folder / "rows.npy", rows)
    table_of(vectors, half).save(folder, rows)
    return VectorTable.load(folder)


@settings(deadline=None)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=6), st.integers(0, 3), st.booleans(), st.booleans(), st.data())
def test_a_table_is_its_vectors_one_after_the_other(sizes, dim, half, by_code, data):
    parts = [numbers(size, dim, seed) for seed, size in enumerate(sizes)]
    if half:
        parts = [part.astype(np.float16).astype(np.float32) for part in parts]
    with tempfile.TemporaryDirectory() as place:
        if by_code:
            order = np.random.default_rng(0).permutation(sizes[0]).astype(np.int32)
            table = in_order_of(order, parts[0], half, Path(place))
        else:
            table = table_of(parts[0], half)
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
    table = table_of(numbers(70, dim, 0), half).extended(numbers(3, dim, 1))
    table.save(tmp_path)
    assert np.load(tmp_path / "vectors.npy", allow_pickle=False).dtype == (np.float16 if half else np.float32)
    again = VectorTable.load(tmp_path)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(table))
    np.testing.assert_array_equal(
        again.extended(numbers(1, dim, 2))[72:], np.asarray(table.extended(numbers(1, dim, 2)))[72:]
    )


@pytest.mark.parametrize("half", [False, True])
def test_vectors_of_documents_with_codes_lie_in_the_order_of_the_codes(tmp_path, monkeypatch, half):
    monkeypatch.setattr(vector_table, "BLOCK", 7)  # so that there are several blocks
    rng = np.random.default_rng(0)
    vectors = numbers(40, 3, 0).astype(np.float16).astype(np.float32)
    table = in_order_of(rng.permutation(40), vectors, half, tmp_path)
    more = table.extended(numbers(2, 3, 1).astype(np.float16))
    truth, order = np.concatenate([vectors, np.asarray(more)[40:]]), rng.permutation(42)
    (tmp_path / "next").mkdir()
    grown = in_order_of(order, np.asarray(more), half, tmp_path / "next")
    np.testing.assert_array_equal(np.load(tmp_path / "next" / "vectors-by-code.npy", allow_pickle=False), truth[order])
    for one, expected in ((table, truth[:40]), (more, truth), (grown, truth)):
        np.testing.assert_array_equal(np.asarray(one), expected)
        np.testing.assert_array_equal(np.concatenate(list(one.blocks())), expected)
        np.testing.assert_array_equal(one[np.array([39, 3, 3])], expected[[39, 3, 3]])
    with pytest.raises(FileNotFoundError):  # what reads them by row must not find them
        np.load(tmp_path / "vectors.npy")


def test_files_of_something_else_are_refused(tmp_path):
    np.save(tmp_path / "vectors.npy", np.arange(6))
    with pytest.raises(IndexCorrupt, match="not one of vectors"):
        VectorTable.load(tmp_path)
    VectorTable.of(numbers(3, 2, 0)).save(tmp_path, np.arange(3))
    for rows in (np.arange(4), np.array([0, 1, 3]), np.array([-1, 0, 1]), np.zeros(3)):
        np.save(tmp_path / "rows.npy", rows)
        with pytest.raises(IndexCorrupt, match="does not number the 3 vectors"):
            VectorTable.load(tmp_path)


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
