"""Batches of documents that share a prefix."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.training.batches import by_group, by_length, steps


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20), st.integers(1, 7))
def test_each_round_has_every_document_with_a_text_once(documents, batch_size):
    groups = np.unique([group for group, _ in documents], return_inverse=True)[1]
    texts, first = [], 0
    for _, count in documents:
        texts.append(np.arange(first, first + count))
        first += count
    with_text = [row for row, own in enumerate(texts) if len(own)]
    found = list(by_group(groups, texts, batch_size, seed=3, epoch=1, rounds=2))
    assert len(found) == 2 * steps(len(with_text), batch_size)
    for rows, asked in found:
        assert 0 < len(rows) == len(asked) <= batch_size
        assert len(set(rows.tolist())) == len(rows)
        assert all(text in texts[row] for row, text in zip(rows, asked, strict=True))
    half = len(found) // 2
    for part in (found[:half], found[half:]):
        order = np.concatenate([rows for rows, _ in part]) if part else np.zeros(0, np.int64)
        assert sorted(order.tolist()) == with_text
        runs = groups[order]
        assert 1 + np.count_nonzero(np.diff(runs)) == len(set(runs.tolist())) if len(runs) else True


def test_epochs_differ_and_are_the_same_again():
    groups, texts = np.repeat(np.arange(5), 4), [np.arange(3) + 3 * row for row in range(20)]

    def drawn(epoch):
        return [rows.tolist() + asked.tolist() for rows, asked in by_group(groups, texts, 6, seed=0, epoch=epoch)]

    assert drawn(0) == drawn(0) != drawn(1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 20), max_size=60), st.integers(1, 7), st.integers(1, 4))
def test_batches_by_length_hold_every_example_once(lengths, batch_size, window):
    found = list(by_length(np.array(lengths, np.int64), batch_size, seed=1, epoch=2, window=window))
    assert len(found) == steps(len(lengths), batch_size)
    assert sorted(row for rows in found for row in rows.tolist()) == list(range(len(lengths)))
    assert all(0 < len(rows) <= batch_size for rows in found)


def test_batches_by_length_hold_like_lengths_in_another_order_each_epoch():
    lengths = np.random.default_rng(0).integers(1, 21, 2000)
    spread = [int(np.ptp(lengths[rows])) for rows in by_length(lengths, 50, seed=0, epoch=0)]
    assert np.mean(spread) < 2.5  # 18 if they were shuffled
    first, second = (np.concatenate(list(by_length(lengths, 50, seed=0, epoch=epoch))) for epoch in (0, 1))
    assert first.tolist() != second.tolist()
    assert not np.all(np.diff([lengths[rows].mean() for rows in by_length(lengths, 50, seed=0, epoch=0)]) >= 0)
