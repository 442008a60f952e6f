"""Codes made of words, against the definition written as a loop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import identifiers as naive

from callslip.corpus.documents import Corpus, Document
from callslip.errors import BadSetting
from callslip.identifiers import (
    END,
    Identifiers,
    code_to_text,
    keyword_codes,
    text_codes,
    title_codes,
    url_codes,
)
from callslip.identifiers.keywords import Within, bm25_weights, corpus_vocabulary, default_tokenizer

words = st.sampled_from(["cell", "phase", "cycle", "of", "the", "a1", "42", "##ing", "-"])
texts = st.lists(st.lists(words, min_size=1, max_size=12).map(" ".join), min_size=1, max_size=8)


def as_words(result):
    return [[result.vocabulary[token] for token in code if token != END] for code in result.codes.tolist()]


@given(texts, st.integers(1, 4))
def test_keywords_are_the_heaviest_pieces(corpus, length):
    found = as_words(keyword_codes(corpus, length, str.split))
    for one, expected in zip(found, naive.keyword_words(corpus, length, str.split)):
        assert one == expected or (not expected and not any(any(c.isalpha() for c in word) for word in one))


def test_only_the_head_counts_for_frequency_and_the_whole_for_rarity():
    filler = " ".join(["pad"] * 156)
    corpus = [*[f"{filler} late"] * 3, "late early", "early"]
    found = as_words(keyword_codes(corpus, 2, str.split))
    assert found[0] == ["pad", "pad"]  # "late" stands beyond the head
    assert found[3] == ["early", "late"]  # "late" is in four whole texts, though in one head only
    assert found == naive.keyword_words(corpus, 2, str.split)


def test_weights_by_hand():
    weights = bm25_weights(["a", "b", "a", "c"], {"a": 1.0, "b": 2.0, "c": 0.5}, mean_length=8.0)
    norm = 100 * (0.25 + 0.75 * 4 / 8)  # 62.5
    expected = {"a": 1.0 * 2 * 101 / (2 + norm), "b": 2.0 * 101 / (1 + norm), "c": 0.5 * 101 / (1 + norm)}
    assert list(weights) == ["a", "b", "c"] and weights == pytest.approx(expected)


def test_a_document_without_words_still_has_a_code():
    result = keyword_codes(["12 34", "", "cell"], 2, str.split)
    assert as_words(result) == [["12", "34"], ["[none]", "[none]"], ["cell", "cell"]]
    with pytest.raises(BadSetting):
        keyword_codes(["a"], 0)


def test_embedded_word_pieces_are_not_cut():
    cut = default_tokenizer()
    assert cut("The cell cycle") == ["the", "cell", "cycle"]
    assert len(cut("cell " * 700)) == 700
    assert cut("") == [] and "[UNK]" not in cut("cell \U0001f9ec")
    assert any(piece.startswith("##") for piece in cut("photophosphorylation"))


def test_keywords_of_a_corpus_by_the_embedded_pieces():
    corpus = Corpus(
        [
            Document("1", "the phase of the cell cycle", title="G0 phase"),
            Document("2", "the orchestra plays the violin concerto"),
            Document("3", "the river and the sea"),
        ]
    )
    result = keyword_codes(corpus, 3)
    assert result.codes.shape == (3, 3)
    assert code_to_text(result.codes[0], result.vocabulary).split("-")[0] == "phase"  # the only one it has twice
    assert all("the" not in row for row in as_words(result)[:2])
    assert as_words(result) == naive.keyword_words([d.content for d in corpus], 3, default_tokenizer())


def test_text_codes_share_the_prefix_of_the_text():
    result = text_codes(["a b", "a b c", "a", "a b"], str.split)
    assert as_words(result) == [["a", "b"], ["a", "b", "c"], ["a"], ["a", "b"]]
    table = Identifiers(["w", "x", "y", "z"], result.codes)
    assert table.unique == 3 and table.doc_ids[table.bucket(table.code_of("w"))] == ["w", "z"]
    assert as_words(text_codes(["a b c"], str.split, max_length=2)) == [["a", "b"]]
    with pytest.raises(BadSetting):
        text_codes(["a"], str.split, max_length=0)


def test_titles_and_addresses_have_something_to_fall_back_on():
    corpus = Corpus(
        [
            Document("d1", "some text", "A title", {"url": "https://a.org/x"}),
            Document("d2", "some text", "", {"url": ""}),
            Document("d3", ""),
        ]
    )
    assert as_words(title_codes(corpus, str.split)) == [["A", "title"], ["some", "text"], ["d3"]]
    assert as_words(url_codes(corpus, tokenizer=lambda text: text.split("/"))) == [
        ["a.org", "x"],
        ["d2"],
        ["d3"],
    ]


@given(texts, st.one_of(st.none(), st.integers(1, 4)))
def test_the_vocabulary_of_a_corpus_is_what_most_documents_use(corpus, size):
    spread = {}
    for text in corpus:
        for piece in set(text.split()):
            if any(letter.isalpha() for letter in piece):
                spread[piece] = spread.get(piece, 0) + 1
    found = corpus_vocabulary(corpus, str.split, size)
    if not spread:
        assert found == ["[none]"]
        return
    assert found == sorted(found)
    assert len(found) == min(size or len(spread), len(spread))
    least = min(spread[piece] for piece in found)
    assert all(spread[piece] <= least for piece in set(spread) - set(found))


def test_a_tokenizer_within_a_vocabulary_leaves_other_pieces_out():
    assert Within(["cell", "the"], str.split)("the cell of the cycle") == ["the", "cell", "the"]
    assert Within(["cell"])("Cells and a cell") == ["cell"]
