"""Tied codes for logs: scores are inner products with reconstructions, and every weight acts."""

from __future__ import annotations

import numpy as np
import pytest
from small_log import small_log

from callslip.corpus.documents import Query
from callslip.errors import BadSetting
from callslip.index.counts import factorised
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
    np.testing.assert_allclose(scores, plain(index, history), rtol=5e-3, atol=5e-3)
    rules = index.counts.rules.toarray()
    memory = sum(0.5 * 0.65**age * rules[row] for age, row in enumerate(reversed(history)))
    np.testing.assert_allclose(index.scores([np.array(history)])[0] - scores, memory, atol=1e-5)


@pytest.mark.parametrize("dim", [4, 47])
def test_factors_are_the_best_approximation_of_the_rules(index, dim):
    left, right = factorised(index.counts.rules, dim, 0)
    u, values, v = np.linalg.svd(index.counts.rules.toarray())
    np.testing.assert_allclose(left @ right.T, (u[:, :dim] * values[:dim]) @ v[:dim], atol=1e-4)


@pytest.mark.parametrize("change", [
    {"factor_weight": 0.1}, {"text_weight": 2.0}, {"memory_weight": 3.0}, {"decay": 0.2}, {"gap": 0.3}, {"back": 0.0},
    {"user_power": 0.0}, {"popularity_power": 0.6}, {"factors": 4}, {"length": 6}, {"item_texts": False},
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
