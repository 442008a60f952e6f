"""The feature cache against an encoder that counts what it is asked."""

import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.encoders import vector_cache
from callslip.encoders.encoder import load_encoder
from callslip.encoders.vector_cache import FeatureCache, cached_encode, feature_key
from callslip.errors import CallslipError


class Counting:
    """The scratch encoder, remembering every text it encodes; stops like Ctrl-C after `stop` texts."""

    def __init__(self, spec="scratch:dim=8", stop=None):
        self.inner = load_encoder(spec)
        self.dim, self.fingerprint = self.inner.dim, self.inner.fingerprint
        self.seen, self.stop = [], stop

    def encode(self, texts, *, batch_size=32, progress=None):
        if self.stop is not None and len(self.seen) + len(texts) > self.stop:
            raise KeyboardInterrupt
        self.seen += texts
        return self.inner.encode(texts, batch_size=batch_size)


TEXTS = [f"text number {i} {'word ' * (i % 7)}" for i in range(40)] + ["", "\ud800", "text number 3 word word word "]


def rows(cache):
    cache.close()
    return sqlite3.connect(cache.file)


def test_second_call_encodes_nothing(tmp_path):
    first, second = Counting(), Counting()
    found = cached_encode(first, TEXTS, FeatureCache(tmp_path))
    assert sorted(first.seen) == sorted(set(TEXTS))  # duplicates once
    np.testing.assert_array_equal(found, first.inner.encode(TEXTS))
    again = cached_encode(second, TEXTS[::-1], FeatureCache(tmp_path), "encoding")
    assert second.seen == [] and again.dtype == np.float32
    np.testing.assert_array_equal(again, found[::-1])
    assert len(FeatureCache(tmp_path)) == len(set(TEXTS))


def test_another_encoder_shares_nothing(tmp_path):
    cached_encode(Counting(), TEXTS, FeatureCache(tmp_path))
    other = Counting("scratch:dim=8,seed=1")
    found = cached_encode(other, TEXTS, FeatureCache(tmp_path))
    assert len(other.seen) == len(set(TEXTS))
    np.testing.assert_array_equal(found, other.inner.encode(TEXTS))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.text(max_size=3), max_size=12), max_size=5))
def test_any_sequence_of_calls_equals_plain_encoding(tmp_path_factory, calls):
    cache, encoder = FeatureCache(tmp_path_factory.mktemp("cache")), Counting()
    for texts in calls:
        np.testing.assert_array_equal(cached_encode(encoder, texts, cache), encoder.inner.encode(texts))
    assert len(encoder.seen) == len(set(encoder.seen)) == len({text for texts in calls for text in texts})
    cache.close()


def test_interrupted_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_cache, "CHUNK", 10)
    first = Counting(stop=25)
    with pytest.raises(KeyboardInterrupt):
        cached_encode(first, TEXTS, FeatureCache(tmp_path))
    assert len(first.seen) == 20
    second = Counting()
    found = cached_encode(second, TEXTS, FeatureCache(tmp_path))
    assert set(first.seen).isdisjoint(second.seen) and len(second.seen) == len(set(TEXTS)) - 20
    np.testing.assert_array_equal(found, second.inner.encode(TEXTS))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE vectors SET vector = zeroblob(32) WHERE rowid = 5",
        "UPDATE vectors SET vector = substr(vector, 1, 31) WHERE rowid = 5",
        "UPDATE vectors SET vector = vector || x'00000000' WHERE rowid = 5",
        "UPDATE vectors SET vector = 7 WHERE rowid = 5",
        "UPDATE vectors SET checksum = checksum + 1 WHERE rowid = 5",
        # A sound vector under another text's key.
        "UPDATE vectors AS a SET (vector, checksum) = (SELECT vector, checksum FROM vectors WHERE rowid = 6)"
        " WHERE a.rowid = 5",
    ],
)
def test_damaged_rows_are_encoded_again(tmp_path, damage):
    cache = FeatureCache(tmp_path)
    found = cached_encode(Counting(), TEXTS, cache)
    with rows(cache) as connection:
        assert connection.execute(damage).rowcount == 1
    connection.close()
    second, third = Counting(), Counting()
    np.testing.assert_array_equal(cached_encode(second, TEXTS, FeatureCache(tmp_path)), found)
    assert len(second.seen) == 1
    cached_encode(third, TEXTS, FeatureCache(tmp_path))
    assert third.seen == []


