"""Ranked, optimistic and expected figures against every order of small buckets."""

from __future__ import annotations

from itertools import permutations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.evaluation import MEASURES, bucket_orders, ndcg, recall

from callslip.evaluation.measures import parse_measures, per_query
from callslip.evaluation.shared_codes import (
    bucket_figures,
    code_figures,
    expected_value,
    group_by_code,
    no_hit_chances,
)

DOCS = list("abcdefgh")


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[str]], dict[str, int]]:
    """Up to seven hits in buckets of up to four, and graded judgements, some of documents not found."""
    docs = draw(st.permutations(DOCS))[: draw(st.integers(0, 7))]
    buckets: list[list[str]] = []
    while docs:
        size = draw(st.integers(1, 4))
        buckets.append(list(docs[:size]))
        docs = docs[size:]
    judged = draw(st.dictionaries(st.sampled_from([*DOCS, "absent"]), st.integers(-1, 3), min_size=1))
    return buckets, judged


@settings(max_examples=120, deadline=None)
@given(cases())
def test_three_figures_are_first_best_and_mean_of_all_orders(case: tuple) -> None:
    buckets, judged = case
    figures = bucket_figures({"q": buckets}, {"q": judged}, list(MEASURES))
    orders = list(bucket_orders(buckets))
    for name, definition in MEASURES.items():
        values = [definition(order, judged) for order in orders]
        assert figures.expected_by[name] == "exact"
        assert figures.ranked[name]["q"] == pytest.approx(values[0], abs=1e-9), name
        assert figures.expected[name]["q"] == pytest.approx(fmean(values), abs=1e-9), name
        assert figures.optimistic[name]["q"] == pytest.approx(max(values), abs=1e-9), name


