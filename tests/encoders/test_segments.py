"""Segments of texts against plain loops, and through encoder and cache."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.encoders import vector_cache
from callslip.encoders.encoder import TextVectors, load_encoder
from callslip.encoders.segments import UNIT, Segments, segment, unit_vectors
from callslip.encoders.vector_cache import FeatureCache, cached_segments
from callslip.errors import Unsupported
from callslip.methods.tied_residual import TiedResidualSettings

TEXTS = ["violin oak apple " * 20, "whale river", "", "harbour " * 70 + "apple " * 40, "oak whale river violin " * 25]


def plain_segments(states: np.ndarray, most: int) -> list[np.ndarray]:
    """Means of units, of which the most alike neighbours are merged; lists of token numbers all the way."""
    runs = [list(range(start, min(start + UNIT, len(states)))) for start in range(0, len(states), UNIT)]

    def mean(run: list[int]) -> np.ndarray:
        found = sum(states[token].astype(np.float64) for token in run)
        return found / np.linalg.norm(found)

    while len(runs) > most:
        alike = [float(mean(one) @ mean(other)) for one, other in itertools.pairwise(runs)]
        best = int(np.argmax(alike))
        runs[best : best + 2] = [runs[best] + runs[best + 1]]
    return [mean(run) for run in runs] if len(runs) > 1 else []


@given(st.integers(1, 150), st.integers(1, 9), st.integers(0, 1000))
def test_segments_are_those_of_a_plain_loop(tokens, most, seed):
    states = np.random.default_rng(seed).normal(size=(tokens, 12)).astype(np.float32)
    found, expected = segment(states, most), plain_segments(states, most)
    assert found.dtype == np.int8 and found.shape == (len(expected), 12)
    assert len(found) <= most
    for one, other in zip(unit_vectors(found), expected, strict=True):
        assert float(one @ other) > 0.9995  # a byte a number


def test_a_text_of_one_segment_has_none():
    states = np.ones((3 * UNIT, 4), np.float32)
    assert len(segment(states[:UNIT], 8)) == len(segment(states, 1)) == 0
    assert len(segment(states[: UNIT + 1], 8)) == 2


def test_lists_of_segments_are_taken_apart_and_joined():
    parts = [np.full((n, 3), n, np.int8) for n in (2, 0, 3, 1)]
    whole = Segments.of(parts, 3)
    assert len(whole) == 4 and whole.counts.tolist() == [2, 0, 3, 1] and whole.owners.tolist() == [0, 0, 2, 2, 2, 3]
    some = whole.of_texts([3, 1, 2])
    assert [one.tolist() for one in (some[0], some[1], some[2])] == [parts[at].tolist() for at in (3, 1, 2)]
    both = Segments.joined([whole.of_texts([0, 1]), whole.of_texts([2, 3])])
    np.testing.assert_array_equal(both.directions, whole.directions)
    np.testing.assert_array_equal(both.starts, whole.starts)
    assert Segments.none(2, 3).counts.tolist() == [0, 0]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    from small_bert import save_small_bert

    words = ["violin", "oak", "apple", "whale", "river", "harbour", "passage:"]
    return save_small_bert(tmp_path_factory.mktemp("bert"), words, max_position_embeddings=128)


def test_an_encoder_gives_segments_beside_the_same_vectors(bert):
    import torch

    encoder = load_encoder(f"{bert}:document_prompt=passage: ", backend="torch")
    counted: list[int] = []
    vectors, segments = encoder.segmented(TEXTS, 4, kind="document", progress=counted.append)
    np.testing.assert_allclose(vectors, encoder.encode(TEXTS, kind="document"), atol=1e-6)
    assert sum(counted) == len(segments) == len(TEXTS)
    for text, own in zip(TEXTS, [segments[at] for at in range(len(TEXTS))], strict=True):
        ids = torch.tensor(encoder.tokens([f"passage: {text}"]))
        with torch.inference_mode():
            states = encoder.runner.model.states(ids, torch.ones_like(ids))[0].numpy()
        expected = plain_segments(states, 4)
        assert len(own) == len(expected)
        for one, other in zip(unit_vectors(own), expected, strict=True):
            assert float(one @ other) > 0.9995


def test_only_encoders_that_pool_by_the_mean_have_segments(bert):
    import json
    import shutil

    assert load_encoder(str(bert), backend="torch").has_segments
    other = bert.parent / "cls"
    shutil.copytree(bert, other)
    (other / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (other / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for encoder in (load_encoder(str(other), backend="torch"), load_encoder("scratch:dim=8")):
        assert not encoder.has_segments
        with pytest.raises(Unsupported, match="one vector each"):
            encoder.segmented(TEXTS, 4)


class Counting:
    """An encoder that remembers every text whose segments it is asked for."""

    def __init__(self, inner):
        self.inner, self.seen = inner, []
        self.dim, self.fingerprint, self.worth_caching = inner.dim, inner.fingerprint, True

    def segmented(self, texts, most, *, progress=None):
        self.seen += texts
        return self.inner.segmented(texts, most, progress=progress)

    def encode(self, texts, **options):
        self.seen += texts
        return self.inner.encode(texts, **options)


def test_the_cache_holds_segments_beside_vectors(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(vector_cache, "CHUNK", 2)
    encoder, cache = Counting(load_encoder(str(bert), backend="torch")), FeatureCache(tmp_path)
    vectors, segments = cached_segments(encoder, [*TEXTS, TEXTS[0]], 4, cache)
    assert sorted(encoder.seen) == sorted(TEXTS)  # the repeated one once
    np.testing.assert_allclose(vectors, encoder.inner.encode([*TEXTS, TEXTS[0]]), atol=1e-6)
    expected = encoder.inner.segmented(TEXTS, 4)[1]
    for at in range(len(TEXTS)):
        np.testing.assert_array_equal(segments[at], expected[at])
    encoder.seen.clear()
    again = cached_segments(encoder, TEXTS[::-1], 4, FeatureCache(tmp_path))
    np.testing.assert_array_equal(again[0], vectors[:5][::-1])
    assert again[1].counts.tolist() == segments.counts[:5][::-1].tolist()
    assert not encoder.seen and len(vector_cache.cached_encode(encoder, TEXTS, cache)) == 5
    assert not encoder.seen  # the vectors are there for those who want no segments, too
    cached_segments(encoder, TEXTS, 3, cache)
    assert sorted(encoder.seen) == sorted(TEXTS)  # other segments of the same texts


def test_a_damaged_cache_is_encoded_again(bert, tmp_path):
    encoder, cache = Counting(load_encoder(str(bert), backend="torch")), FeatureCache(tmp_path)
    expected = cached_segments(encoder, TEXTS, 4, cache)[1]
    cache._open().execute("UPDATE vectors SET vector = substr(vector, 2) WHERE length(vector) > 0")
    encoder.seen.clear()
    again = cached_segments(encoder, TEXTS, 4, cache)[1]
    assert len(encoder.seen) == len(TEXTS)
    np.testing.assert_array_equal(again.directions, expected.directions)


def test_given_vectors_and_zero_give_none(bert):
    from callslip.corpus.documents import Document
    from callslip.encoders.given import GivenVectors

    texts = TextVectors(TiedResidualSettings(encoder=str(bert), backend="torch"))
    documents = [Document(str(at), text) for at, text in enumerate(TEXTS)]
    assert texts.segments(documents, 4, "")[1].counts.sum() > 0
    vectors, none = texts.segments(documents, 0, "")
    assert vectors.shape == (5, 16) and none.counts.tolist() == [0] * 5
    texts.given.documents = GivenVectors([str(at) for at in range(5)], np.eye(5, 16))
    assert not texts.segmentable and texts.segments(documents, 4, "")[1].counts.tolist() == [0] * 5
