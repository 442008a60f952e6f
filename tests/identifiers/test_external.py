"""The table that is sorted on disk against the one that is sorted in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.errors import BadSetting
from callslip.identifiers import external
from callslip.identifiers.external import write_table
from callslip.identifiers.table import END, Identifiers
from callslip.identifiers.trie import Trie


def same_files(codes: np.ndarray, blocks, length: int, **options) -> None:
    """All arrays, and the bytes of all files, are those of the table in memory."""
    with tempfile.TemporaryDirectory() as place:
        one, other = Path(place) / "external", Path(place) / "memory"
        assert write_table(blocks, one, length, **options) == len(codes)
        Identifiers([f"d{n}" for n in range(len(codes))], codes).save(other)
        names = {path.name for path in other.iterdir()} - {"doc_ids.json"}
        assert {path.name for path in one.iterdir()} == names  # nothing is left of the sort
        for name in sorted(names):
            mine, theirs = (np.load(folder / name, allow_pickle=False) for folder in (one, other))
            assert mine.dtype == theirs.dtype, name
            np.testing.assert_array_equal(mine, theirs, err_msg=name)
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


@st.composite
def coded(draw):
    length, width = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 5, 300, 70_000]))
    short = draw(st.booleans())
    code = st.lists(st.integers(0, width - 1), min_size=1 if short else length, max_size=length)
    padded = code.map(lambda tokens: [*tokens, *[END] * (length - len(tokens))])
    codes = np.array(draw(st.lists(padded, min_size=1, max_size=60)), np.int32)
    cuts = sorted(draw(st.lists(st.integers(0, len(codes)), max_size=3)))
    return length, codes, np.split(codes, cuts)


@settings(deadline=None, max_examples=80)
@given(coded(), st.sampled_from([1, 3, 10, 1000]))
def test_files_are_those_of_the_table_in_memory(made, held):
    length, codes, blocks = made
    same_files(codes, blocks, length, held=held)


@pytest.mark.parametrize("held", [50, 700, 10**6])
def test_many_codes_of_every_kind(held, monkeypatch):
    """More nodes than a block of offsets, buckets beyond a byte, more tokens than open files, short codes."""
    monkeypatch.setattr(external, "FILES", 5)
    rng = np.random.default_rng(held)
    codes = np.concatenate([rng.integers(0, 12, (2000, 3)), np.tile([[3, 4, 5]], (400, 1))])
    codes[:200, 2] = END
    codes = rng.permutation(codes).astype(np.int32)
    same_files(codes, np.array_split(codes, 7), 3, held=held)


def test_long_codes_are_sorted_too():
    codes = np.random.default_rng(0).integers(0, 1000, (300, 9)).astype(np.int32)
    codes[150:] = codes[:150]
    same_files(codes, [codes], 9)


def test_without_codes_the_trie_can_be_searched(tmp_path):
    codes = np.random.default_rng(0).integers(0, 9, (500, 3)).astype(np.int32)
    assert write_table([codes], tmp_path, 3, with_codes=False) == 500
    assert not (tmp_path / "codes.npy").exists()
    trie, rows = Trie.load(tmp_path, 3), np.load(tmp_path / "rows.npy")
    for row in (0, 17, 499):
        leaf = trie.node_of(codes[row].tolist())
        assert row in rows[trie.documents_of(2, leaf)]


def test_blocks_of_other_codes_are_refused(tmp_path):
    with pytest.raises(BadSetting, match="3 tokens in a table of 2"):
        write_table([np.zeros((4, 3), np.int32)], tmp_path, 2)
    assert not list(tmp_path.iterdir())
