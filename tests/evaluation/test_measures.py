"""Measures against their textbook definitions, and names that must be refused."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.evaluation import MEASURES

from callslip.errors import BadSetting, UnknownName
from callslip.evaluation.measures import (
    DEFAULT_MEASURES,
    KNOWN_MEASURES,
    cutoff_of,
    parse_measures,
    per_query,
)

DOCS = [f"d{i}" for i in range(8)]
rankings = st.lists(st.sampled_from(DOCS), unique=True, max_size=8)
grades = st.dictionaries(st.sampled_from(DOCS), st.integers(-1, 3), min_size=1)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), rankings),
    st.dictionaries(st.sampled_from("abc"), grades, min_size=1),
)
def test_values_are_the_definitions(ranked: dict, judgements: dict) -> None:
    run = {qid: [(doc_id, 1.0) for doc_id in ranking] for qid, ranking in ranked.items()}  # every score is a tie
    found = per_query(run, judgements, list(MEASURES))
    assert list(found) == list(MEASURES)
    for name, definition in MEASURES.items():
        expected = {qid: definition(ranked.get(qid, []), judged) for qid, judged in judgements.items()}
        assert found[name] == pytest.approx(expected, abs=1e-9), name


@pytest.mark.parametrize(
    "scores", [(5.0, 5.0, 5.0), (1.0, 2.0, 3.0), (1.0, 1.0 - 1e-12, 1.0 - 2e-12), (0.0, -1e30, -2e30)]
)
def test_order_is_evaluated_not_score(scores: tuple) -> None:
    run = {"q": list(zip(["c", "a", "b"], scores))}
    for doc_id, value in {"c": 1.0, "a": 1 / 2, "b": 1 / 3}.items():
        assert per_query(run, {"q": {doc_id: 1}}, ["RR", "RR@10"])["RR"]["q"] == pytest.approx(value)
        assert per_query(run, {"q": {doc_id: 1}}, ["RR", "RR@10"])["RR@10"]["q"] == pytest.approx(value)


def test_missing_and_empty_queries_count_zero_and_unjudged_ones_do_not_count() -> None:
    run = {"found": [("a", 1.0)], "empty": [], "unjudged": [("a", 1.0)]}
    judgements = {"found": {"a": 1}, "empty": {"a": 1}, "missing": {"a": 1}}
    for values in per_query(run, judgements, DEFAULT_MEASURES).values():
        assert values == {"found": 1.0, "empty": 0.0, "missing": 0.0}
    assert per_query({}, judgements, "AP") == {"AP": {"found": 0.0, "empty": 0.0, "missing": 0.0}}


def test_long_rankings_keep_their_order() -> None:
    docs = [f"{random.Random(i).random()}" for i in range(5000)]
    values = per_query({"q": [(d, 0.0) for d in docs]}, {"q": {docs[4321]: 1}}, "RR")
    assert values["RR"]["q"] == pytest.approx(1 / 4322)


def test_a_document_ranked_twice_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"'q'.*'b' is ranked twice"):
        per_query({"q": [("a", 3.0), ("b", 2.0), ("b", 1.0)]}, {"q": {"a": 1}}, "AP")


def test_names_print_as_they_are_typed_and_parse_back() -> None:
    names = [*DEFAULT_MEASURES, "AP", "P(rel=2)@5", "IPrec@0.5", "SetF(beta=0.5)", "Judged@10"]
    assert [str(measure) for measure in parse_measures(names)] == names
    assert parse_measures(parse_measures(names)) == parse_measures(names)
    assert parse_measures(", ".join(names)) == parse_measures(names)


def test_other_spellings_and_repetitions() -> None:
    measures = parse_measures(["ndcg@10", "NDCG@10", "mrr@10", "Recall@100", "MAP", "precision@3"])
    assert [str(measure) for measure in measures] == ["nDCG@10", "RR@10", "R@100", "AP", "P@3"]
    assert parse_measures("P(rel=2, judged_only=True)@5 nDCG@3")[1] == parse_measures("nDCG@3")[0]
    assert [cutoff_of(measure) for measure in parse_measures("nDCG@3 AP")] == [3, None]


def test_every_known_measure_can_be_computed() -> None:
    needs_cutoff = {
        "P": "P@2",
        "R": "R@2",
        "Success": "Success@2",
        "IPrec": "IPrec@0.5",
        "Judged": "Judged@2",
    }
    names = [needs_cutoff.get(name, name) for name in KNOWN_MEASURES]
    values = per_query({"q": [("a", 1.0), ("b", 0.5)]}, {"q": {"a": 1, "c": 0}}, names)
    assert sorted(values) == sorted(names)
    assert all(0 <= of_query["q"] <= 1 for of_query in values.values())


@pytest.mark.parametrize("name", ["ERR@10", "NumRet", "nonsense@10", "alpha_nDCG@10", "RBP"])
def test_unknown_names_list_the_known(name: str) -> None:
    with pytest.raises(UnknownName, match="Known: AP, "):
        parse_measures(name)


@pytest.mark.parametrize(
    "name",
    ["nDCG@0", "P@-1", "nDCG@2.5", "R", "P", "nDCG@'a'", "nDCG@True", "RR(rel=0)", "nDCG(dcg='exp-log2')@10",
     "nDCG(depth=3)", "P(2)@5", "nDCG@", "a.b@3", "nDCG@[", "lambda: 3", "P(**x)@3", "nDCG@x", "", "()"],
)  # fmt: skip
def test_measures_that_cannot_be_are_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(BadSetting) as caught:
        parse_measures([name] if name else [])
    assert caught.value.remedy