@pytest.mark.parametrize("damage", ["not a database", "torn"])
def test_a_broken_file_is_begun_anew(tmp_path, damage):
    cache = FeatureCache(tmp_path)
    encoder = Counting("scratch:dim=64")
    texts = [f"text {i}" for i in range(300)]
    found = cached_encode(encoder, texts, cache)
    cache.close()
    raw = cache.file.read_bytes()
    if damage == "not a database":
        cache.file.write_bytes(b"hello, I am a text file. " * 500)
    else:
        cache.file.write_bytes(raw[:8192] + b"\xa5" * (len(raw) - 8192))
    with pytest.warns(UserWarning, match="was corrupt"):
        again = cached_encode(encoder, texts, FeatureCache(tmp_path))
    np.testing.assert_array_equal(again, found)
    assert list(tmp_path.glob("*.broken-*"))
    quiet = Counting("scratch:dim=64")
    cached_encode(quiet, texts, FeatureCache(tmp_path))
    assert quiet.seen == []


def test_off_and_default_folder(tmp_path, monkeypatch):
    encoder = Counting()
    monkeypatch.setenv("CALLSLIP_CACHE", "off")
    assert vector_cache.cache_folder() is None and not FeatureCache().enabled
    for _ in range(2):
        cached_encode(encoder, ["a", "b"])
    assert encoder.seen == ["a", "b", "a", "b"]
    monkeypatch.setenv("CALLSLIP_CACHE", str(tmp_path / "mine"))
    for _ in range(2):
        cached_encode(encoder, ["a", "b"])
    assert len(encoder.seen) == 6 and (tmp_path / "mine" / "features.sqlite").is_file()
    monkeypatch.delenv("CALLSLIP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert vector_cache.cache_folder() == tmp_path / "xdg" / "callslip"


def test_a_place_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CallslipError, match="cannot be used"):
        FeatureCache(tmp_path / "file" / "cache")
    monkeypatch.setenv("CALLSLIP_CACHE", str(tmp_path / "file"))
    encoder = Counting()
    with pytest.warns(UserWarning, match="now disabled"):
        found = cached_encode(encoder, ["a"])
    np.testing.assert_array_equal(found, encoder.inner.encode(["a"]))


def test_keys_separate_fingerprint_and_text():
    pairs = [("a", "b"), ("a", "c"), ("ab", ""), ("", "ab"), ("a", "b\0"), ("a", "\ud800"), ("a", "\udfff")]
    assert len({feature_key(*pair) for pair in pairs}) == len(pairs)


WRITER = """
import sys
from callslip.encoders.encoder import load_encoder
from callslip.encoders import vector_cache
vector_cache.CHUNK = 7
encoder = load_encoder("scratch:dim=8")
encoder.worth_caching = True
texts = [f"text number {i}" for i in range(600)]
for _ in range(3):
    vector_cache.cached_encode(encoder, texts, vector_cache.FeatureCache(sys.argv[1]))
"""


def test_two_processes_at_once(tmp_path):
    runs = [subprocess.Popen([sys.executable, "-W", "error", "-c", WRITER, str(tmp_path)]) for _ in range(2)]
    assert [run.wait(timeout=60) for run in runs] == [0, 0]
    encoder = Counting()
    texts = [f"text number {i}" for i in range(600)]
    found = cached_encode(encoder, texts, FeatureCache(tmp_path))
    assert encoder.seen == []
    np.testing.assert_array_equal(found, encoder.inner.encode(texts))


def test_reading_is_fast(tmp_path):
    cache = FeatureCache(tmp_path)
    vectors = np.random.default_rng(0).standard_normal((10_000, 384)).astype(np.float32)
    keys = [feature_key("f", str(i)) for i in range(len(vectors))]
    cache.put(keys, vectors)
    start = time.process_time()
    found = cache.get(keys, 384)
    assert time.process_time() - start < 2.0  # about 0.1 s; a query per vector would still pass, a table scan would not
    np.testing.assert_array_equal(np.stack([found[key] for key in keys]), vectors)
