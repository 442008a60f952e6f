"""Filters: the indexed masks are what the plain walk over documents says, and mistakes in them are explained."""

from __future__ import annotations

import fnmatch
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import callslip
from callslip import api
from callslip.corpus.documents import Corpus, Document
from callslip.errors import BadSetting
from callslip.filters.filter import Filter, group_by_filter, parse_where
from callslip.filters.globs import Glob
from callslip.filters.masks import KEPT
from callslip.filters.ranges import Range
from callslip.index.retriever import Retriever
from callslip.methods import make

# Few distinct values, so that filters match often; chosen where Python's ideas of equality and text part ways.
plain = st.one_of(
    st.sampled_from([None, True, False, 0, 1, 2, -1, 2**60, 2**60 + 1]),
    st.sampled_from([0.0, -0.0, 1.0, 0.5, 1e300, float("nan"), float("inf")]),
    st.sampled_from(["", "1", "1.0", "True", "true", "false", "None", "null", "nan", "en", "[1]", "2020", "-3", "007"]),
    st.one_of(st.integers(-3, 3), st.floats(), st.text("ab01.-", max_size=3)),
)
dates = st.sampled_from(["2020-01", "2020-01-31", "2020-01-31T10:00:00Z", "2020-02-01", "2021-05-01", "2020-1-1", 2020])
nested = st.sampled_from([{"x": 1}, {"x": 1.0}, {"x": 1, "y": 2}, {"y": 2, "x": 1}, {}, [], [1], [True], [[1]], "[1]"])
numeric_ranges = st.sampled_from(
    [Range(0, 1), Range(low=1), Range(high=2**60), Range(0.5, 0.5), Range(2**60 + 1), Range(-5, 2020)]
)
globs = st.text("ab01.*", max_size=4).map(Glob)
date_ranges = st.sampled_from(
    [Range("2020-01", "2020-01-31"), Range(high="2020-01"), Range("2020-01-31"), Range("2020-02")]
)


def one_or_more(values):
    return st.one_of(values, st.lists(values, max_size=3), st.lists(values, min_size=1, max_size=1))


# Three kinds of fields rather than one, so that what is asked for is often there.
metadata = st.fixed_dictionaries(
    {}, optional={"plain": one_or_more(plain), "date": one_or_more(dates), "nested": one_or_more(nested)}
)
conditions = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"plain": one_or_more(st.one_of(plain, numeric_ranges, globs))}),
    st.fixed_dictionaries({"date": one_or_more(st.one_of(dates, date_ranges))}),
    st.fixed_dictionaries({"nested": one_or_more(nested)}),
    st.fixed_dictionaries({"plain": one_or_more(plain), "date": date_ranges}),
    st.just({"plain": {1, "en"}}),
)
ids = st.frozensets(st.integers(0, 12).map(str), max_size=6)
filters = st.builds(
    Filter,
    where=conditions,
    where_not=conditions,
    allow=st.one_of(st.none(), st.none(), ids),
    deny=st.one_of(st.just(frozenset()), ids),
    predicate=st.sampled_from([None, None, lambda document: "date" in document.metadata]),
)


class Bare(Retriever):
    """A retriever of nothing: documents, deletions and masks are the base class's."""

    def build(self, corpus):
        pass

    def prepare(self, documents):
        return {}

    def extend(self, documents, parts):
        pass


def check_against_the_walk(index: Retriever, filter: Filter) -> None:
    """`accepts`, document by document, is what a filter means; only an unknown field is told apart from no match."""
    documents = list(index.documents)
    known = {name for document in documents for name in document.metadata}
    if not set(filter.fields) <= known:
        with pytest.raises(BadSetting, match="no document has the metadata field"):
            index.rows.mask(filter)
        return
    expected = filter.mask(documents) & index.rows.alive
    mask = index.rows.mask(filter)
    np.testing.assert_array_equal(np.ones(len(documents), bool) if mask is None else mask, expected)
    assert index.rows.mask(filter) is mask


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(metadata, min_size=1, max_size=8), st.lists(filters, min_size=1, max_size=4), st.data())
def test_the_indexed_mask_is_the_plain_walk(made, asked, data):
    index = Bare().fit(Corpus([Document(str(n), "text", "", m) for n, m in enumerate(made)]))
    for filter in asked:
        check_against_the_walk(index, filter)
    index.delete(data.draw(st.sets(st.sampled_from([str(n) for n in range(len(made))]), max_size=3)))
    for filter in asked:
        check_against_the_walk(index, filter)
    index.add([Document(str(n), "new", "", m) for n, m in enumerate(data.draw(st.lists(metadata)), start=len(made))])
    for filter in asked:
        check_against_the_walk(index, filter)


