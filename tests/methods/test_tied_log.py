"""Tied codes for logs: scores are inner products with reconstructions, and every weight acts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_log import small_log

from callslip import api
from callslip.corpus.documents import Document, Query
from callslip.errors import BadSetting
from callslip.filters.filter import Filter
from callslip.index.counts import factorised, repeated
from callslip.methods import make

QUICK = {"encoder": "scratch", "factors": 16, "length": 24}
ASKED = Query("q", "", ("soap-2", "tea-3", "soap-3"))


@pytest.fixture(scope="module")
def index():
    return make("tied-log", QUICK).fit(small_log())


def plain(index, history):
    """State by a loop, times the reconstructions without normalisation."""
    s, texts = index.settings, len(index.counts.centre)
    state = np.zeros(index.counts.inputs.shape[1])
    for age, row in enumerate(reversed(history)):
        state += s.decay**age * index.counts.inputs[row].astype(np.float64)
    state[:-texts] *= s.factor_weight
    state[-texts:] *= s.text_weight
    unit = index.maker.decode(index.codes.astype(np.int32))
    return (unit @ state) / index.maker.scales(index.codes.astype(np.int32)).astype(np.float64)


def test_codes_alone_score_as_state_times_reconstruction(index):
    history = [3, 8, 4]
    index.adjust({"memory_weight": 0.0})
    try:
        scores = index.scores([np.array(history)])[0]
    finally:
        index.adjust({"memory_weight": 0.5})
    others = np.setdiff1d(np.arange(len(scores)), history)
    expected = plain(index, history)
    np.testing.assert_allclose(scores[others], expected[others], rtol=5e-3, atol=5e-3)
    rules = index.counts.rules.toarray()
    memory = sum(0.5 * 0.65**age * rules[row] for age, row in enumerate(reversed(history)))
    both = index.scores([np.array(history)])[0]
    np.testing.assert_allclose((both - scores)[others], memory[others], atol=1e-5)
    # The probability of an item of the history, (0.1 + score)^4, times the share of repeats.
    for row in history:
        assert index.counts.repeats == pytest.approx(repeated(small_log().sequences()))
        lower = max(index.counts.repeats, 1e-3) ** 0.25 * (0.1 + expected[row] + memory[row]) - 0.1
        assert both[row] == pytest.approx(min(lower, expected[row] + memory[row]), abs=5e-3)


def test_items_of_the_history_are_demoted_as_far_as_the_log_never_repeats_an_item(index):
    kept = index.counts
    lists = {}
    try:
        for repeats in (0.0, 1.0):
            index.counts = replace(kept, repeats=repeats)
            lists[repeats] = index.search(ASKED, k=5, keep_history=True).doc_ids
            for hit in index.search(ASKED, k=48, keep_history=True, explain=True):
                why = hit.why
                assert why["codes"] + why["memory"] + why.get("repeat", 0.0) == pytest.approx(hit.score, abs=1e-4)
                assert ("repeat" in why) == (repeats == 0.0 and hit.doc_id in ASKED.history)
    finally:
        index.counts = kept
    assert set(ASKED.history) & set(lists[1.0]) and not set(ASKED.history) & set(lists[0.0])


def test_sets_are_counted_without_order(index):
    order = make("tied-log", QUICK | {"queries": "set"}).fit(small_log())
    plain_counts = make("tied-log", QUICK | {"gap": 1, "back": 1, "decay": 1}).fit(small_log())
    backwards = Query("q", "", tuple(reversed(ASKED.history)))
    assert order.search(ASKED).to_dicts() == plain_counts.search(ASKED).to_dicts()
    assert order.search(ASKED).scores == pytest.approx(order.search(backwards).scores, abs=1e-4)
    assert index.search(ASKED).scores != pytest.approx(index.search(backwards).scores, abs=1e-2)
    order.adjust({"decay": 0.3})
    assert order.search(ASKED).to_dicts() == plain_counts.search(ASKED).to_dicts()


def test_a_new_user_is_shown_what_is_popular(index):
    users = small_log().sequences().counts(48)
    hits = index.search(Query("q", "", ("unknown",)), k=48, explain=True)
    row_of = small_log().rows()
    assert hits.scores == pytest.approx([users[row_of[doc_id]] / users.max() for doc_id in hits.doc_ids])
    assert [hit.why for hit in hits] == [{"popularity": hit.score} for hit in hits]


def test_it_is_the_default_for_logs_and_has_what_a_default_needs(tmp_path):
    """Items without texts, a history of one, a new item, filters, learning, reasons."""
    for texts in (True, False):
        index = api.fit(small_log(texts=texts), settings=QUICK, out=tmp_path / str(texts))
        assert index.method == "tied-log"
        one = Query("q", "", ("tea-3",))
        assert index.search(one, k=1, explain=True)[0].why["because"].keys() == {"tea-3"}
        assert index.search(one, k=3).doc_ids[0].startswith("tea")
        soap = Filter(where={"topic": "soap"})
        assert {hit.doc_id[:4] for hit in index.search(one, k=3, filter=soap)} == {"soap"}
        index.add([Document("tea-new", "A tea of kind 4, made for tea lovers.", "tea 4")])
        assert ("tea-new" in index.search(one, k=10).doc_ids) == texts
        assert api.learn(index, {f"new {n}": ["tea-3", "tea-new"] for n in range(40)}).users
        assert index.search(one, k=1).doc_ids == ["tea-new"]


@pytest.mark.parametrize("dim", [4, 47])
def test_factors_are_the_best_approximation_of_the_rules(index, dim):
    left, right = factorised(index.counts.rules, dim, 0)
    u, values, v = np.linalg.svd(index.counts.rules.toarray())
    np.testing.assert_allclose(left @ right.T, (u[:, :dim] * values[:dim]) @ v[:dim], atol=1e-4)


@pytest.mark.parametrize("change", [
    {"factor_weight": 0.1}, {"text_weight": 2.0}, {"memory_weight": 3.0}, {"decay": 0.2}, {"gap": 0.3}, {"back": 0.0},
    {"user_power": 0.0}, {"popularity_power": 0.6}, {"factors": 4}, {"length": 6},
    {"item_texts": False}, {"queries": "set"},
])  # fmt: skip
def test_every_setting_acts(index, change):
    other = make("tied-log", QUICK | change).fit(small_log())
    assert other.search(ASKED).scores != pytest.approx(index.search(ASKED).scores, abs=1e-6)


def test_parts_of_a_score_add_up_and_nonsense_is_refused(index):
    for hit in index.search(ASKED, k=5, explain=True):
        assert hit.why["codes"] + hit.why["memory"] == pytest.approx(hit.score, abs=1e-4)
        assert sum(hit.why["because"].values()) == pytest.approx(hit.why["memory"], abs=1e-4)
    with pytest.raises(BadSetting, match="gap"):
        make("tied-log", {"gap": 2})
