"""The fit of fusion weights: its loss against finite differences, and what the weights follow."""

from __future__ import annotations

import numpy as np
import pytest

from callslip.training.fusion import fit_weights, listwise_loss


def queries(
    useful: int, count: int = 60, features: int = 4, seed: int = 0
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Queries of which the answer has the highest value of the `useful` feature; the others are noise."""
    rng = np.random.default_rng(seed)
    tables = [rng.uniform(size=(12, features)) for _ in range(count)]
    gains = [(np.arange(12) == table[:, useful].argmax()).astype(float) for table in tables]
    return tables, gains


def test_loss_and_gradient_equal_a_loop_and_finite_differences() -> None:
    tables, gains = queries(1, 5)
    gains[0][:3] = [1, 2, 0]
    weights = np.array([0.3, 1.2, 0.0, 0.7])
    loss, gradient = listwise_loss(weights, tables, gains)
    expected = 0.0
    for table, gain in zip(tables, gains):
        chances = np.exp(table @ weights) / np.exp(table @ weights).sum()
        expected -= sum(g / gain.sum() * np.log(p) for g, p in zip(gain, chances)) / 5
    assert loss == pytest.approx(expected)
    for place in range(4):
        step = np.eye(4)[place] * 1e-6
        slope = (
            listwise_loss(weights + step, tables, gains)[0] - listwise_loss(weights - step, tables, gains)[0]
        ) / 2e-6
        assert gradient[place] == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("useful", [0, 2])
def test_the_useful_feature_gets_the_weight(useful: int) -> None:
    weights = fit_weights(*queries(useful), np.array([0.25, 0.25, 0.25, 0.25]))
    assert weights.argmax() == useful and (weights >= 0).all()
    assert weights[useful] > 3 * np.delete(weights, useful).max()


def test_a_feature_that_misleads_gets_no_weight_never_a_negative_one() -> None:
    tables, gains = queries(0)
    for table in tables:
        table[:, 3] = -table[:, 0]
    weights = fit_weights(tables, gains, np.array([0.25, 0.25, 0.25, 0.25]))
    assert weights[3] == 0


def test_without_answers_the_prior_is_the_result_and_few_queries_stay_near_it() -> None:
    prior = np.array([0.5, 0.5, 0.0, 0.0])
    tables, _ = queries(2)
    assert fit_weights([], [], prior).tolist() == prior.tolist()
    assert fit_weights(tables, [np.zeros(12)] * len(tables), prior).tolist() == prior.tolist()
    moved = [np.abs(fit_weights(*queries(2, count), prior) - prior).sum() for count in (1, 10, 100)]
    assert moved == sorted(moved)


def test_unusable_features_keep_weight_zero() -> None:
    usable = np.array([True, False, True, True])
    weights = fit_weights(*queries(1), np.full(4, 0.25), usable)
    assert weights[1] == 0 and weights.sum() > 0
    assert fit_weights([], [], np.full(4, 0.25), usable).tolist() == [0.25, 0, 0.25, 0.25]