@settings(max_examples=500, deadline=None)
@given(st.text("ab/*[?]", max_size=8), st.text("ab/*[?]", max_size=8))
def test_globs_match_as_fnmatch_does(pattern, text):
    """Only * is special: fnmatch is told so."""
    escaped = pattern.replace("[", "[[]").replace("?", "[?]")
    assert Glob(pattern).matches(text) == fnmatch.fnmatchcase(text, escaped)


def test_globs_on_the_command_line():
    made = parse_where(["path=docs/*,README*", "type!=p*f", "year=2018..2022"])
    assert made.where == {"path": [Glob("docs/*"), Glob("README*")], "year": [Range(2018, 2022)]}
    assert made.where_not == {"type": [Glob("p*f")]}
    paths = ["docs/a.md", "docs/sub/b.md", "README.md", "src/docs/c.md"]
    index = Bare().fit(Corpus([Document(p, "text", "", {"path": p, "type": p[-2:], "year": 2020}) for p in paths]))
    assert index.rows.mask(made).tolist() == [True, True, True, False]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(metadata, min_size=1, max_size=8), st.lists(filters, min_size=1, max_size=4))
def test_the_mask_of_a_saved_index_is_the_plain_walk(made, asked):
    index = make("bm25").fit(Corpus([Document(str(n), f"text{n}", "", m) for n, m in enumerate(made)]))
    index.delete(["0"])
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "index")
        loaded = api.load(Path(folder) / "index")
        for filter in asked:
            check_against_the_walk(loaded, filter)
        loaded.close()


@pytest.mark.parametrize(
    ("value", "condition", "matches"),
    [
        ("en", "en", True),
        ("en", ["de", "en"], True),
        (["de", "en"], "en", True),
        (2020, "2020", True),
        ("2020", 2020, True),
        (1, 1.0, True),
        ("1", 1.0, False),
        (True, 1, True),
        (0.0, False, True),
        (True, "true", True),
        (True, "True", True),
        (False, "false", True),
        ("true", True, True),
        (True, "TRUE", False),
        (None, None, False),
        (None, "None", False),
        ("None", None, False),
        ([None], "None", False),
        ({"x": 1}, [{"x": 1.0}], True),
        (2020, Range(2018, 2022), True),
        (2022, Range(2018, 2022), True),
        (2018, Range(2018, 2022), True),
        (2017, Range(2018, 2022), False),
        ("2020", Range(2018, 2022), True),
        ("many", Range(2018, 2022), False),
        (True, Range(0, 2), False),
        (2**53 + 1, Range(high=2**53), False),
        ([1990, 2020], Range(2018), True),
        ("2020-02-10", Range("2020-01-31", "2020-02-10"), True),
        ("2020-02-10T23:59", Range(high="2020-02-10"), True),
        ("2020-03-31", Range(high="2020-03"), True),
        ("2020-04-01", Range(high="2020-03"), False),
        ("2020-02-10", Range(2018, 2022), False),
        (2020, Range("2018-01"), False),
        (2015, [Range(2018), "2015"], True),
    ],
)
def test_what_matches(value, condition, matches):
    index = Bare().fit(Corpus([Document("d", "", "", {"f": value})]))
    assert Filter(where={"f": condition}).accepts(index.documents.rows([0])[0]) is matches
    assert index.rows.mask(Filter(where={"f": condition})).tolist() == [matches]
    assert index.rows.mask(Filter(where_not={"f": condition})).tolist() == [not matches]


