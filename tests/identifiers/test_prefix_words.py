"""Commonest words of a node: a worked example, and properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callslip.identifiers.prefix_words import commonest_words, document_frequencies, words_of

TEXTS = ["The cat sat.", "The cat ran, the cat!", "The dog ran.", "The bird flew off."]


def test_a_worked_example():
    background = document_frequencies(TEXTS)
    assert (background[""], background["the"], background["cat"], background["ran"]) == (4, 4, 2, 2)
    # cat: in 2 of 2, against (2 + 1) / 5; ran and sat are in one text only; "the" is everywhere
    assert commonest_words(TEXTS[:2], background) == ["cat"]
    assert commonest_words(TEXTS[2:3], background, 1) == ["dog"]


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
