"""Tied codes against their definition: reconstructions, tables, and the axes of product levels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.errors import BadSetting
from callslip.identifiers.makers import code_maker
from callslip.identifiers.tied import TiedQuantizer, balanced_axes, token_sums


def unit_vectors(count: int, dim: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, dim)) * np.linspace(2, 0.2, dim)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def naive_vector(maker: TiedQuantizer, code: np.ndarray) -> np.ndarray:
    """The reconstruction of one code, number by number, not yet of unit length."""
    whole = [0.0] * maker.dim
    for level, token in enumerate(code):
        for place, value in enumerate(maker.codebooks[level][token]):
            if level < maker.tree:
                whole[place] += float(value)
            else:
                axis = maker.axes[level - maker.tree][place]
                for number in range(maker.dim):
                    whole[number] += float(value) * float(maker.rotation[number, axis])
    return np.asarray(whole)


@pytest.fixture(scope="module", params=[(6, 1), (7, 2), (2, 2), (1, 1)])
def fitted(request: pytest.FixtureRequest) -> tuple[TiedQuantizer, np.ndarray, np.ndarray]:
    vectors = unit_vectors(300, 12)
    maker = TiedQuantizer(*request.param, width=16)
    return maker, vectors, maker.fit(vectors)


def test_untrained_the_score_of_a_code_is_the_product_of_query_and_reconstruction(fitted: tuple) -> None:
    maker, _, codes = fitted
    queries = unit_vectors(5, 12, seed=1)
    tables = maker.tables(queries)
    for query, table in zip(queries, tables):
        scores = token_sums(table, codes.astype(np.uint8))
        for row in range(0, 300, 37):
            assert scores[row] == pytest.approx(query @ naive_vector(maker, codes[row]), abs=2e-5)


def test_reconstructions_are_unit_vectors_of_the_scaled_sums(fitted: tuple) -> None:
    maker, _, codes = fitted
    found, scales = maker.decode(codes), maker.scales(codes)
    for row in range(0, 300, 53):
        whole = naive_vector(maker, codes[row])
        np.testing.assert_allclose(found[row], whole / np.linalg.norm(whole), atol=2e-5)
        assert scales[row] == pytest.approx(1 / np.linalg.norm(whole), rel=1e-3)


def test_tokens_are_the_nearest_of_their_level(fitted: tuple) -> None:
    maker, vectors, codes = fitted
    for row in range(0, 300, 41):
        residual = vectors[row].copy()
        for level in range(maker.tree):
            distances = ((maker.codebooks[level] - residual) ** 2).sum(axis=1)
            assert codes[row, level] == distances.argmin()
            residual = residual - maker.codebooks[level][codes[row, level]]
        rotated = residual @ maker.rotation if maker.axes else residual
        for level, axes in enumerate(maker.axes, start=maker.tree):
            distances = ((maker.codebooks[level] - rotated[axes]) ** 2).sum(axis=1)
            assert distances[codes[row, level]] == pytest.approx(distances.min(), abs=1e-5)


def test_longer_codes_are_nearer() -> None:
    vectors = unit_vectors(500, 24)
    errors = []
    for length in (2, 5, 9, 25):
        maker = TiedQuantizer(length, 1, width=16)
        errors.append(float(((maker.decode(maker.fit(vectors)) - vectors) ** 2).sum(axis=1).mean()))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.02


def test_a_saved_state_gives_the_same_codes_and_scores(fitted: tuple) -> None:
    maker, vectors, codes = fitted
    again = TiedQuantizer.from_state(maker.state())
    np.testing.assert_array_equal(again.assign(vectors), codes)
    np.testing.assert_array_equal(again.tables(vectors[:3]), maker.tables(vectors[:3]))
    assert sum(array.nbytes for array in maker.state().values()) < 4 * maker.length * 16 * 12 + 4000


def test_the_registry_makes_them_and_a_seed_repeats_them() -> None:
    vectors = unit_vectors(200, 8)
    first, second, other = (code_maker("tied-residual", length=5, width=8, seed=s).fit(vectors) for s in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=40), st.integers(1, 12))
def test_axes_are_dealt_out_once_and_evenly(variances: list[float], groups: int) -> None:
    if groups > len(variances):
        return
    dealt = balanced_axes(variances, groups)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(variances)))
    sizes = [len(axes) for axes in dealt]
    assert max(sizes) - min(sizes) <= 1


def test_axes_are_balanced_by_variance_not_by_order() -> None:
    variances = np.array([100.0, 50.0, 2.0, 1.0])
    products = [float(np.prod(variances[axes])) for axes in balanced_axes(variances, 2)]
    assert max(products) / min(products) == 1.0  # 100 with 1, 50 with 2


@pytest.mark.parametrize("shape", [(0, 0), (0, 1), (3, 4), (3, -1)])
def test_impossible_shapes_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(BadSetting, match="tied codes"):
        TiedQuantizer(*shape)


def test_longer_codes_than_vectors_and_missing_fits_are_refused() -> None:
    with pytest.raises(BadSetting, match="at most 9 tokens") as error:
        TiedQuantizer(12, 1).fit(unit_vectors(40, 8))
    assert "8 numbers" in error.value.problem
    with pytest.raises(BadSetting, match="not been fitted"):
        TiedQuantizer(4).assign(unit_vectors(3, 8))
    with pytest.raises(BadSetting, match="3 tokens for a table of 4"):
        token_sums(np.zeros((4, 256), np.float32), np.zeros((2, 3), np.uint8))


def test_few_documents_still_give_codebooks_that_can_hold_a_query() -> None:
    few, queries = unit_vectors(8, 64), unit_vectors(20, 64, seed=5)
    maker = TiedQuantizer(49, 1)
    maker.fit(few)
    alike = (maker.decode(maker.assign(queries)) * queries).sum(axis=1)
    assert alike.min() > 0.9  # with codebooks of eight vectors only: 0.4


def test_the_doctor_judges_the_levels_of_the_tree_only() -> None:
    from callslip.identifiers import doctor, quality

    codes = np.stack([np.arange(20) % 10, np.arange(20), np.zeros(20, int)], axis=1)
    figures = quality.measure(codes)
    assert any("level 3" in finding.problem for finding in doctor.diagnose(figures))
    assert not any("level 3" in finding.problem for finding in doctor.diagnose(figures, levels=1))
