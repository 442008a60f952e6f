"""Commonest words of a node: a worked example, and properties."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from callslip.corpus.documents import Document
from callslip.identifiers.prefix_words import (
    SAMPLE,
    Labels,
    commonest_words,
    document_frequencies,
    label,
    words_of,
)

TEXTS = ["The cat sat.", "The cat ran, the cat!", "The dog ran.", "The bird flew off."]


def test_a_worked_example():
    background = document_frequencies(TEXTS)
    assert (background[""], background["the"], background["cat"], background["ran"]) == (4, 4, 2, 2)
    # cat: in 2 of 2, against (2 + 1) / 5; ran and sat are in one text only; "the" is everywhere
    assert commonest_words(TEXTS[:2], background) == ["cat"]
    assert commonest_words(TEXTS[2:3], background, 1) == ["dog"]


def test_small_branches_are_labelled_by_words_of_single_documents():
    background = document_frequencies(TEXTS)
    branch = [Document("1", TEXTS[2]), Document("2", TEXTS[3])]
    assert commonest_words(TEXTS[2:], background) == []  # they share "the" alone
    assert label(branch, background) == ["bird", "dog", "flew", "off"]
    assert label(branch, background, 2) == ["bird", "dog"]
    # what several share comes first
    assert label([Document(str(n), text) for n, text in enumerate(TEXTS[:2])], background, 2) == ["cat", "sat"]
    assert label([Document("a-1", ""), Document("a-2", "")], background) == ["a-1", "a-2"]


def test_labels_do_not_depend_on_the_order_of_rows_or_on_deleted_ones():
    documents = [Document(str(n), f"word{n % 7} the", "") for n in range(100)]
    alive = np.arange(100) % 10 > 0
    labels = Labels(lambda rows: [documents[row] for row in rows], alive)
    background = labels.background()
    assert background[""] == 90
    rows = np.arange(20, 80)
    assert labels.of(rows, background) == labels.of(rows[::-1], background)
    seen = []
    Labels(lambda rows: seen.extend(rows) or [documents[row] for row in rows], alive).of(rows, background)
    assert len(seen) == SAMPLE and all(alive[row] for row in seen) and seen == sorted(set(seen))


def test_words():
    assert words_of("It's 12 o'clock, re-read x_y Über 3rd") == {"it's", "o'clock", "re-read", "x_y", "über"}
    assert commonest_words([], document_frequencies(TEXTS)) == []


@given(st.lists(st.text(alphabet="abc de", max_size=20), max_size=8), st.integers(0, 5))
def test_no_more_than_asked_and_only_words_of_several_texts(texts, top):
    background = document_frequencies([*texts, "xyz abc", "qqq"])
    found = commonest_words(texts, background, top)
    assert len(found) <= top and len(set(found)) == len(found)
    for word in found:
        assert sum(word in words_of(text) for text in texts) >= min(2, len(texts))
