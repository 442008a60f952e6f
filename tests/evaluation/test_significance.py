"""Intervals and tests against SciPy, all assignments of signs, and Holm's own procedure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.evaluation import holm_rejects, sign_flip_p
from scipy import stats

from callslip.errors import BadSetting
from callslip.evaluation import significance
from callslip.evaluation.significance import bootstrap_interval, bootstrap_intervals, holm, paired_test


@pytest.mark.parametrize(("count", "confidence"), [(12, 0.95), (60, 0.95), (60, 0.8)])
def test_intervals_are_scipys(count: int, confidence: float) -> None:
    """SciPy draws the same resamples from the same seed, so the bounds are the same and not merely near."""
    values = np.random.default_rng(count).beta(0.5, 0.7, count)
    options = {"n_resamples": 1500, "confidence_level": confidence, "method": "percentile"}
    theirs = stats.bootstrap((values,), np.mean, rng=np.random.default_rng(9), **options).confidence_interval
    ours = bootstrap_interval(values, confidence=confidence, resamples=1500, seed=9)
    assert ours == pytest.approx((values.mean(), theirs.low, theirs.high), abs=1e-9)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(300):
        interval = bootstrap_interval(rng.random(80), confidence=0.9, resamples=400, seed=trial)
        inside += interval.low <= 0.5 <= interval.high
    assert 0.84 <= inside / 300 <= 0.95


def test_columns_share_the_resamples_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(1).random((50, 3))
    together = bootstrap_intervals(table, seed=4)
    assert together == [pytest.approx(bootstrap_interval(column, seed=4)) for column in table.T]
    paired = paired_test(table[:, 0], table[:, 1], seed=4)
    monkeypatch.setattr(significance, "BLOCK", 333)
    assert bootstrap_intervals(table, seed=4) == [pytest.approx(interval) for interval in together]
    assert paired_test(table[:, 0], table[:, 1], seed=4).p == pytest.approx(paired.p, abs=0.02)


@given(st.floats(0, 1), st.integers(1, 40))
def test_equal_values_have_no_width(value: float, count: int) -> None:
    interval = bootstrap_interval([value] * count, resamples=50)
    assert interval == pytest.approx((value, value, value))
    assert interval.low <= interval.mean <= interval.high


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9))
def test_small_samples_get_the_exact_p(pairs: list[tuple[int, int]]) -> None:
    first, second = (np.array(column) / 10 for column in zip(*pairs))
    result = paired_test(first, second, resamples=20)
    assert result.p == pytest.approx(sign_flip_p(list(second - first)))
    assert result.difference == pytest.approx(second.mean() - first.mean())
    assert result.low <= result.difference <= result.high


@pytest.mark.parametrize("count", [5, 8])
def test_exact_p_is_scipys(count: int) -> None:
    rng = np.random.default_rng(count)
    first = rng.random(count)
    second = first + rng.normal(0.1, 0.2, count)
    theirs = stats.permutation_test(
        (first, second),
        lambda x, y, axis: np.mean(y - x, axis=axis),
        permutation_type="samples",
        vectorized=True,
    )
    assert paired_test(first, second).p == pytest.approx(theirs.pvalue)


def test_drawn_p_is_near_the_exact_one_and_repeats() -> None:
    rng = np.random.default_rng(2)
    first = rng.random(14)
    second = first + rng.normal(0.05, 0.15, 14)
    exact = sign_flip_p(list(second - first))
    drawn = paired_test(first, second, permutations=8000, seed=1)
    assert exact == paired_test(first, second, permutations=2**14).p
    assert drawn.p == pytest.approx(exact, abs=0.02)
    assert drawn.p == paired_test(first, second, permutations=8000, seed=1).p
    assert paired_test(second, first, permutations=8000, seed=1).difference == -drawn.difference


def test_p_is_never_zero_and_one_without_differences() -> None:
    assert paired_test(np.zeros(500), np.ones(500), permutations=999).p == 1 / 1000
    assert paired_test(np.ones(5), np.ones(5)).p == 1.0


def test_p_is_uniform_when_nothing_differs() -> None:
    """Under the null hypothesis a test at 0.2 rejects about a fifth of the time."""
    rng = np.random.default_rng(5)
    rejected = [
        paired_test(rng.random(30), rng.random(30), permutations=200, resamples=10).p <= 0.2 for _ in range(400)
    ]
    assert 0.13 <= np.mean(rejected) <= 0.27


@given(st.lists(st.sampled_from([0.001, 0.01, 0.012, 0.02, 0.04, 0.3, 1.0]), max_size=7))
def test_holm_rejects_what_his_procedure_rejects(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(q >= p and q <= 1 for p, q in zip(p_values, corrected))
    for level in (0.0123, 0.05, 0.077, 0.2):
        assert [p <= level for p in corrected] == holm_rejects(p_values, level)


def test_holm_by_hand() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap_interval([]),
        lambda: bootstrap_interval([1.0], confidence=1.0),
        lambda: bootstrap_interval([1.0], resamples=0),
        lambda: paired_test([1.0, 2.0], [1.0]),
        lambda: paired_test([], []),
    ],
)
def test_refusals(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadSetting):
        call()