@settings(max_examples=60, deadline=None)
@given(cases(), st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_by_code_every_code_takes_one_rank_and_has_the_best_grade_of_its_documents(
    case: tuple, codes: list[int]
) -> None:
    _, judged = case
    code_of = dict(zip([*DOCS, "absent"], codes, strict=True))
    found = [f"{code}" for code in dict.fromkeys(codes[:5])]
    graded: dict[str, int] = {}
    for doc_id, grade in judged.items():
        code = f"{code_of[doc_id]}"
        graded[code] = max(graded.get(code, grade), grade)
    values = code_figures(
        {"q": [int(code) for code in found for _ in range(2)]}, code_of, {"q": judged}, list(MEASURES)
    )
    for name, definition in MEASURES.items():
        assert values[name]["q"] == pytest.approx(definition(found, graded), abs=1e-9), name


def test_by_code_the_size_of_a_bucket_does_not_matter_and_what_has_no_code_is_never_found() -> None:
    code_of = {"x": (0, 1), "y": (0, 1), "z": (0, 1), "answer": (2, 0), "other": (2, 0)}
    runs, judgements = {"q": [(0, 1), (0, 1), (0, 1), (2, 0)]}, {"q": {"answer": 1, "other": 1, "nobody": 1}}
    values = code_figures(runs, code_of, judgements, "RR@10, R@2, Success@1")
    assert values["RR@10"]["q"] == 0.5 and values["Success@1"]["q"] == 0.0
    assert values["R@2"]["q"] == 0.5  # two codes are right: that of both answers, and one that nobody has
    figures = bucket_figures({"q": [["x", "y", "z"], ["other", "answer"]]}, judgements, "RR@10", code=values)
    assert figures.means()["RR@10"]["code"] == 0.5 > figures.means()["RR@10"]["optimistic"]


def test_worked_example() -> None:
    """Two of four documents share the first code with the answer among them: by hand."""
    figures = bucket_figures({"q": [["x", "y", "answer"], ["z"]]}, {"q": {"answer": 1}}, "Success@1, RR@10, nDCG@10")
    assert figures.means()["Success@1"] == {
        "ranked": 0.0,
        "optimistic": 1.0,
        "expected": pytest.approx(1 / 3),
    }
    assert figures.expected["RR@10"]["q"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert figures.expected["nDCG@10"]["q"] == pytest.approx((1 + 1 / np.log2(3) + 1 / 2) / 3)


def test_measures_without_a_closed_form_are_sampled() -> None:
    """Rprec has no closed form here: its sampled mean is near the mean over all orders, and repeats."""
    buckets, judgements = [["a", "b", "c"], ["d", "e"]], {"q": {"a": 1, "c": 1, "e": 1}, "none": {"a": 1}}
    first = bucket_figures({"q": buckets}, judgements, "Rprec, R@2", samples=400, seed=3)
    again = bucket_figures({"q": buckets}, judgements, "Rprec, R@2", samples=400, seed=3)
    other = bucket_figures({"q": buckets}, judgements, "P(judged_only=True)@2", samples=400, seed=3)
    assert first == again
    assert first.expected_by == {"Rprec": "mean of 400 random orders", "R@2": "exact"}
    assert other.expected_by["P(judged_only=True)@2"] != "exact"
    judged = {"q": judgements["q"]}
    exact = fmean(
        per_query({"q": [(d, 0.0) for d in order]}, judged, "Rprec")["Rprec"]["q"] for order in bucket_orders(buckets)
    )
    assert first.expected["Rprec"]["q"] == pytest.approx(exact, abs=0.03)
    assert first.expected["Rprec"]["none"] == first.expected["R@2"]["none"] == 0.0


def test_buckets_of_one_make_the_three_figures_equal() -> None:
    runs = {"q": [["a"], ["b"], ["c"]], "unjudged": [["a", "b"]]}
    figures = bucket_figures(runs, {"q": {"b": 2, "c": 1}}, list(MEASURES))
    for name in MEASURES:
        assert figures.expected[name] == pytest.approx(figures.ranked[name])
        assert figures.optimistic[name] == figures.ranked[name]


def test_the_shown_run_can_differ_from_the_buckets() -> None:
    figures = bucket_figures({"q": [["a", "b"]]}, {"q": {"b": 1}}, "RR", ranked={"RR": {"q": 0.25}})
    assert figures.means()["RR"] == {"ranked": 0.25, "optimistic": 1.0, "expected": 0.75}


def test_large_buckets() -> None:
    """A bucket of 20,000 documents: no overflow, and the chances that a formula gives."""
    bucket = [str(i) for i in range(20_000)]
    judged = {"7": 1}
    value = {str(m): expected_value(m, [bucket], judged) for m in parse_measures("Success@100, RR@10, R@100, AP")}
    assert value["Success@100"] == pytest.approx(100 / 20_000)
    assert value["R@100"] == pytest.approx(100 / 20_000)
    assert value["RR@10"] == pytest.approx(sum(1 / i for i in range(1, 11)) / 20_000)
    assert value["AP"] == pytest.approx(sum(1 / i for i in range(1, 20_001)) / 20_000)


@pytest.mark.parametrize(("size", "hits"), [(1, 1), (3, 0), (4, 2), (5, 5), (6, 1)])
def test_no_hit_chances_count_orders(size: int, hits: int) -> None:
    orders = list(permutations(range(size)))
    expected = [fmean(all(d >= hits for d in order[:m]) for order in orders) for m in range(size + 1)]
    assert no_hit_chances(size, hits) == pytest.approx(np.array(expected))


def test_group_by_code_keeps_first_places() -> None:
    hits = [("a", (1, 2)), ("b", (0, 0)), ("c", (1, 2)), ("d", (3, 3)), ("e", (0, 0))]
    assert group_by_code(hits) == [["a", "c"], ["b", "e"], ["d"]]
    assert group_by_code([]) == []


def test_reference_agrees_with_itself() -> None:
    """The reference is checked by hand once, so that it can be trusted above."""
    assert ndcg(["x", "a"], {"a": 2, "b": 1}, 2) == pytest.approx((2 / np.log2(3)) / (2 + 1 / np.log2(3)))
    assert recall(["x", "a"], {"a": 2, "b": 1}, 2) == 0.5
    assert sorted(map("".join, bucket_orders(["ab", "c"]))) == ["abc", "bac"]
