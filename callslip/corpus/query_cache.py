"""A cache of generated queries on disk, so that no fit or resume generates them again.

One JSON file per chunk of documents, in `CACHE/doc2query`. Its name is a hash of the checkpoint's weights, the texts of
the chunk, the settings of the generation and the seed: whatever changes the queries changes the name. A file that is
damaged is made again; a folder that cannot be written to costs a warning and time.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from callslip.runtime import durable
from callslip.runtime.process import cache_folder

WEIGHTS_AND_WORDS = (".safetensors", ".json", ".model", ".txt")
"""Endings of the files of a checkpoint that change what it writes."""


def key_of(fingerprint: str, settings: dict[str, Any], texts: Sequence[str]) -> str:
    """The name of a chunk's queries."""
    digest = hashlib.sha256(json.dumps([fingerprint, settings, len(texts)], sort_keys=True).encode())
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(encoded)}:".encode() + encoded)
    return digest.hexdigest()


def fingerprint_of_folder(folder: Path) -> str:
    """A hash of the files of a checkpoint."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in WEIGHTS_AND_WORDS:
            digest.update(f"{path.name}={durable.sha256_of(path)}\n".encode())
    return digest.hexdigest()


class QueryCache:
    """Generated queries by key."""

    def __init__(self) -> None:
        folder = cache_folder()
        self.folder = None if folder is None else folder / "doc2query"

    def get(self, key: str, count: int) -> list[list[str]] | None:
        """The queries of each of `count` documents, or None if they must be generated."""
        if self.folder is None:
            return None
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            held = json.loads((self.folder / f"{key}.json").read_bytes())
            queries = held["queries"]
            if held["checksum"] == _checksum(key, queries) and len(queries) == count:
                return queries
        return None

    def put(self, key: str, queries: list[list[str]]) -> None:
        if self.folder is None:
            return
        contents = json.dumps({"checksum": _checksum(key, queries), "queries": queries}).encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            durable.replace(self.folder / f"{key}.json", contents)
        except OSError as error:
            warnings.warn(f"{self.folder}: generated queries are not cached ({error.strerror})", stacklevel=2)
            self.folder = None


def _checksum(key: str, queries: list[list[str]]) -> str:
    return hashlib.sha256(f"{key}{json.dumps(queries)}".encode()).hexdigest()
