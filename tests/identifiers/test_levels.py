"""Codes that grow: groups by prefix, figures of a level against plain counting, places in a bucket."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import genret as plain

from callslip.identifiers import Identifiers
from callslip.identifiers.levels import group_means, level_figures, places, prefix_groups, use_of_codes

CODES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12)


@settings(max_examples=50, deadline=None)
@given(CODES)
def test_documents_are_in_one_group_if_and_only_if_they_share_the_prefix(codes):
    groups = prefix_groups(np.array(codes))
    for a, code in enumerate(codes):
        for b, other in enumerate(codes):
            assert (groups[a] == groups[b]) == (code == other)
    assert set(groups.tolist()) == set(range(int(groups.max()) + 1))


def test_empty_prefixes_are_one_group():
    assert prefix_groups(np.zeros((3, 0), np.int64)).tolist() == [0, 0, 0]


@settings(max_examples=50, deadline=None)
@given(CODES, st.integers(3, 6))
def test_figures_equal_plain_counting(codes, k):
    groups, tokens = prefix_groups(np.array(codes)[:, :1]), np.array(codes)[:, 1]
    found = level_figures(groups, tokens, k)
    assert found["unique_codes"] == len(set(codes))
    assert found["within_prefix"] == pytest.approx(plain.within_prefix(groups.tolist(), tokens.tolist(), k), abs=1e-4)
    counts = [tokens.tolist().count(token) for token in range(k)]
    assert found["diversity"] == pytest.approx(
        1 - sum(abs(count - len(codes) / k) for count in counts) / (2 * len(codes)), abs=1e-4
    )


def test_many_prefixes_of_few_documents_are_counted_at_once():
    groups, tokens = np.arange(200_000) // 2, np.tile([0, 1], 100_000)
    assert level_figures(groups, tokens, 512)["within_prefix"] == 1.0


def test_a_level_may_use_every_token_and_tell_nothing_apart():
    groups = np.repeat(np.arange(4), 5)
    found = level_figures(groups, groups.copy(), 4)
    assert (found["diversity"], found["within_prefix"], found["unique_codes"]) == (1.0, 0.0, 4)


def test_means_of_groups():
    states = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    np.testing.assert_allclose(group_means(states, np.array([1, 1, 0])), [[0.0, 5.0], [2.0, 0.0]])


@settings(max_examples=50, deadline=None)
@given(CODES, st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=6))
def test_places_number_a_bucket_on_from_what_is_taken(first, more):
    held = np.array(first)
    whole = np.concatenate([held, places(held, 99)[:, None]], axis=1)
    assert len({tuple(code) for code in whole.tolist()}) == len(first)
    if more:
        table = Identifiers(map(str, range(len(first))), whole)
        new = np.array(more)
        added = np.concatenate([new, places(new, 99, table)[:, None]], axis=1)
        both = np.concatenate([whole, added])
        assert len({tuple(code) for code in both.tolist()}) == len(both)


def test_a_place_that_became_free_is_not_given_again_below_one_that_is_taken():
    """Two of three documents of a bucket are gone: the one that stays has the last place, and the next comes after."""
    left = Identifiers(["c"], np.array([[5, 2]]))
    assert places(np.array([[5], [5]]), 9, left).tolist() == [3, 4]


def test_the_last_place_holds_all_further_documents():
    assert places(np.zeros((5, 1), np.int64), 3).tolist() == [0, 1, 2, 2, 2]


def test_use_of_codes_counts_codes_and_how_unevenly_they_are_filled():
    codes = np.array([[0, 1]] * 3 + [[0, 2], [5, 5]])
    assert use_of_codes(codes) == {"unique_codes": 3, "gini": 0.2667, "largest_bucket": 3}
    assert use_of_codes(np.arange(8).reshape(4, 2))["gini"] == 0
