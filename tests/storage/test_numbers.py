"""Numbers of rows as runs, against lists."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.errors import IndexCorrupt
from callslip.storage.rows import Numbers, read_numbers

ascending = st.lists(st.integers(1, 4), max_size=30).map(lambda steps: np.cumsum(steps).astype(int).tolist())


@given(ascending, ascending, st.lists(st.integers(0, 200), max_size=10))
def test_runs_answer_like_a_list(first, steps, asked):
    numbers = Numbers.of(first)
    assert numbers.tolist() == first and len(numbers) == len(first) and numbers.last() == (first or [0])[-1]
    fixed, more = numbers.copy(), [(first or [0])[-1] + step for step in steps]
    numbers.extend(more)
    whole = first + more
    assert numbers.tolist() == whole and fixed.tolist() == first
    np.testing.assert_array_equal(numbers.of_rows(range(len(whole))), whole)
    rows = numbers.rows_of(asked).tolist()
    assert rows == [whole.index(number) if number in whole else -1 for number in asked]
    some = np.arange(0, len(whole), 2)
    assert numbers.taken(some).tolist() == whole[::2]
    with pytest.raises(IndexError):
        numbers.of_rows([len(whole)])


@given(ascending)
def test_saved_numbers_are_the_same(values):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.npy"
        np.save(path, Numbers.of(values).array())
        assert read_numbers(path).tolist() == values


def test_a_new_index_has_one_run_of_sixteen_bytes():
    assert Numbers([1], [10**9]).array().tolist() == [[1, 10**9]]


@pytest.mark.parametrize(
    "array", [[[1, 0]], [[0, 3]], [[1, 3], [3, 1]], [[5, 1], [1, 1]], [[1, 2, 3]], [3, 2], [0, 1], [[[1, 2]]]]
)
def test_other_arrays_are_refused(tmp_path, array):
    np.save(tmp_path / "n.npy", np.array(array, np.int64))
    with pytest.raises(IndexCorrupt, match=r"n\.npy"):
        read_numbers(tmp_path / "n.npy")
