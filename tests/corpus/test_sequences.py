"""Histories as arrays, against plain loops; what is kept of users."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import histories as naive
from small_log import small_log

from callslip.corpus.documents import Corpus, Document, Query
from callslip.corpus.sequences import Sequences, Users, padded, runs
from callslip.errors import CallslipError

lists = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=1, max_size=6)


def of(items: list[list[int]]) -> Sequences:
    bounds = np.cumsum([0, *map(len, items)])
    flat = np.array([item for some in items for item in some], np.int64)
    return Sequences([f"u{n}" for n in range(len(items))], flat, bounds)


def listed(examples) -> list[tuple[list[int], int, int]]:
    rows = []
    for history, target, user in zip(examples.histories, examples.targets, examples.sequence, strict=True):
        length = np.count_nonzero(history)
        assert (history[:length] > 0).all() and not history[length:].any()
        rows.append(((history[:length] - 1).tolist(), int(target), int(user)))
    return rows


@given(items=lists, longest=st.integers(1, 6))
def test_examples_are_those_of_a_plain_loop(items, longest):
    assert listed(of(items).sequential(longest)) == naive.sequential(items, longest)
    assert listed(of(items).general(longest)) == naive.general(items, longest)
    whole = of(items).whole(longest)
    assert [[int(n) - 1 for n in row if n] for row in whole] == [some[-longest:] for some in items]
    assert [some.tolist() for some in of(items).each()] == items
    assert of(items).sequential(longest).lengths.tolist() == [len(h) for h, _, _ in naive.sequential(items, longest)]


def test_sequences_hold_what_may_be_trained_on_and_no_more():
    corpus = small_log(users=20)
    row_of, sequences = corpus.rows(), corpus.sequences()
    assert sequences.users == [f"u{n}" for n in range(20)]
    for user, rows in zip(sequences.users, sequences.each(), strict=True):
        whole = corpus.queries[f"{user}#test"].history
        assert rows.tolist() == [row_of[item] for item in whole[:-1]]  # neither the test's item nor the dev's
    assert sequences.counts(len(corpus)).sum() == len(sequences.items)
    assert len(corpus.sequences("dev").items) == len(sequences.items) + 20


def test_a_corpus_of_texts_has_no_sequences():
    corpus = Corpus([Document("a", "x")], {"q": Query("q", "what")}, {"train": {"q": {"a": 1}}})
    assert len(corpus.sequences()) == 0
    assert corpus.sequences().each() == []
    assert len(corpus.sequences().sequential()) == len(corpus.sequences().general()) == 0
    assert Users.of(corpus).lines == b""


@given(histories=st.lists(st.lists(st.sampled_from("abcxyz"), max_size=7), max_size=5), longest=st.integers(1, 4))
def test_unknown_items_are_left_out_of_a_padded_history(histories, longest):
    number_of = {"a": 1, "b": 2, "c": 3}
    table = padded(histories, number_of, longest)
    assert table.shape[0] == len(histories) and 1 <= table.shape[1] <= longest
    for row, history in zip(table, histories, strict=True):
        known = [number_of[item] for item in history if item in number_of][-longest:]
        assert row.tolist() == known + [0] * (table.shape[1] - len(known))


def test_users_are_kept_with_all_they_did(tmp_path):
    corpus = small_log(users=12)
    users = Users.of(corpus)
    users.save(tmp_path)
    kept = Users.load(tmp_path)
    assert len(kept.histories) == 12
    for user, items in kept.histories.items():
        test = f"{user}#test"
        assert items == (*corpus.queries[test].history, *corpus.judgements["test"][test])
        assert kept.query(user) == Query(user, "", items)
    with pytest.raises(CallslipError, match=r"unknown user 'u1000'") as refusal:
        kept.query("u1000")
    assert "--history" in refusal.value.remedy and "'u10'" in refusal.value.remedy
    with pytest.raises(CallslipError, match="has no users"):
        Users.load(tmp_path / "nothing").query("u1")


@given(items=lists, longest=st.integers(1, 6))
def test_runs_hold_examples_that_go_on_with_one_another(items, longest):
    examples = of(items).sequential(longest)
    plain = naive.sequential(items, longest)
    bounds = runs(examples.histories, examples.targets)
    assert bounds[0] == 0 and bounds[-1] == len(examples)
    width = examples.histories.shape[1]
    for start, end in itertools.pairwise(bounds.tolist()):
        assert 0 < end - start <= width
        last = plain[end - 1][0]
        for at in range(start, end):
            history, target, _ = plain[at]
            if at + 1 < end:
                assert naive.goes_on(history, target, plain[at + 1][0], width)
            read = last[: len(last) - (end - 1 - at)]  # what is read of it in reading the last of the run
            assert history[-len(read) :] == read
            assert read == history or len(read) >= width / 2  # cut, but not to less than half


def test_a_user_with_a_short_history_is_one_run():
    examples = of([[1, 2, 3, 4], [4, 5, 6]]).sequential(20)
    assert runs(examples.histories, examples.targets).tolist() == [0, 3, 5]
