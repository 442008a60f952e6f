"""A cache of vectors on disk, so that no text is encoded twice.

One SQLite file holds rows of (key, checksum, vector). The key is a hash of the encoder's fingerprint and the text, so
that corpora and runs share vectors, and texts themselves are not stored. Several processes may read and write at once
(WAL). Rows with a wrong checksum are encoded again: the cache is never wrong, and a failure of the cache never stops
the caller.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from callslip.encoders.segments import UNIT, Segments
from callslip.errors import CallslipError
from callslip.runtime.process import cache_folder
from callslip.runtime.progress import counting

CHUNK = 256
"""Number of texts encoded between two writes; an interrupted run loses at most this many."""
_READ = 500
_LOCK_WAIT = 60.0


def feature_key(fingerprint: str, text: str) -> bytes:
    """The cache key of a text's vector."""
    digest = hashlib.blake2b(fingerprint.encode(), digest_size=20)
    digest.update(b"\0")
    digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.digest()


class FeatureCache:
    """Vectors by key in `path`/features.sqlite, by default in the user's cache folder, if the cache is enabled."""

    def __init__(self, path: str | Path | None = None) -> None:
        folder = Path(path) if path is not None else cache_folder()
        self.file = folder / "features.sqlite" if folder is not None else None
        self.reused = 0
        """Number of vectors that `cached_encode` did not have to compute, so that times of fits can be understood."""
        self._connection: sqlite3.Connection | None = None
        self._owner = 0
        self._lock = threading.RLock()
        if path is not None:
            self._try(lambda connection: None, None, stated=True)

    @property
    def enabled(self) -> bool:
        """Whether vectors are cached at all."""
        return self.file is not None

    def get(self, keys: Sequence[bytes], dim: int) -> dict[bytes, np.ndarray]:
        """The valid cached vectors, by key."""
        return {key: np.frombuffer(blob, "<f4") for key, blob in self._blobs(keys) if len(blob) == 4 * dim}

    def get_segments(self, keys: Sequence[bytes], dim: int) -> dict[bytes, np.ndarray]:
        """The valid cached segments of texts, int8 [s, dim], by key."""
        blobs = self._blobs(keys)
        return {key: np.frombuffer(blob, np.int8).reshape(-1, dim) for key, blob in blobs if len(blob) % dim == 0}

    def _blobs(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """The keys that are there, with what is stored under them and is not damaged."""

        def read(connection: sqlite3.Connection) -> list[tuple[bytes, bytes]]:
            found: list[tuple[bytes, bytes]] = []
            for start in range(0, len(keys), _READ):
                part = keys[start : start + _READ]
                marks = ",".join("?" * len(part))
                rows = connection.execute(f"SELECT key, checksum, vector FROM vectors WHERE key IN ({marks})", part)
                for key, checksum, blob in rows:
                    if isinstance(blob, bytes) and _checksum(key, blob) == checksum:
                        found.append((key, blob))
            return found

        return self._try(read, [])

    def put(self, keys: Sequence[bytes], vectors: np.ndarray) -> None:
        """Store row i of `vectors` under key i, in one transaction."""
        self._put(keys, [np.ascontiguousarray(vector, "<f4").tobytes() for vector in vectors])

    def put_segments(self, keys: Sequence[bytes], segments: Segments) -> None:
        """Store the segments of text i under key i."""
        self._put(keys, [segments[text].tobytes() for text in range(len(segments))])

    def _put(self, keys: Sequence[bytes], blobs: Sequence[bytes]) -> None:
        rows = [(key, _checksum(key, blob), blob) for key, blob in zip(keys, blobs, strict=True)]

        def write(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("INSERT OR REPLACE INTO vectors (key, checksum, vector) VALUES (?, ?, ?)", rows)

        self._try(write, None)

    def __len__(self) -> int:
        return self._try(lambda connection: int(connection.execute("SELECT count(*) FROM vectors").fetchone()[0]), 0)

    def close(self) -> None:
        """Close the file; it is reopened on next use."""
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        assert self.file is not None
        # A connection must not be shared across a fork: the child opens its own.
        if self._connection is not None and self._owner == os.getpid():
            return self._connection
        self.file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.file, timeout=_LOCK_WAIT, check_same_thread=False)
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._owner = connection, os.getpid()
        return connection

    def _try(self, work: Any, otherwise: Any, *, stated: bool = False) -> Any:
        """Run `work` on the open file. A corrupt file is moved aside and replaced; any other failure disables the
        cache, or raises an error if the path was given explicitly (`stated`)."""
        with self._lock:
            for again in (True, False):
                if self.file is None:
                    return otherwise
                try:
                    return work(self._open())
                except (sqlite3.Error, OSError) as error:
                    self.close()
                    if again and _is_broken(error):
                        self._put_aside()
                    elif stated:
                        raise CallslipError(
                            f"{self.file}: the feature cache cannot be used ({error})",
                            "Give a folder you can write to.",
                        ) from None
                    else:
                        warnings.warn(f"{self.file}: the feature cache is now disabled ({error})", stacklevel=4)
                        self.file = None
        return otherwise

    def _put_aside(self) -> None:
        assert self.file is not None
        aside = self.file.with_name(f"{self.file.name}.broken-{time.time_ns()}")
        warnings.warn(
            f"{self.file}: the feature cache was corrupt and has been replaced; the old file is {aside.name}",
            stacklevel=5,
        )
        for suffix in ("-wal", "-shm"):
            self.file.with_name(self.file.name + suffix).unlink(missing_ok=True)
        try:
            self.file.replace(aside)
        except OSError:
            self.file.unlink(missing_ok=True)


def _prepare(connection: sqlite3.Connection) -> None:
    # NORMAL: a power failure may lose the last writes, but not the file, which is good enough for a cache.
    connection.text_factory = bytes  # read a blob overwritten as text as it is, and let the checksum reject it
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, checksum INTEGER NOT NULL, vector BLOB NOT NULL)"
    )


