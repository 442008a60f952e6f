"""The saved folder: written whole or not at all, checked file by file when it is opened.

`manifest.json` names the method, its settings and the SHA-256 of every other file. It is written last, into a
new folder beside the target, which then takes the target's name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from callslip.errors import CallslipError, IndexCorrupt, NotAnIndex
from callslip.versions import versions

MANIFEST = "manifest.json"
FORMAT = 1


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def writing(target: str | Path, manifest: dict[str, Any]) -> Iterator[Path]:
    """Give a new, empty folder to write into; on success seal it with a manifest and put it at `target`.

    An earlier index at `target` is replaced only when the new one is complete. Any other folder with
    something in it is never touched.
    """
    target = Path(target)
    check_writable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
    except OSError as error:
        raise CallslipError(f"cannot write to {target}: {error.strerror}", "Choose another --out.") from None
    try:
        draft.chmod(0o755)
        yield draft
        _seal(draft, manifest)
        _put(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def check_writable(target: str | Path) -> None:
    """Refuse, before hours of work, a target that `writing` would refuse after them."""
    target = Path(target)
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).exists():
        raise CallslipError(f"{target} is a folder with other files in it", "Choose a new or empty folder.")
    if (target / MANIFEST).is_file() and (foreign := _foreign_files(target)):
        raise CallslipError(
            f"{target} holds an index and another file, {foreign[0]}, which replacing the index would delete",
            "Move it away, or choose another folder.",
        )
    if target.exists() and not target.is_dir():
        raise CallslipError(f"{target} is a file", "Choose a folder.")


def _foreign_files(folder: Path) -> list[str]:
    """Files in an index's folder that are not the index's."""
    try:
        known = set(json.loads((folder / MANIFEST).read_bytes())["files"]) | {MANIFEST}
    except (ValueError, KeyError, TypeError, RecursionError):
        known = {MANIFEST}
    return sorted(
        name for p in folder.rglob("*") if p.is_file() and (name := p.relative_to(folder).as_posix()) not in known
    )


def _seal(folder: Path, manifest: dict[str, Any]) -> None:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    entries = {}
    for path in files:
        entries[path.relative_to(folder).as_posix()] = {"sha256": sha256_of(path), "bytes": path.stat().st_size}
        _sync(path)
    whole = {"callslip": "index", "format": FORMAT, **manifest, "versions": versions(), "files": entries}
    path = folder / MANIFEST
    path.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for place in (path, *sorted({p.parent for p in files} | {folder})):
        _sync(place)


def _put(draft: Path, target: Path) -> None:
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
        target.replace(old / "index")
        draft.replace(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        draft.replace(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(folder: str | Path, verify: bool = True) -> dict[str, Any]:
    """The manifest of a saved index; with `verify`, after checking size and hash of every file it names."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.is_file():
        raise NotAnIndex(
            f"{folder} is not a callslip index: it has no {MANIFEST}",
            "Build one: callslip fit CORPUS --out DIR.",
        )
    try:
        manifest = json.loads(path.read_bytes())
        files = manifest["files"]
        known = manifest["format"]
        manifest["method"], manifest["settings"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise IndexCorrupt(path, "the manifest cannot be read") from None
    if known != FORMAT:
        raise NotAnIndex(
            f"{folder} has index format {known}; this version reads {FORMAT}",
            "Use the version that wrote it, or fit again.",
        )
    if verify:
        for name, entry in files.items():
            _verify(folder, name, entry)
    return manifest


def _verify(folder: Path, name: str, entry: dict[str, Any]) -> None:
    path = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise IndexCorrupt(folder / MANIFEST, f"it names a file outside the folder: {name}")
    if not path.is_file():
        raise IndexCorrupt(path, "the file is missing")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise IndexCorrupt(path, f"the file has {size} bytes; the manifest says {entry['bytes']}")
    if sha256_of(path) != entry["sha256"]:
        raise IndexCorrupt(path, "the file's contents are not what was saved (SHA-256 differs)")