def test_documents_are_read_once_and_never_for_what_the_index_knows(small_corpus, monkeypatch):
    index = Bare().fit(small_corpus)
    index.rows.mask(Filter(where={"topic": "river"}, deny=frozenset({"river/1"})))
    held = type(index.documents)
    for name in ("__iter__", "rows", "metadata", "doc_ids"):
        monkeypatch.setattr(held, name, lambda *_: pytest.fail("documents were read again"))
    for topic in ("music", "metal"):
        mask = index.rows.mask(
            Filter(where={"topic": topic}, allow=frozenset({"music/1", "metal/2"}), deny=frozenset("x"))
        )
        assert mask.sum() == 1
    index.delete(["music/1"])
    assert index.rows.mask(Filter(where={"topic": "music"})).sum() == 9
    index.add([Document("music/new", "", "", {"topic": "music"})])  # it alone is indexed
    assert index.rows.mask(Filter(where={"topic": "music"})).sum() == 10
    with pytest.raises(BadSetting, match="no document has"):
        index.rows.mask(Filter(where={"topics": "music"}))


def test_masks_are_kept_read_only_until_something_changes(small_corpus):
    index = Bare().fit(small_corpus)
    assert index.rows.mask(None) is None
    assert index.rows.mask(Filter()) is None
    river = index.rows.mask(Filter(where={"topic": "river", "even": True}))
    assert index.rows.mask(Filter(where={"even": True, "topic": "river"})) is river
    assert index.rows.mask(Filter(where={"topic": ["river"], "even": True})) is not river
    with pytest.raises(ValueError, match="read-only"):
        river[0] = True
    index.delete(["river/0"])
    assert index.rows.mask(None) is index.rows.mask(Filter())
    assert index.rows.mask(None).sum() == 39
    assert index.rows.mask(Filter(where={"topic": "river", "even": True})).sum() == river.sum() - 1
    index.add([Document("river/new", "", "", {"topic": "river", "even": True})])
    assert index.rows.mask(Filter(where={"topic": "river", "even": True})).sum() == river.sum()


def test_equal_numbers_that_are_written_differently_are_different_filters():
    index = Bare().fit(Corpus([Document(str(n), "", "", {"f": v}) for n, v in enumerate(["1", "1.0", "true", "0.0"])]))
    found = [index.rows.mask(Filter(where={"f": value})).tolist() for value in (1, 1.0, True, 0.0, -0.0)]
    assert [mask.index(True) if any(mask) else None for mask in found] == [0, 1, 2, 3, None]


def test_only_the_last_masks_are_kept(small_corpus):
    index = Bare().fit(small_corpus)
    first = Filter(allow=frozenset({"river/0"}))
    kept = index.rows.mask(first)
    for number in range(KEPT - 1):
        index.rows.mask(Filter(deny=frozenset({f"d{number}"})))
    assert index.rows.mask(first) is kept
    for number in range(KEPT):
        index.rows.mask(Filter(deny=frozenset({f"e{number}"})))
    assert index.rows.mask(first) is not kept


def test_a_predicate_sees_what_the_other_parts_accept_and_is_asked_once(small_corpus):
    seen = []

    def odd(document):
        seen.append(document.doc_id)
        return document.doc_id[-1] in "13579"

    index = Bare().fit(small_corpus)
    filter = Filter(where={"topic": "music"}, deny=frozenset({"music/1"}), predicate=odd)
    index.delete(["music/3"])
    for _ in range(2):
        assert [index.documents.rows([r])[0].doc_id for r in np.flatnonzero(index.rows.mask(filter))] == [
            "music/5",
            "music/7",
            "music/9",
        ]
    assert seen == [f"music/{n}" for n in (0, 2, 4, 5, 6, 7, 8, 9)]
    few = Filter(allow=frozenset({"music/4", "music/5"}), predicate=odd)
    assert index.rows.mask(few).sum() == 1
    assert seen[8:] == ["music/4", "music/5"]


