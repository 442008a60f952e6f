"""The folder of an index: a manifest names one generation of files, and is replaced by one rename.

    manifest.json          method, settings, corpus, versions; the store, the generation, size and SHA-256 of its files
    generation-000001/     the method's files, and `sequence.npy`: the store's number of each row
    store-1a2b3c4d.sqlite  the current documents, codes and deletions
    store-….sqlite-ledger  the last acknowledged commit
    lock                   held by the process that writes a new generation

Files of a generation are never changed in place. Files that no manifest names are leftovers of a crash.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from callslip.errors import CallslipError, IndexCorrupt, NotAnIndex
from callslip.runtime import durable
from callslip.runtime.patience import wait_for
from callslip.runtime.process import versions
from callslip.storage import sqlite_store
from callslip.storage.rows import NewRow, Numbers

MANIFEST, LOCK = "manifest.json", "lock"
FORMAT = 2
OURS = re.compile(
    r"generation-\d{6}|store-[0-9a-f]{8}\.sqlite(-wal|-shm|-journal|-ledger)?|lock|manifest\.json|\.new-.*"
)
LARGEST = 64 * 1024 * 1024
"""Maximum size of a manifest in bytes; a usual one names some dozens of files."""
STORE_FILE = re.compile(r"store-[0-9a-f]{8}\.sqlite")
SEQUENCE = "sequence.npy"
"""The store's number of each row of a generation."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_INDEX = re.compile(r"[0-9a-f]{8,64}")
_STEP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

Save = Callable[[Path], None]
"""Writes a method's files into a folder."""


def generation_name(number: int) -> str:
    return f"generation-{number:06d}"


def write_index(
    target: str | Path, about: Mapping[str, Any], save: Save, rows: Iterable[tuple[NewRow, bool]]
) -> dict[str, Any]:
    """Atomically write a new index, and return its manifest.

    An existing index is replaced when the manifest is renamed: at any moment, one of the two exists. Any other
    non-empty folder is never touched.
    """
    target = Path(target)
    check_writable(target)
    try:
        if (target / MANIFEST).is_file():
            with locked(target):
                return _replace_index(target, about, save, rows)
        with draft_of(target) as draft:
            manifest = _write_into(draft, 1, about, save, rows)
            durable.system.rename(draft, target)  # replaces an empty folder
        durable.sync_folder(target.parent)
        return manifest
    except OSError as error:
        raise durable.not_written(target, error) from None


@contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """A temporary folder beside the target, to be filled and renamed; otherwise it is removed.

    It is locked meanwhile. A draft without a lock is a leftover of a killed process, and is removed by the next one
    that writes to the same parent folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
    try:
        draft.chmod(0o755)
        with _folder_locked(draft):
            yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(".*.new-*"):
        with suppress(OSError), _folder_locked(path) as ours:
            if ours and not path.is_symlink() and all(OURS.fullmatch(inner.name) for inner in path.iterdir()):
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _folder_locked(folder: Path) -> Iterator[bool]:
    """Try to lock the folder itself; gives whether this succeeded."""
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def _replace_index(
    target: Path, about: Mapping[str, Any], save: Save, rows: Iterable[tuple[NewRow, bool]]
) -> dict[str, Any]:
    """Write a new index into the folder of an existing one. The caller must hold the lock."""
    try:
        before = read_manifest(target, verify=False)
        generation, store = before["generation"] + 1, target / before["store"].get("file", "")
    except CallslipError:
        numbers = [int(p.name[-6:]) for p in target.glob("generation-*") if OURS.fullmatch(p.name)]
        generation, store = max([0, *numbers]) + 1, target

    def retire() -> None:
        # Processes that still have the old store open must not write to it: their changes would be lost.
        if store.is_file():
            with suppress(CallslipError):  # nobody can write to a damaged store anyway
                old = sqlite_store.SqliteStore(store)
                old.retire()
                old.close()

    manifest = _write_into(target, generation, about, save, rows, retire)
    remove_orphans(target, manifest)
    return manifest


def _write_into(
    folder: Path,
    generation: int,
    about: Mapping[str, Any],
    save: Save,
    rows: Iterable[tuple[NewRow, bool]],
    before_switch: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    index = uuid.uuid4().hex
    name = f"store-{index[:8]}.sqlite"
    count = sqlite_store.create(folder / name, index, rows)
    seal = {**_sealed(folder / name), "version": 1}
    files = write_generation(folder, generation, save, Numbers([1], [count]) if count else Numbers())
    manifest = {
        "callslip": "index",
        "format": FORMAT,
        "index": index,
        "generation": generation,
        "version": 1,
        **about,
        "versions": versions(),
        "store": {"kind": "sqlite", "file": name, "seal": seal},
        "files": files,
    }
    before_switch()
    write_manifest(folder, manifest)
    return manifest


def write_generation(folder: Path, number: int, save: Save, sequence: Numbers) -> dict[str, dict[str, Any]]:
    """Write and sync the files of a new generation; returns their manifest entries."""
    place = folder / generation_name(number)
    if place.exists():
        durable.system.remove(place)  # an unfinished generation
    with durable.new_folder(place) as draft:
        save(draft)
        durable.write(draft / SEQUENCE, durable.array(sequence.array()))
        files = sorted(p for p in draft.rglob("*") if p.is_file())
        mode = (draft / SEQUENCE).stat().st_mode & 0o777  # some libraries create files that only their owner can read
        for path in files:
            path.chmod(mode)
        entries = {f"{place.name}/{path.relative_to(draft).as_posix()}": _sealed(path) for path in files}
        for inner in sorted({path.parent for path in files} - {draft}):
            durable.sync_folder(inner)
    return entries


def _sealed(path: Path) -> dict[str, Any]:
    """Sync a file, and return its size and hash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        durable.system.sync(descriptor)
    finally:
        os.close(descriptor)
    return {"sha256": durable.sha256_of(path), "bytes": path.stat().st_size}


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Atomically replace the manifest, which switches the index to another generation."""
    durable.replace(folder / MANIFEST, _bytes({**manifest, "digest": _digest(manifest)}))


def _bytes(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()


def _digest(manifest: Mapping[str, Any]) -> str:
    import hashlib

    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def check_writable(target: str | Path) -> None:
    """Reject a target that `write_index` would reject, before hours of training."""
    target = Path(target)
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).exists():
        raise CallslipError(f"{target} is a folder with other files in it", "Choose a new or empty folder.")
    if target.exists() and not target.is_dir():
        raise CallslipError(f"{target} is a file", "Choose a folder.")
    place = next(folder for folder in (target, *target.absolute().parents) if folder.is_dir())
    try:
        draft = place / f"{durable.DRAFT}{uuid.uuid4().hex}"
        draft.mkdir()
        draft.rmdir()
    except OSError as error:
        raise durable.not_written(target, error) from None


def read_manifest(folder: str | Path, verify: bool = True) -> dict[str, Any]:
    """The manifest of a saved index; with `verify`, the size and hash of every file are checked."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.is_file():
        if any(folder.glob("generation-*")):
            raise IndexCorrupt(path, "the manifest is missing")
        raise NotAnIndex(
            f"{folder} is not a callslip index: it has no {MANIFEST}",
            "Build one: callslip fit CORPUS --out DIR.",
        )
    manifest = _read(folder, path)
    if verify:
        verify_files(folder, manifest)
    return manifest