def _is_broken(error: Exception) -> bool:
    """Whether SQLite reports a corrupt file, as opposed to a locked, full or read-only one."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and (code & 0xFF) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _checksum(key: bytes, vector: bytes) -> int:
    # The checksum includes the key, so that it also detects a vector in the wrong row.
    return zlib.crc32(vector, zlib.crc32(key))


_shared: dict[Path | None, FeatureCache] = {}


def shared_cache() -> FeatureCache:
    """The user's cache, opened once per process."""
    folder = cache_folder()
    if folder not in _shared or (folder is not None and not _shared[folder].enabled):
        _shared[folder] = FeatureCache()
    return _shared[folder]


def cached_encode(
    encoder: Any,
    texts: Sequence[str],
    cache: FeatureCache | None = None,
    progress: str | None = None,
    *,
    batch_size: int = 32,
) -> np.ndarray:
    """`encoder.encode(texts)` through the cache: every distinct text is encoded at most once.

    New vectors are written every few hundred texts, so that an interrupted run continues where it stopped.
    """
    cache = shared_cache() if cache is None else cache
    if not texts or not cache.enabled or not getattr(encoder, "worth_caching", True):
        return encoder.encode(texts, batch_size=batch_size, progress=progress)
    keys = [feature_key(encoder.fingerprint, text) for text in texts]
    place_of = {key: place for place, key in enumerate(keys)}  # not the texts, which may be on disk
    known = cache.get(list(place_of), encoder.dim)
    cache.reused += len(known)
    for part, count in _chunks([key for key in place_of if key not in known], place_of, texts, progress):
        vectors = encoder.encode([texts[place_of[key]] for key in part], batch_size=batch_size, progress=count)
        cache.put(part, vectors)
        known.update(zip(part, vectors))
    return np.stack([known[key] for key in keys]).astype(np.float32, copy=False)


def cached_segments(
    encoder: Any, texts: Sequence[str], most: int, cache: FeatureCache | None = None, progress: str | None = None
) -> tuple[np.ndarray, Segments]:
    """`encoder.segmented(texts, most)` through the cache, as `cached_encode`."""
    cache = shared_cache() if cache is None else cache
    if not texts or not cache.enabled or not encoder.worth_caching:
        with counting(progress, len(texts)) as count:
            return encoder.segmented(texts, most, progress=count)
    keys = [feature_key(encoder.fingerprint, text) for text in texts]
    place_of = {key: place for place, key in enumerate(keys)}
    own = {key: feature_key(f"{encoder.fingerprint} segments={most}x{UNIT}", texts[at]) for key, at in place_of.items()}
    known, parts = cache.get(list(place_of), encoder.dim), cache.get_segments(list(own.values()), encoder.dim)
    missing = [key for key in place_of if key not in known or own[key] not in parts]
    cache.reused += len(place_of) - len(missing)
    for some, count in _chunks(missing, place_of, texts, progress):
        vectors, segments = encoder.segmented([texts[place_of[key]] for key in some], most, progress=count)
        cache.put(some, vectors)
        cache.put_segments([own[key] for key in some], segments)
        known.update(zip(some, vectors))
        parts.update((own[key], segments[at]) for at, key in enumerate(some))
    vectors = np.stack([known[key] for key in keys]).astype(np.float32, copy=False)
    return vectors, Segments.of((parts[own[key]] for key in keys), encoder.dim)


def _chunks(
    keys: list[bytes], place_of: Mapping[bytes, int], texts: Sequence[str], progress: str | None
) -> Iterator[tuple[list[bytes], Callable[[int], Any]]]:
    """The keys of texts that have to be encoded, a few hundred at a time, with what counts the texts done."""
    order = sorted(keys, key=lambda key: -len(texts[place_of[key]]))  # longest first, which reduces padding
    with counting(progress if order else None, len(order)) as count:
        for start in range(0, len(order), CHUNK):
            yield order[start : start + CHUNK], count
