"""The table of segments against plain loops, through changes and files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.identifiers.tied import token_sums
from callslip.index.segment_table import SegmentTable

LENGTH = 3


def block(counts, seed):
    rng = np.random.default_rng(seed)
    total = int(np.sum(counts))
    codes = rng.integers(0, 256, (total, LENGTH)).astype(np.uint8)
    return codes, rng.uniform(0.5, 2, total).astype(np.float16), np.asarray(counts, np.uint8)


def plain_nearest(blocks, table, rows, similarity):
    """The best of each row's text and its segments, one at a time."""
    of_row = []
    for codes, scales, counts in blocks:
        at = 0
        for count in counts.tolist():
            of_row.append((codes[at : at + count], scales[at : at + count]))
            at += count
    best = []
    for row, own in zip(rows, similarity, strict=True):
        codes, scales = of_row[row]
        there = [(own + token_sums(table, code[None])[0]) * float(scale) for code, scale in zip(codes, scales)]
        best.append(max([own, *there]))
    return np.array(best)


counts = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@settings(deadline=None)
@given(st.lists(counts, min_size=1, max_size=6), st.integers(0, 1000))
def test_the_nearest_segment_is_that_of_a_plain_loop(planned, seed):
    rng = np.random.default_rng(seed)
    blocks = [block(some, seed + at) for at, some in enumerate(planned)]
    table = SegmentTable.of(*blocks[0])
    for one in blocks[1:]:
        table = table.with_more(*one)
    total = sum(map(len, planned))
    assert len(table) == total and table.total == sum(map(sum, planned))
    rows = rng.permutation(total)[: rng.integers(1, total + 1)]
    tokens, similarity = rng.normal(size=(LENGTH, 256)).astype(np.float32), rng.normal(size=len(rows))
    expected = plain_nearest(blocks, tokens, rows, similarity)
    np.testing.assert_allclose(table.nearest(tokens, rows, similarity), expected, rtol=1e-3, atol=1e-4)
    kept = np.sort(rows)
    again = table.kept(kept).nearest(tokens, np.arange(len(kept)), similarity)
    np.testing.assert_allclose(again, plain_nearest(blocks, tokens, kept, similarity), rtol=1e-3, atol=1e-4)


def test_a_table_is_the_same_from_blocks_and_from_a_folder(tmp_path):
    blocks = [block([1, 0, 2], 0), block([0], 1), block([3, 3], 2)]
    table = SegmentTable.of_blocks(lambda: blocks)
    grown = SegmentTable.of(*blocks[0]).with_more(*blocks[1]).with_more(*blocks[2])
    grown.save(tmp_path)
    loaded = SegmentTable.load(tmp_path)
    tokens, rows = np.random.default_rng(3).normal(size=(LENGTH, 256)).astype(np.float32), np.arange(6)
    expected = plain_nearest(blocks, tokens, rows, np.zeros(6))
    for one in (table, grown, loaded):
        np.testing.assert_allclose(one.nearest(tokens, rows, np.zeros(6)), expected, rtol=1e-3, atol=1e-4)
    (tmp_path / "empty").mkdir()
    assert SegmentTable.load(tmp_path / "empty") is None


def test_an_addition_leaves_the_table_as_it_is_and_layers_few():
    table = SegmentTable.of(*block([2] * 1000, 0))
    grown = table
    for at in range(100):
        grown = grown.with_more(*block([1, 2], at))
    assert len(table) == 1000 and len(grown) == 1200 and len(grown.layers) <= 9
    assert grown.layers[0].codes is table.layers[0].codes


@pytest.mark.parametrize("rows", [[], [0, 2]])
def test_rows_may_have_no_segments(rows):
    table = SegmentTable.of(*block([0, 0, 0], 0))
    similarity = np.arange(len(rows), dtype=np.float32)
    found = table.nearest(np.zeros((LENGTH, 256), np.float32), np.asarray(rows, int), similarity)
    np.testing.assert_array_equal(found, similarity)
