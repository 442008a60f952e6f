"""Typing errors: one slip a word, only in words that can bear it, always the same for a seed and query."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.evaluation import slips

import callslip
from callslip.corpus.documents import Query
from callslip.errors import BadSetting
from callslip.evaluation.typos import NEIGHBOURS, WORD, typo_queries, with_typos

words = st.text("abcXYZéß", min_size=1, max_size=9) | st.sampled_from(["aaaa", "12345", "naïve", "a_b_c_d", "x1y2z3w4"])
texts = st.lists(words, max_size=8).map(" ".join)


@given(texts, st.integers(0, 5), st.integers(0, 9))
def test_each_edit_is_one_slip_in_one_long_word(text: str, edits: int, seed: int) -> None:
    before, after = text.split(" "), with_typos(text, edits=edits, seed=seed).split(" ")
    long_words = len(WORD.findall(text))
    assert len(before) == len(after)
    changed = [(old, new) for old, new in zip(before, after) if old != new]
    assert len(changed) == min(edits, long_words)
    for old, new in changed:
        assert new in slips(old, NEIGHBOURS)


@given(texts, st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_rate_is_a_share_of_the_long_words_rounded_up(text: str, rate: float) -> None:
    count = len(WORD.findall(text))
    changed = sum(a != b for a, b in zip(text.split(" "), with_typos(text, rate=rate).split(" ")))
    assert changed == -(-round(rate * 10) * count // 10)


def test_short_words_digits_and_marks_stay() -> None:
    for text in ("", "how do I cut a URL", "2024 v1.10 a_b x86", "!?"):
        assert with_typos(text, edits=9) == text
    edited = with_typos("is the library open?", edits=9, seed=1)
    assert edited.startswith("is the ") and edited.endswith("?")


def test_all_four_slips_happen() -> None:
    results = {with_typos("retrieval", seed=seed) for seed in range(300)}
    assert len(results) > 25
    lengths = {len(result) for result in results}
    assert lengths == {8, 9, 10}
    same_letters = {result for result in results if sorted(result) == sorted("retrieval")}
    replaced = {result for result in results if len(result) == 9} - same_letters
    assert same_letters and replaced


def test_known_neighbours() -> None:
    assert {"q", "e", "a", "s"} == set(NEIGHBOURS["w"])
    assert {"d", "g", "r", "t", "c", "v"} == set(NEIGHBOURS["f"])
    assert all(letter in NEIGHBOURS[near] for letter, nears in NEIGHBOURS.items() for near in nears)


def test_capitals_stay_capitals() -> None:
    assert all(with_typos("NATO", seed=seed).isupper() for seed in range(60))


def test_errors_depend_on_seed_and_query_id_alone() -> None:
    queries = {str(i): Query(str(i), "which library holds the oldest manuscript", ("h",)) for i in range(30)}
    first = typo_queries(queries, seed=7)
    backwards = typo_queries(dict(reversed(queries.items())), seed=7)
    assert first == backwards
    assert len({query.text for query in first.values()}) > 15
    assert first != typo_queries(queries, seed=8)
    assert all(first[qid].query_id == qid and first[qid].history == ("h",) for qid in queries)


def test_errors_are_the_same_in_another_process() -> None:
    call = (
        "from callslip.evaluation.typos import with_typos as typos;"
        "print(typos('library catalogue', edits=2, query_id='q1'))"
    )
    root = str(Path(callslip.__file__).parents[1])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", call],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert outputs == {with_typos("library catalogue", edits=2, query_id="q1")}


def test_refusals() -> None:
    for options in ({"edits": -1}, {"rate": 1.5}, {"rate": -0.1}):
        with pytest.raises(BadSetting):
            with_typos("text", **options)  # type: ignore[arg-type]
