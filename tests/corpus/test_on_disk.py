"""Tables on disk: they read as the lists they stand for, and hold next to nothing in memory."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.corpus import pseudo_queries
from callslip.corpus.documents import Corpus, Document, Pair, Query
from callslip.corpus.on_disk import PairTable, TextTable, TokenTable
from callslip.methods.dsi import DSISettings
from callslip.training.batches import training_pairs


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(codec=None), max_size=9), max_size=9), st.data())
def test_a_table_of_texts_is_the_list_of_them(texts, data):
    """Also of texts that are empty, that UTF-8 has no bytes for, and none at all."""
    table = TextTable.of(iter(texts))
    assert list(table) == texts and len(table) == len(texts) and table[1:4] == texts[1:4]
    numbers = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=9)) if texts else []
    view = table.take(np.array(numbers, np.int64))
    assert list(view) == [texts[number] for number in numbers] and list(view.take(np.arange(len(view))[::-1])) == [
        texts[number] for number in numbers[::-1]
    ]
    with pytest.raises(IndexError):
        table[len(texts)]
    if texts:
        assert table[-1] == texts[-1] == table[np.int64(len(texts) - 1)]


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=6))
def test_a_table_of_tokens_is_the_list_of_them(rows):
    table = TokenTable.of(iter(rows))
    assert table == rows and list(table) == rows and table[:2] == rows[:2] and table != [*rows, [1]]
    assert all(table[np.int64(number)] == row for number, row in enumerate(rows))


def test_pairs_are_repeated_without_storing_their_texts_again():
    pairs = [Pair("a", "y"), Pair("b", "x"), Pair("c", "y")]
    table = PairTable.of(pairs[:1], ["x", "y"], pairs[1:])
    assert table == pairs and table.rows.tolist() == [1, 0, 1]
    assert table.repeated(1, 2) == [*pairs, *pairs[1:]] and table.repeated(1, 0) == pairs[:1]
    assert table[-1] == pairs[-1] and table[1:] == pairs[1:] and table != pairs[:2]
    with pytest.raises(KeyError):
        PairTable.of([Pair("a", "nowhere")], ["x"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(codec=None), max_size=2), max_size=12), st.data())
def test_distinct_texts_are_numbered_by_first_appearance(texts, data):
    numbers = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=12)) if texts else []
    for table in (TextTable.of(texts), TextTable.of(texts).take(np.array(numbers, np.int64))):
        expected = list(dict.fromkeys(table))
        distinct, number = table.distinct()
        assert list(distinct) == expected and number.dtype == np.int64
        assert [expected[n] for n in number] == list(table)


@pytest.mark.parametrize("repeat", [0, 1, 3, None])
def test_training_pairs_are_those_of_lists(small_corpus, repeat):
    kinds = ("title", "sentences", "spans")
    made, asked = pseudo_queries(small_corpus, kinds, seed=4), small_corpus.pairs("train")
    times = max(1, round(len(made) / 3 / len(asked))) if repeat is None else repeat
    found = training_pairs(small_corpus, DSISettings(training_texts=kinds, seed=4, query_repeat=repeat))
    assert found == made + asked * times


def test_training_pairs_are_not_held_in_memory():
    """A text of 400 characters costs less than 60 bytes, and none of them is a Python object."""
    line = " ".join(f"word{number}" for number in range(58))
    documents = [Document(f"d{row}", " ".join(f"The {line} {n}." for n in range(10))) for row in range(200)]
    corpus = Corpus(documents, {"q": Query("q", "a question")}, {"train": {"q": {"d0": 1}}})
    gc.collect()
    tracemalloc.start()
    found = training_pairs(corpus, DSISettings(), whole_documents=False)
    gc.collect()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 2001 and len(found.texts[0]) > 400
    assert held < 60 * len(found) + 60 * len(corpus) + 50_000 and peak < 500_000
