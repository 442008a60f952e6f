"""Validation of manifests. Every field is checked before it is used: a manifest may be untrusted."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from callslip.errors import IndexCorrupt

LARGEST = 64 * 1024 * 1024
"""Maximum size of a manifest in bytes; a usual one names some dozens of files."""
STORE_FILE = re.compile(r"store-[0-9a-f]{8}\.sqlite")
SEQUENCE = "sequence.npy"
"""The store's number of each row of a generation."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_INDEX = re.compile(r"[0-9a-f]{8,64}")
_STEP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def generation_name(number: int) -> str:
    return f"generation-{number:06d}"


def validate(path: Path, manifest: Any) -> dict[str, Any]:
    """The manifest, if every field has the expected type and form; otherwise `IndexCorrupt` names the field."""

    def must(true: bool, field: str, problem: str) -> None:
        if not true:
            raise IndexCorrupt(path, f"field {field!r} {problem}")

    must(isinstance(manifest, dict), "manifest", "is not an object")
    for field in ("method", "settings", "store", "files", "index", "generation", "version"):
        must(field in manifest, field, "is missing")
    must(isinstance(manifest["method"], str) and 0 < len(manifest["method"]) <= 100, "method", "is not a name")
    must(isinstance(manifest["settings"], dict), "settings", "is not an object")
    must(_is_match(_INDEX, manifest["index"]), "index", "is not an id of hexadecimal digits")
    must(_is_count(manifest["generation"], 1, 999_999), "generation", "is not a number from 1 to 999,999")
    must(_is_count(manifest["version"], 0), "version", "is not a number of 0 or more")
    seconds = manifest.get("fit_seconds", 0.0)
    must(
        isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and math.isfinite(seconds) and seconds >= 0,
        "fit_seconds",
        "is not a number of seconds",
    )
    versions = manifest.get("versions", {})
    must(
        isinstance(versions, dict) and all(isinstance(value, str) for value in versions.values()),
        "versions",
        "is not an object of texts",
    )
    corpus = manifest.get("corpus", {})
    must(isinstance(corpus, dict), "corpus", "is not an object")
    must(isinstance(corpus.get("name", ""), str), "corpus.name", "is not a text")
    must(_is_count(corpus.get("documents", 0), 0), "corpus.documents", "is not a number")
    _validate_store(path, manifest["store"])
    _validate_files(path, manifest["files"], generation_name(manifest["generation"]))
    return manifest


def _validate_store(path: Path, store: Any) -> None:
    if not isinstance(store, dict) or store.get("kind") not in ("sqlite", "postgres"):
        raise IndexCorrupt(path, "field 'store' describes neither a SQLite nor a PostgreSQL store")
    if store["kind"] == "postgres":
        if not isinstance(store.get("address"), str) or not store["address"].strip():
            raise IndexCorrupt(path, "field 'store.address' is not a text")
        return
    if not _is_match(STORE_FILE, store.get("file")):
        raise IndexCorrupt(path, "field 'store.file' is not the name of a store in the folder")
    seal = store.get("seal")
    if seal is not None and not (_is_entry(seal) and _is_count(seal.get("version"), 0)):
        raise IndexCorrupt(path, "field 'store.seal' has no SHA-256, size and version")


def _validate_files(path: Path, files: Any, generation: str) -> None:
    if not isinstance(files, dict):
        raise IndexCorrupt(path, "field 'files' is not an object")
    for name, entry in files.items():
        steps = PurePosixPath(name).parts
        if len(steps) < 2 or steps[0] != generation or not all(_STEP.fullmatch(step) for step in steps):
            raise IndexCorrupt(path, f"field 'files' names a file outside {generation}: {name!r}")
        if not _is_entry(entry):
            raise IndexCorrupt(path, f"field 'files' has no SHA-256 and size for {name!r}")
    if f"{generation}/{SEQUENCE}" not in files:
        raise IndexCorrupt(path, f"field 'files' does not name {generation}/{SEQUENCE}")


def _is_count(value: Any, low: int, high: int = 2**63 - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_match(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, Mapping) and _is_match(_SHA256, entry.get("sha256")) and _is_count(entry.get("bytes"), 0)
