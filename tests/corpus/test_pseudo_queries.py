"""Sentences by worked examples; pseudo-queries by their properties."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.corpus import Corpus, Document, document_frequencies, pseudo_queries
from callslip.corpus.pseudo_queries import BAG_POOL, KINDS, SPAN_WORDS, lead, sentences, terms
from callslip.corpus.sentences import count_words, first_words, split_sentences
from callslip.errors import BadSetting, UnknownName

EXAMPLES = [
    ["He said no.", "Then came No. 5 on Mar. 3.", "They march."],
    ["One sentence.", "Another one!", "A third?", "The end"],
    ["Dr. Smith paid $3.50 to Mrs. J. R. Jones.", "It was 2.5 p.m. when he left."],
    ["See Fig. 3 and Eq. (2) for details, e.g. the slope, i.e. the gain.", "Then stop."],
    [["He lives in the U.S.", " weather is fine."][0], "The weather is fine."],
    ["The U.S. Army trained them, as Smith et al. Reported it."],
    [["Smith et al.", " disagree."][0], "We disagree."],
    ["Apples, pears, etc. are fruit.", "Plums, etc.", "The rest is not."],
    ['He said "Stop!"', "She did not.", "(It was late.)", "Really?!"],
    ["Wait... what?", "No…", "Yes."],
    ["Version 3.11.7 came out.", "Use foo.bar() and a.b.c now."],
    ["pH was 7.4.", "5 mg were given."],
    ["今天天气很好。", "我们去公园吧！", "好吗？"],
    [["Vitamin C.", " end."][0], "The end."],
]


@pytest.mark.parametrize("expected", EXAMPLES)
def test_sentences_by_example(expected):
    assert split_sentences(" ".join(expected)) == expected


def test_paragraphs_lists_and_tokenised_text():
    assert split_sentences("A heading\n\nA line\nthat goes on. - done\n") == [
        "A heading",
        "A line that goes on.",
        "- done",
    ]
    assert split_sentences("Shopping:\n- milk\n- eggs\n1. first") == [
        "Shopping:",
        "- milk",
        "- eggs",
        "1. first",
    ]
    assert split_sentences("lift on wings . the wave equation .") == [
        "lift on wings .",
        "the wave equation .",
    ]
    assert split_sentences(" \n ") == []


text = st.text(st.sampled_from("ab Z.!?\"'\n1é。六…)"), max_size=80)


@given(text)
def test_splitting_loses_no_character(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_long_runs_of_stops_take_no_time():
    assert len(split_sentences("." * 200_000 + '"' * 200_000)) == 1


@given(text, st.integers(1, 10))
def test_first_words(text, count):
    first = first_words(text, count)
    assert text.startswith(first)
    assert count_words(first) == min(count, count_words(text))


documents = st.lists(
    st.builds(Document, st.text("abcdef", min_size=1, max_size=3), text, text),
    unique_by=lambda d: d.doc_id,
    max_size=6,
)
kinds = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(documents, kinds, st.none() | st.integers(1, 4), st.integers(0, 5))
def test_a_document_gets_the_same_queries_in_any_company(documents, kinds, per_document, seed):
    corpus = Corpus(documents)
    frequencies = document_frequencies(corpus)
    pairs = pseudo_queries(corpus, kinds, per_document, seed, frequencies)
    assert pairs == pseudo_queries(corpus, kinds, per_document, seed)
    alone = [pseudo_queries([document], kinds, per_document, seed, frequencies) for document in documents]
    assert pairs == [pair for one in alone for pair in one]
    for one in alone:
        queries = [pair.query for pair in one]
        assert len({query.casefold() for query in queries}) == len(queries)
        assert all(query == " ".join(query.split()) != "" for query in queries)
        assert per_document is None or len(queries) <= per_document


LONG = Document("d", " ".join(f"Word{n} follows word{n - 1} here." for n in range(40)), "On words")


def test_each_kind_is_what_it_says():
    def made(kind, **rest):
        return [pair.query for pair in pseudo_queries([LONG], (kind,), **rest)]

    words = LONG.text.split()
    assert made("title") == ["On words"]
    assert made("lead") == [" ".join(words[:32])]
    assert made("sentences") == [f"Word{n} follows word{n - 1} here." for n in range(40)]
    assert set(made("sentences", per_document=5)) < set(made("sentences"))
    assert len(made("sentences", per_document=5)) == 5
    for span in made("spans", per_document=9):
        assert f" {span} " in f" {LONG.text} "
        assert SPAN_WORDS[0] <= len(span.split()) <= SPAN_WORDS[1]
    assert made("spans", seed=1) != made("spans", seed=2)


def test_kinds_take_turns_under_a_limit():
    queries = [pair.query for pair in pseudo_queries([LONG], ("title", "sentences", "lead"), per_document=4)]
    assert queries[0] == "On words"
    assert queries[2] == lead(LONG)[0]
    assert len(queries) == 4


def test_keyword_bags_are_of_the_best_words():
    tails = [" ".join(f"w{n}x{m}" for m in range(30)) for n in range(20)]
    documents = [
        Document(str(n), f"the the the common words and special{n} special{n} other{n} and the {tail}")
        for n, tail in enumerate(tails)
    ]
    frequencies = document_frequencies(documents)
    assert frequencies.counts["the"] == 20
    counts = Counter(terms(documents[3].text))
    idf = {
        word: math.log(1 + (20 - frequencies.counts[word] + 0.5) / (frequencies.counts[word] + 0.5)) for word in counts
    }
    best = sorted(counts, key=lambda word: (-(1 + math.log(counts[word])) * idf[word], word))[:BAG_POOL]
    bags = [pair.query.split() for pair in pseudo_queries([documents[3]], ("keywords",), 50, frequencies=frequencies)]
    assert len(bags) > 20
    assert {word for bag in bags for word in bag} == set(best)
    assert best[0] == "special3"
    assert all(len(set(bag)) == len(bag) for bag in bags)


def test_short_sentences_only_where_there_is_no_other():
    assert sentences(Document("a", "Yes. No. This one is long.")) == ["This one is long."]
    assert sentences(Document("a", "Yes. No.")) == ["Yes.", "No."]
    assert sentences(Document("a", "word " * 500))[0].split() == ["word"] * 64


def test_unknown_kind_and_bad_limit():
    with pytest.raises(UnknownName, match="Did you mean 'title'"):
        pseudo_queries([LONG], ("titel",))
    with pytest.raises(BadSetting):
        pseudo_queries([LONG], per_document=0)
    assert pseudo_queries([LONG], "title")[0].query == "On words"