def test_parts_that_cannot_be_hashed_work_without_being_kept(small_corpus):
    class Odd:
        __hash__ = None

        def __call__(self, document):
            return document.metadata["even"]

    index = Bare().fit(small_corpus)
    filter = Filter(predicate=Odd())
    assert filter.key() is None
    assert index.rows.mask(filter).sum() == index.rows.mask(filter).sum() == 20
    assert group_by_filter([filter, None, filter], 3) == [(filter, [0, 2]), (None, [1])]


def test_an_unknown_field_is_named_with_those_there_are(small_corpus):
    with pytest.raises(BadSetting, match="'topik'") as caught:
        Bare().fit(small_corpus).search("x", filter=Filter(where={"topik": "river"}))
    assert "Did you mean 'topic'" in caught.value.remedy
    assert "'even', 'topic'" in caught.value.remedy
    many = Corpus([Document("d", "", "", {f"field{n}": 1 for n in range(50)})])
    with pytest.raises(BadSetting, match="'feild7'") as caught:
        Bare().fit(many).rows.mask(Filter(where_not={"feild7": 1}))
    assert "'field7'" in caught.value.remedy
    assert caught.value.remedy.count("field") <= 10 + 2
    with pytest.raises(BadSetting, match="have no metadata"):
        Bare().fit(Corpus([Document("d", "")])).rows.mask(Filter(where={"x": 1}))


@pytest.mark.parametrize(
    ("conditions", "filter"),
    [
        ([], None),
        (["lang=en,de"], Filter(where={"lang": ["en", "de"]})),
        (["lang=en", "lang=de"], Filter(where={"lang": ["en", "de"]})),
        (["year=2018..2022"], Filter(where={"year": [Range(2018, 2022)]})),
        (["year=2018.."], Filter(where={"year": [Range(low=2018)]})),
        (["year=..-0.5"], Filter(where={"year": [Range(high=-0.5)]})),
        (["year=0..0"], Filter(where={"year": [Range(0, 0)]})),
        (["day=2020-01..2020-03-31"], Filter(where={"day": [Range("2020-01", "2020-03-31")]})),
        (
            ["year=2015,2018..", "year!=2020"],
            Filter(where={"year": ["2015", Range(2018)]}, where_not={"year": ["2020"]}),
        ),
        (["year!=2018..2019,2021"], Filter(where_not={"year": [Range(2018, 2019), "2021"]})),
        (["path=..", "file=../x", "name=a..b", "v=1...5"], None),
        (["formula=a=b"], Filter(where={"formula": ["a=b"]})),
        (["empty="], Filter(where={"empty": [""]})),
    ],
)
def test_conditions_as_they_are_typed(conditions, filter):
    if filter is None and conditions:  # dots that are no range are text
        filter = Filter(where={c.partition("=")[0]: [c.partition("=")[2]] for c in conditions})
    assert parse_where(conditions) == filter


@pytest.mark.parametrize("condition", ["lang", "=en", "!=en", ""])
def test_conditions_that_cannot_be_read(condition):
    with pytest.raises(BadSetting, match="cannot parse the filter"):
        parse_where([condition])


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (None, None, "neither low nor high"),
        (2022, 2018, "ends before it begins"),
        ("2022-01", "2018-01", "ends before it begins"),
        (2018, "2022-01", "a number at one end"),
        ("a", "b", "'a' cannot be the end"),
        (float("nan"), 1, "nan cannot be the end"),
        (True, 2, "True cannot be the end"),
    ],
)
def test_senseless_ranges(low, high, words):
    with pytest.raises(BadSetting, match=words):
        Range(low, high)


def test_allow_and_deny_take_any_collection_but_a_string():
    assert Filter(allow=["a", "b"], deny={"c"}) == Filter(allow=frozenset("ab"), deny=frozenset("c"))
    with pytest.raises(BadSetting, match="allow"):
        Filter(allow="abc")


def test_the_public_names():
    assert callslip.Filter is Filter
    assert callslip.Range is Range
