"""Codes of segments: what they reconstruct, and how queries read them."""

from __future__ import annotations

import numpy as np
import pytest

from callslip.identifiers.tied import SegmentQuantizer, token_sums


@pytest.fixture(scope="module")
def segments():
    rng = np.random.default_rng(0)
    bases = rng.normal(size=(1500, 24)).astype(np.float32)
    bases /= np.linalg.norm(bases, axis=1, keepdims=True)
    vectors = bases + 0.1 * rng.normal(size=bases.shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), bases


def test_codes_reconstruct_segments_better_than_their_documents_do(segments):
    vectors, bases = segments
    maker = SegmentQuantizer(8).learn(vectors, bases)
    codes, scales = maker.assign(vectors, bases)
    assert codes.dtype == np.uint8 and codes.shape == (1500, 8) and scales.dtype == np.float16
    rebuilt = (bases + maker.levels.sums(codes)) * scales[:, None].astype(np.float32)
    np.testing.assert_allclose(np.linalg.norm(rebuilt, axis=1), 1, atol=2e-3)
    error, without = ((rebuilt - vectors) ** 2).sum(axis=1).mean(), ((bases - vectors) ** 2).sum(axis=1).mean()
    assert error < 0.25 * without


def test_the_score_of_a_segment_is_its_product_with_the_query(segments):
    vectors, bases = segments
    maker = SegmentQuantizer(6, seed=3).learn(vectors, bases)
    again = SegmentQuantizer.from_state(maker.state())
    codes, scales = maker.assign(vectors[:50], bases[:50])
    np.testing.assert_array_equal(again.assign(vectors[:50], bases[:50])[0], codes)
    queries = vectors[60:63]
    rebuilt = (bases[:50] + maker.levels.sums(codes)) * scales[:, None].astype(np.float32)
    for query, table in zip(queries, again.tables(queries), strict=True):
        scores = (bases[:50] @ query + token_sums(table, codes)) * scales.astype(np.float32)
        np.testing.assert_allclose(scores, rebuilt @ query, atol=1e-4)


@pytest.mark.parametrize("count", [0, 1, 40])
def test_few_segments_are_enough_to_code_later_ones(segments, count):
    vectors, bases = segments
    maker = SegmentQuantizer(8).learn(vectors[:count], bases[:count])
    codes, scales = maker.assign(vectors, bases)
    rebuilt = (bases + maker.levels.sums(codes)) * scales[:, None].astype(np.float32)
    assert ((rebuilt - vectors) ** 2).sum(axis=1).mean() < 0.6 * ((bases - vectors) ** 2).sum(axis=1).mean()
