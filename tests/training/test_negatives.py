"""Hard negatives and margins against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import glen as plain

from callslip.errors import BadSetting
from callslip.identifiers import Identifiers
from callslip.search.bm25 import WordIndex
from callslip.training.margins import products, scores_at
from callslip.training.negatives import NONE, Answers, draw, hard_candidates, prefix_negatives


@st.composite
def rankings(draw_):
    texts, documents = draw_(st.integers(1, 5)), draw_(st.integers(1, 8))
    scores = draw_(
        st.lists(
            st.lists(st.integers(-2, 9), min_size=documents, max_size=documents, unique=False),
            min_size=texts,
            max_size=texts,
        )
    )
    pairs = draw_(st.lists(st.tuples(st.integers(0, texts - 1), st.integers(0, documents - 1)), max_size=12))
    pairs.append((texts - 1, 0))  # the last text has an answer, so that all are counted
    return np.array(scores, dtype=np.float32), pairs, documents


@given(rankings(), st.integers(1, 9))
def test_candidates_are_the_best_that_do_not_answer(case, top):
    scores, pairs, documents = case
    answers = Answers(np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]), documents)
    found = hard_candidates(iter(scores), answers, top)
    assert found.shape == (len(scores), top)
    for text, values in enumerate(scores):
        rows = [row for row in found[text].tolist() if row != NONE]
        right = {row for of, row in pairs if of == text}
        assert found[text, len(rows) :].tolist() == [NONE] * (top - len(rows))
        assert len(set(rows)) == len(rows) and not right & set(rows)
        order = sorted(range(documents), key=lambda row: (-values[row], row))[:top]  # the first of equals is better
        assert rows == [row for row in order if values[row] > 0 and row not in right]


@given(rankings(), st.integers(1, 9), st.integers(1, 3))
def test_sparse_blocks_give_the_same_candidates(case, top, size):
    scores, pairs, documents = case
    answers = Answers(np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]), documents)
    blocks = [scipy.sparse.csr_array(scores[start : start + size]) for start in range(0, len(scores), size)]
    assert (hard_candidates(blocks, answers, top) == hard_candidates(iter(scores), answers, top)).all()


WORDS = [f"word{number}" for number in range(12)]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=9), min_size=1, max_size=9),
    st.lists(st.lists(st.sampled_from([*WORDS, "stranger", "the"]), max_size=7), min_size=1, max_size=8),
    st.integers(1, 60),
    st.integers(1, 6),
)
def test_bm25_mines_in_sparse_blocks_what_a_loop_over_all_documents_finds(texts, queries, postings, top):
    """Scores are equal bit for bit, also of repeated words; so candidates are, ties included."""
    texts, queries = [" ".join(some) for some in texts], [" ".join(some) for some in queries]
    words = WordIndex().index(texts)
    plain, blocks = list(words.scores_of(queries)), list(words.sparse_scores_of(queries, postings))
    assert np.array_equal(np.concatenate([block.toarray() for block in blocks]), np.stack(plain))
    assert all(block.nnz <= postings for block in blocks if block.shape[0] > 1)
    answers = Answers(np.arange(len(queries)), np.arange(len(queries)) % len(texts), len(texts))
    naive = [
        sorted((row for row in range(len(texts)) if one[row] > 0), key=lambda row: (-one[row], row))[:top]
        for one in plain
    ]
    found = hard_candidates(blocks, answers, top)
    for number, rows in enumerate(naive):
        kept = [row for row in rows if row != number % len(texts)]
        assert found[number].tolist() == kept + [NONE] * (top - len(kept))


def test_mining_never_makes_a_vector_of_all_documents():
    """A word of few documents costs as much as it has occurrences, however many documents there are."""
    words = WordIndex().index([f"common{row % 3} rare{row}" for row in range(3000)])
    (block,) = words.sparse_scores_of([f"rare{row}" for row in range(500)])
    assert block.shape == (500, 3000) and block.nnz == 500
    assert len(list(words.sparse_scores_of(["common0"] * 6, postings=2500))) == 3  # 1000 occurrences each


def test_scores_of_another_number_of_texts_are_refused():
    answers = Answers(np.array([0, 1]), np.array([0, 0]), 3)
    with pytest.raises(BadSetting, match="1 texts"):
        hard_candidates([np.ones(3)], answers)


def test_answers_by_text_and_in_a_table():
    answers = Answers(np.array([0, 0, 2, 2]), np.array([3, 1, 0, 0]), 4)
    assert len(answers) == 3
    assert sorted(answers.of(0)) == [1, 3]
    assert len(answers.of(1)) == 0
    table = answers.among(np.array([2, 0, 0]), np.array([0, 3, 3, 2]))
    assert table.tolist() == [[True, False, False, False], [False, True, True, False], [False, True, True, False]]


def test_drawn_are_candidates_or_strangers():
    candidates = np.array([[4, 2, NONE], [NONE, NONE, NONE]], dtype=np.int32)
    drawn = draw(candidates, 50, 6, np.random.default_rng(0))
    assert set(drawn[0].tolist()) == {4, 2}
    assert set(drawn[1].tolist()) == set(range(6))
    assert draw(candidates, 0, 6, np.random.default_rng(0)).shape == (2, 0)


def test_scores_are_picked_text_by_text():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(4, 7)).astype(np.float32)
    text, rows = np.array([2, 0, 3, 0, 1]), rng.integers(0, 7, (5, 3))
    truth = [[table[t, r] for r in some] for t, some in zip(text, rows, strict=True)]
    np.testing.assert_array_equal(scores_at(iter(table), text, rows), truth)


@pytest.mark.parametrize("size", [1, 3])
def test_scores_are_picked_from_sparse_blocks(size):
    rng = np.random.default_rng(0)
    table = rng.integers(0, 3, size=(4, 7)).astype(np.float32)
    text, rows = np.array([2, 0, 3, 0, 1]), rng.integers(0, 7, (5, 3))
    blocks = [scipy.sparse.csr_array(table[start : start + size]) for start in range(0, 4, size)]
    np.testing.assert_array_equal(scores_at(blocks, text, rows), table[text[:, None], rows])
    with pytest.raises(ValueError, match="scores for 3 texts"):
        scores_at([table[0]] * 3, text, rows)


def test_products_are_those_of_pairs():
    rng = np.random.default_rng(0)
    queries, documents, rows = rng.normal(size=(5, 3)), rng.normal(size=(7, 3)), rng.integers(0, 7, (5, 2))
    truth = [[float(queries[n] @ documents[r]) for r in rows[n]] for n in range(5)]
    np.testing.assert_allclose(products(queries, documents, rows, block=2), truth, rtol=1e-5)


@given(
    st.integers(1, 3).flatmap(
        lambda length: st.lists(st.lists(st.integers(0, 2), min_size=length, max_size=length), min_size=1, max_size=14)
    ),
    st.integers(1, 9),
    st.integers(0, 9),
)
def test_prefix_negatives_share_the_longest_prefixes_there_are(codes, count, seed):
    table = Identifiers([str(row) for row in range(len(codes))], codes)
    found = prefix_negatives(table, count, np.random.default_rng(seed))
    assert found.shape == (len(codes), count)
    for row, others in enumerate(found.tolist()):
        if len(codes) == 1:
            assert set(others) == {0}
            continue
        wanted = min(count, len(codes) - 1)
        assert row not in others and len(set(others)) == wanted
        first = others[:wanted]
        assert [plain.shared(codes[row], codes[other]) for other in first] == plain.prefix_lengths(codes, row, count)
        assert set(others) == set(first)


def test_prefix_negatives_are_drawn_anew_where_there_are_more_than_wanted():
    table = Identifiers([str(row) for row in range(200)], [[row % 2, 0] for row in range(200)])
    rng = np.random.default_rng(0)
    drawn = {tuple(sorted(prefix_negatives(table, 4, rng)[0])) for _ in range(5)}
    assert len(drawn) == 5
    assert all(row % 2 == 0 for rows in drawn for row in rows)
