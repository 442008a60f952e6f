"""Features of the fusion against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from callslip.search import fusion


def memory(seed: int = 0, queries: int = 30, documents: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    answers = [rng.choice(documents, rng.integers(0, 5), replace=False) for _ in range(queries)]
    starts = np.cumsum([0, *map(len, answers)])
    return rng.uniform(-0.2, 1, queries).astype(np.float32), starts, np.concatenate(answers).astype(np.int32)


@pytest.mark.parametrize("neighbours", [1, 5, 64])
def test_votes_equal_loops_over_the_nearest_queries(neighbours: int) -> None:
    similarities, starts, rows = memory()
    similarities[3] = -np.inf
    found = fusion.votes(similarities, starts, rows, neighbours)
    with_answers = [i for i in range(30) if starts[i + 1] > starts[i] and np.isfinite(similarities[i])]
    near = sorted(with_answers, key=lambda i: -similarities[i])[:neighbours]
    top = max(similarities[i] for i in near)
    expected: dict[int, list[float]] = {}
    for i in near:
        for row in rows[starts[i] : starts[i + 1]]:
            one = expected.setdefault(int(row), [0.0] * 6 + [-9.0, -1])
            for k, width in enumerate(fusion.KERNELS):
                one[k] += math.exp((similarities[i] - 1) / width)
                total = sum(math.exp((similarities[j] - top) / width) for j in near)
                one[3 + k] += math.exp((similarities[i] - top) / width) / total
            if similarities[i] > one[6]:
                one[6], one[7] = float(similarities[i]), i
    assert found.rows.tolist() == sorted(expected)
    for at, row in enumerate(found.rows.tolist()):
        together = [*found.kernels[at], *found.shares[at], found.nearest[at], found.by[at]]
        assert together == pytest.approx(expected[row], rel=1e-5)


def test_nobody_votes_in_an_empty_or_silent_memory() -> None:
    assert len(fusion.votes(np.zeros(0, np.float32), np.zeros(1, int), np.zeros(0, int)).rows) == 0
    assert len(fusion.votes(np.array([-np.inf]), np.array([0, 1]), np.array([0])).rows) == 0
    assert len(fusion.votes(np.array([0.5]), np.array([0, 0]), np.zeros(0, int)).rows) == 0


def test_scores_are_scaled_between_the_first_and_the_last_of_the_best() -> None:
    values = fusion.scaled(np.array([3.0, 5.0, 1.0, 7.0]), np.array([7.0, 5.0, 3.0]))
    assert values.tolist() == [0.0, 0.5, 0.0, 1.0]
    assert fusion.scaled(np.array([2.0]), np.zeros(0)).tolist() == [0.0]
    assert fusion.scaled(np.array([2.0, 1.0]), np.array([2.0])).tolist() == [1.0, 0.0]  # the only one with a rare word


def test_features_of_candidates_with_and_without_votes() -> None:
    known = fusion.votes(np.array([0.9, 0.4]), np.array([0, 1, 3]), np.array([4, 4, 8]))
    rows = np.array([1, 4, 8])
    similarity, words = np.array([0.8, 0.2, 0.5]), np.array([0.0, 4.0, 2.0])
    found = fusion.features(rows, similarity, words, known, np.array([0.8, 0.3]), np.array([4.0, 2.0]))
    assert found.shape == (3, len(fusion.FEATURES))
    np.testing.assert_allclose(found[:, 0], [1.0, 0.0, 0.4], atol=1e-6)
    np.testing.assert_allclose(found[:, 1], [8.0, 2.0, 5.0], atol=1e-6)
    np.testing.assert_allclose(found[:, fusion.WORDS], [0.0, 1.0, 0.0], atol=1e-6)
    assert (found[0, fusion.MEMORY] == 0).all() and (found[1, fusion.MEMORY] > 0).all()
    assert (found[:, 2:4] == 0).all()  # no segments
    assert found[1, -1] == pytest.approx((0.9 - 0.2) / 0.5, rel=1e-5)
    assert found[2, -1] == 0  # the earlier query is farther than the document itself


def test_segments_are_scaled_by_their_own_best() -> None:
    rows, similarity, nearest = np.array([1, 4, 8]), np.array([0.8, 0.2, 0.5]), np.array([0.8, 0.9, 0.6])
    none, best = np.zeros(0), np.array([0.9, 0.8, 0.7])
    found = fusion.features(rows, similarity, np.zeros(3), fusion.Votes.none(), similarity, none, nearest, best)
    named = dict(zip(fusion.FEATURES, found.T, strict=True))
    np.testing.assert_allclose(named["segment"], [0.5, 1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(named["segment_similarity"], 10 * nearest, atol=1e-5)
    np.testing.assert_allclose(named["meaning"], [1.0, 0.0, 0.5], atol=1e-6)


def test_even_weights_are_the_convex_fusion_of_equal_parts() -> None:
    assert dict(zip(fusion.FEATURES, fusion.EVEN, strict=True)) == {
        name: 0.5 if name in ("meaning", "words") else 0.0 for name in fusion.FEATURES
    }