def _read(folder: Path, path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST:
            raise IndexCorrupt(path, f"the manifest has more than {LARGEST:,} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise IndexCorrupt(path, f"cannot be read: {error.strerror}") from None
    try:
        manifest = json.loads(data)
        known = manifest["format"]
        damaged = known == FORMAT and (manifest.get("digest") != _digest(manifest) or data != _bytes(manifest))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        if isinstance(known := _format_of(data), int) and known != FORMAT:
            raise _other_format(folder, known) from None
        raise IndexCorrupt(path, "the manifest cannot be read") from None
    if known != FORMAT:
        raise _other_format(folder, known)
    if damaged:
        raise IndexCorrupt(path, "the manifest is not what was written (SHA-256 differs)")
    return validate(path, manifest)


def footprint(index: str | Path) -> dict[str, float]:
    """Bytes a document of what a saved index searches: of each file, and of each folder of files."""
    manifest = read_manifest(index, verify=False)
    rows = max(1, int(manifest["corpus"]["documents"]))
    found: dict[str, float] = {}
    for name, entry in manifest["files"].items():
        top = name.split("/")[1].partition(".")[0]
        found[top] = found.get(top, 0.0) + entry["bytes"] / rows
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def verify_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check size and hash of every file that a manifest names."""
    for name, entry in manifest["files"].items():
        if problem := durable.problem_with(folder / name, entry):
            raise IndexCorrupt(folder / name, problem)


def _format_of(data: bytes) -> Any:
    try:
        return json.loads(data)["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _other_format(folder: Path, known: Any) -> NotAnIndex:
    return NotAnIndex(
        f"{folder} has index format {repr(known)[:20]}; this version reads {FORMAT}",
        "Use the version that wrote it, or fit again.",
    )


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock for writing generations; gives whether this succeeded. The system releases it if we are killed.

    With `wait`, the timeout is that of the caller (`callslip.runtime.patience`).
    """
    try:
        import fcntl
    except ImportError:  # no flock on this system; without it, nobody cleans up after others either
        yield wait
        return
    if (folder / MANIFEST).is_symlink():
        if wait:
            raise sqlite_store.behind_a_link(folder / MANIFEST)
        yield False
        return
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if wait:
            raise durable.not_written(folder, error) from None
        yield False  # a read-only folder has no writers, and nothing can be cleaned up
        return

    def take() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    try:
        if not wait:
            yield take()
            return
        wait_for(take, str(folder))
        yield True
    finally:
        os.close(descriptor)


def hold(generation: Path) -> int | None:
    """Lock a generation against removal while it is read; returns the descriptor to close afterwards."""
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(generation / SEQUENCE, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # another process is removing it
        os.close(descriptor)
        raise
    return descriptor


def _held(generation: Path) -> bool:
    """Whether a process is reading a generation."""
    try:
        import fcntl

        descriptor = os.open(generation / SEQUENCE, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_orphans(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Remove files that the manifest does not name: earlier generations without readers, and leftovers of crashes.

    The caller must hold the lock.
    """
    current, store = generation_name(manifest["generation"]), manifest["store"].get("file")
    for path in folder.iterdir():
        name = path.name
        if not OURS.fullmatch(name) or name in (MANIFEST, LOCK, current):
            continue
        if store is not None and (name == store or name.startswith(f"{store}-")):
            continue
        if name.startswith("generation-") and _held(path):
            continue
        with suppress(OSError):
            durable.system.remove(path)


# Validation of manifests. Every field is checked before it is used: a manifest may be untrusted.


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
