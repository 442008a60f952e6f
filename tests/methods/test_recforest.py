"""The forest: even trees, the sum over trees against a plain loop, and settings that reach every tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_log import small_log

from callslip.corpus.documents import Document, Query
from callslip.errors import Unsupported
from callslip.identifiers.levels import prefix_groups
from callslip.identifiers.partitions import _shared_out, even_tree
from callslip.index.fresh import Fresh
from callslip.methods import make
from callslip.methods.recforest import summed

QUICK = {"encoder": "scratch", "epochs": 3, "decoder_width": 32, "history_width": 32, "width": 4}
ASKED = Query("q", "", ("soap-2", "soap-3", "soap-4"))


@pytest.fixture(scope="module")
def forest():
    return make("recforest", QUICK).fit(small_log())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(2, 9), st.integers(0, 9), st.booleans())
def test_every_document_has_a_path_of_its_own_in_a_tree_that_is_even(count, k, seed, alike):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, 5)).astype(np.float32)
    if alike:
        vectors[:] = vectors[0]  # nothing to tell them apart by
    codes = even_tree(vectors, k, seed)
    assert len(np.unique(codes, axis=0)) == count and codes.min() >= 0 and codes.max() < k
    assert codes.shape[1] == max(1, math.ceil(round(math.log(count, k), 9)))  # no deeper than it must be
    share = count
    for level in range(codes.shape[1]):
        share = -(-share // k)
        assert np.bincount(prefix_groups(codes[:, : level + 1])).max() <= share


def test_near_documents_share_a_branch():
    angles = np.concatenate([np.arange(6) * 0.01 + place for place in (0.0, 2.0, 4.0)])
    codes = even_tree(np.stack([np.cos(angles), np.sin(angles)], axis=1), 3)
    assert [len(set(codes[n : n + 6, 0])) for n in (0, 6, 12)] == [1, 1, 1]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 99))
def test_clusters_are_shared_out_by_the_least_sum_of_all_ways(count, k, seed):
    from itertools import product

    distance = np.random.default_rng(seed).random((count, k))
    capacity = -(-count // k)
    ways = (way for way in product(range(k), repeat=count) if max(map(way.count, way)) <= capacity)
    least = min(sum(distance[n, token] for n, token in enumerate(way)) for way in ways)
    found = _shared_out(distance, capacity)
    assert np.bincount(found).max() <= capacity
    assert distance[np.arange(count), found].sum() == pytest.approx(least)


def test_scores_are_those_of_a_plain_loop_over_trees(forest):
    chance: dict[str, float] = {}
    for tree in forest.parts:
        for hit in tree.search(ASKED, k=100):
            chance[hit.doc_id] = chance.get(hit.doc_id, 0.0) + math.exp(hit.score) / len(forest.parts)
    hits = forest.search(ASKED, k=10, explain=True)
    assert len(hits) == 10
    for hit in hits:
        assert math.exp(hit.score) == pytest.approx(chance[hit.doc_id], rel=1e-4)
        assert set(hit.why["trees"]) <= {"tree-1", "tree-2"} and hit.why["trees"]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert summed([math.log(0.25)], 2) == pytest.approx(math.log(0.125))  # the other tree gave it nothing


def test_trees_differ_and_take_the_settings_of_a_search(forest):
    first, second = (tree.identifiers.in_row_order()[1] for tree in forest.parts)
    assert (first != second).any()
    assert all(tree.identifiers.unique == len(first) for tree in forest.parts)
    forest.adjust({"ranking": "union", "beam": 7})
    try:
        assert [(tree.settings.ranking, tree.settings.beam) for tree in forest.parts] == [("union", 7)] * 2
    finally:
        forest.adjust({"ranking": "bucket", "beam": 50})


def test_a_new_item_shares_the_path_of_the_nearest():
    log = small_log()
    index = make("recforest", QUICK | {"epochs": 1}).fit(log)
    same = log.documents[3]
    index.add([Document("twin", same.text, same.title)])
    for tree in index.parts:
        codes = tree.identifiers.in_row_order()[1]
        assert codes[-1].tolist() == codes[3].tolist()


def test_of_items_that_share_their_paths_the_more_similar_one_comes_first(small_corpus):
    index = make("recforest", QUICK | {"epochs": 2}).fit(small_corpus)
    index.add([Document("new", "Lanterns drift over the harbour at dusk.")])
    for tree in index.parts:
        tree.fresh = Fresh()  # by paths alone: what was added is not lifted by its words
    hits = index.search("Lanterns drift over the harbour at dusk.", k=len(small_corpus))
    shown = {hit.doc_id: (hit.rank, hit.score, hit.code) for hit in hits}
    nearest = next(
        name for name, (_, score, _) in shown.items() if name != "new" and score == pytest.approx(shown["new"][1])
    )
    assert shown["new"][0] < shown[nearest][0]


def test_a_hit_shows_its_path_in_the_first_tree(forest):
    doc_ids, codes = forest.parts[0].identifiers.in_row_order()
    path = dict(zip(doc_ids, map(tuple, codes.tolist()), strict=True))
    forest.adjust({"beam": 2})
    try:
        assert all(hit.code == path[hit.doc_id] for hit in forest.search(ASKED, k=5))
    finally:
        forest.adjust({"beam": 50})


def test_items_that_nothing_tells_apart_from_others_are_refused():
    index = make("recforest", QUICK | {"epochs": 1}).fit(small_log(texts=False))
    with pytest.raises(Unsupported):
        index.add([Document("new", "A garden gnome")])
