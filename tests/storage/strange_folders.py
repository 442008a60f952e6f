"""Index folders made by hand: every digest fits, and what they say makes no sense."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from callslip.runtime import durable
from callslip.storage import folder as folders
from callslip.storage.rows import facts_digest

Change = Callable[[Path], None]
FIELDS: list[tuple[str, Any]] = [
    ("method", 7),
    ("method", "no such method"),
    ("method", ["bm25"]),
    ("method", "a" * 5000),
    ("method", "\x1b[2J\u202emethod"),
    ("settings", None),
    ("settings", []),
    ("settings", {"no such setting": 1}),
    ("settings", {"k1": "high", "encoder": 5, "beam": []}),
    ("settings", {"k1": 1e400, "beam": -1}),
    ("settings", {"encoder": {"a": 1}}),
    ("index", 5),
    ("index", "../../etc"),
    ("index", None),
    ("generation", "1"),
    ("generation", -1),
    ("generation", 1.0),
    ("generation", True),
    ("generation", 10**30),
    ("version", "one"),
    ("version", -3),
    ("version", 10**25),
    ("version", None),
    ("versions", "new"),
    ("versions", {"callslip": 3}),
    ("fit_seconds", "long"),
    ("fit_seconds", [1]),
    ("corpus", 4),
    ("corpus", {"documents": "many", "name": 3}),
    ("corpus", None),
    ("store", None),
    ("store", "store.sqlite"),
    ("store", {}),
    ("store", {"kind": "mysql", "address": "x"}),
    ("store", {"kind": "sqlite"}),
    ("store", {"kind": "sqlite", "file": 4}),
    ("store", {"kind": "sqlite", "file": "/etc/passwd"}),
    ("store", {"kind": "sqlite", "file": "store-00000000.sqlite"}),
    ("store", {"kind": "postgres"}),
    ("store", {"kind": "postgres", "address": 5}),
    ("store", {"kind": "postgres", "address": "not an address at all"}),
    ("files", []),
    ("files", {}),
    ("files", {"generation-000001/sequence.npy": None}),
    ("files", {"generation-000001/sequence.npy": {"sha256": 1, "bytes": "2"}}),
    ("files", {"/etc/hostname": {"sha256": "0" * 64, "bytes": 1}}),
    ("digest", None),
]


def of_manifest(field: str, value: Any) -> Change:
    def change(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_bytes())
        manifest[field] = value
        if field != "digest":
            manifest.pop("digest")
            folders.write_manifest(path, manifest)
        else:
            (path / "manifest.json").write_text(json.dumps(manifest))

    return change


def of_text(text: bytes) -> Change:
    return lambda path: (path / "manifest.json").write_bytes(text) and None


def of_file(pattern: str, contents: Callable[[Path], bytes]) -> Change:
    """Another file of the generation, with the hash that fits it."""

    def change(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_bytes())
        manifest.pop("digest")
        for name in [name for name in manifest["files"] if Path(name).match(pattern)]:
            data = contents(path / name)
            (path / name).write_bytes(data)
            manifest["files"][name] = {"sha256": durable.sha256_of(path / name), "bytes": len(data)}
        folders.write_manifest(path, manifest)

    return change


def of_array(pattern: str, make: Callable[[np.ndarray], np.ndarray]) -> Change:
    def contents(path: Path) -> bytes:
        changed = make(np.load(path, allow_pickle=False))
        np.save(path, changed)
        return path.read_bytes()

    return of_file(pattern, contents)


def of_store(*questions: str, facts: dict[str, str] | None = None) -> Change:
    """Other rows or facts, without the seal that would show it."""

    def change(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_bytes())
        manifest.pop("digest")
        manifest["store"].pop("seal", None)
        folders.write_manifest(path, manifest)
        connection = sqlite3.connect(path / manifest["store"]["file"], isolation_level=None)
        for question in questions:
            connection.execute(question)
        if facts is not None:
            known = dict(connection.execute("SELECT name, value FROM facts")) | facts
            known["digest"] = facts_digest(known)
            connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", known.items())
        connection.close()

    return change


def _emptied(path: Path) -> None:
    for inner in path.iterdir():
        if inner.name != "manifest.json":
            shutil.rmtree(inner) if inner.is_dir() else inner.unlink()


def _folder_for_store(path: Path) -> None:
    store = next(path.glob("store-*.sqlite"))
    store.unlink()
    store.mkdir()


def _loop(path: Path) -> None:
    shutil.rmtree(path / "generation-000001")
    (path / "generation-000001").symlink_to(path)


HUGE = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999,), }".ljust(127) + b"\n"
)


def changes() -> Iterator[tuple[str, Change]]:
    for field, value in FIELDS:
        yield f"{field} = {str(value)[:30]!r}", of_manifest(field, value)
    for text in (
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{" * 100_000,
        b"\xff\xfe",
        b'{"format": 2}',
        b'{"format": {"a": 1}}',
    ):
        yield f"manifest {text[:12]!r}", of_text(text)
    # The runs of a new index, and every number, as after many deletions.
    for name, make in {
        "of floats": lambda a: a.astype(float),
        "of three dimensions": lambda a: a[None],
        "of three columns": lambda a: np.hstack([a, a[:, :1]]),
        "falls": lambda a: np.concatenate([a + np.array([[50, 0]]), a]),
        "overlaps": lambda a: np.concatenate([a, a + np.array([[3, 0]])]),
        "too short": lambda a: a - np.array([[0, 3]]),
        "too long": lambda a: a + np.array([[0, 3]]),
        "endless": lambda a: a + np.array([[0, 2**62]]),
        "of others": lambda a: a + np.array([[1000, 0]]),
        "negative": lambda a: a - np.array([[100, 0]]),
        "of nothing": lambda a: a * np.array([[1, 0]]),
    }.items():
        yield f"runs {name}", of_array("sequence.npy", make)

    def of_numbers(make: Callable[[np.ndarray], np.ndarray]) -> Change:
        return of_array("sequence.npy", lambda runs: make(np.arange(1, 1 + runs[0, 1])))

    yield "sequence of floats", of_numbers(lambda a: a.astype(float))
    yield "sequence of two dimensions", of_numbers(lambda a: a[None])
    yield "sequence that falls", of_numbers(lambda a: a[::-1])
    yield "sequence too short", of_numbers(lambda a: a[:-3])
    yield "sequence too long", of_numbers(lambda a: np.arange(1, 2 * len(a)))
    yield "sequence of others", of_numbers(lambda a: a + 1000)
    yield "sequence empty", of_numbers(lambda a: a[:0])
    yield "sequence negative", of_numbers(lambda a: a - 100)
    yield "sequence no array", of_file("sequence.npy", lambda path: b"hello")
    yield "sequence huge", of_file("sequence.npy", lambda path: HUGE)
    yield "every array empty", of_array("*.npy", lambda a: a[:0])
    yield "every array of texts", of_array("*.npy", lambda a: np.full(a.shape, "x"))
    yield (
        "every array but the sequence huge",
        of_file("*.npy", lambda path: path.read_bytes() if path.name == "sequence.npy" else HUGE),
    )
    yield "every json a number", of_file("*.json", lambda path: b"5")
    yield "every json an object", of_file("*.json", lambda path: b"{}")
    yield "every json a list", of_file("*.json", lambda path: b"[[], {}, null]")
    yield "every json broken", of_file("*.json", lambda path: b"{")
    yield "every line broken", of_file("*.jsonl", lambda path: b"[1\n{]\n")
    yield "every safetensors broken", of_file("*.safetensors", lambda path: b"\xff" * 64)
    yield "every safetensors empty", of_file("*.safetensors", lambda path: b"")
    yield "no rows", of_store("DELETE FROM documents")
    yield "no table", of_store("DROP TABLE documents")
    yield "another table", of_store("ALTER TABLE documents RENAME COLUMN text TO words")
    yield "facts without a version", of_store("DELETE FROM facts WHERE name = 'version'")
    yield "version a word", of_store(facts={"version": "many"})
    yield "rows a word", of_store(facts={"rows": "many"})
    yield "last a word", of_store(facts={"last": "many", "purged": "few"})
    yield "format of tomorrow", of_store(facts={"format": "9"})
    yield "metadata no object", of_store("UPDATE documents SET metadata = '[1, 2]'")
    yield "nothing but a manifest", _emptied
    yield "a folder for a store", _folder_for_store
    yield "a folder that holds itself", _loop
