"""Crash-safe files: written completely, synced, and only then renamed to their final name.

All files that must not be lost are written through `system`, seven calls in all, so that tests can record them, cut
them short or make them fail. SQLite and PostgreSQL manage their own files.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from callslip.errors import CallslipError

DRAFT = ".new-"
"""Name prefix of unfinished files, which are deleted when their folder is next opened."""


class System:
    """The calls that change a disk."""

    def create(self, path: Path) -> int:
        """Open a new file for writing, and return its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the data, and return how many bytes."""
        return os.write(descriptor, data)

    def write_at(self, descriptor: int, data: bytes, offset: int) -> None:
        """Overwrite a few bytes in place."""
        os.pwrite(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or folder, replacing an existing file."""
        os.replace(old, new)  # noqa: PTH105  (one place for all such calls)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with its contents."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        path.mkdir()


system = System()


class Writer:
    """File object for writing a new file, for `np.save` and the like."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        self._digest.update(left)
        self.bytes += len(left)
        size = len(left)
        while len(left):
            left = left[system.write(self._descriptor, left) :]
        return size

    def entry(self) -> dict[str, Any]:
        """Size and SHA-256 of the written data, in the form of a manifest entry."""
        return {"sha256": self._digest.hexdigest(), "bytes": self.bytes}


Fill = Callable[[Writer], Any]
"""Writes a file's contents."""


def write(path: Path, contents: bytes | Fill) -> dict[str, Any]:
    """Write and sync a new file; return the size and checksum of the data, not of what reached the disk."""
    descriptor = system.create(path)
    try:
        writer = Writer(descriptor)
        if isinstance(contents, bytes):
            writer.write(contents)
        else:
            contents(writer)
        system.sync(descriptor)
    finally:
        os.close(descriptor)
    return writer.entry()


def replace(path: Path, contents: bytes | Fill) -> dict[str, Any]:
    """Atomically replace a file: at any moment, either the old or the new one exists in full."""
    draft = path.with_name(f"{DRAFT}{path.name}-{uuid.uuid4().hex[:8]}")
    try:
        entry = write(draft, contents)
        system.rename(draft, path)
    except BaseException:
        with suppress(OSError):
            system.remove(draft)
        raise
    sync_folder(path.parent)
    return entry


def not_written(target: Path, error: OSError, otherwise: str = "Choose another place.") -> CallslipError:
    """The error for a failed write, with the remedy for its cause; `otherwise` is what helps whatever the cause."""
    remedy = otherwise
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f"Free some space. {otherwise}"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = f"Check the permissions of the folder. {otherwise}"
    return CallslipError(f"cannot write to {target}: {error.strerror or error}", remedy)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder to `write` into, renamed to `target` when complete. `target` must not exist."""
    draft = target.with_name(f"{DRAFT}{target.name}-{uuid.uuid4().hex[:8]}")
    system.make_folder(draft)
    try:
        yield draft
        sync_folder(draft)
        system.rename(draft, target)
    except BaseException:
        with suppress(OSError):
            system.remove(draft)
        raise
    sync_folder(target.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    if os.name == "nt":  # Windows cannot open folders, and journals their entries
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        system.sync(descriptor)
    finally:
        os.close(descriptor)


def remove_drafts(folder: Path) -> None:
    """Remove the leftovers of interrupted writes."""
    for path in folder.glob(f"{DRAFT}*"):
        with suppress(OSError):  # removed by another process, or not permitted; harmless
            system.remove(path)


def array(values: np.ndarray) -> Fill:
    """An array as the contents of a .npy file."""
    return lambda writer: np.save(writer, values, allow_pickle=False)  # type: ignore[arg-type]


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def problem_with(path: Path, entry: dict[str, Any]) -> str:
    """How a file differs from its manifest entry; empty if it does not."""
    if not path.is_file():
        return "the file is missing"
    size = path.stat().st_size
    if size != entry["bytes"]:
        return f"the file has {size} bytes; the manifest says {entry['bytes']}"
    if sha256_of(path) != entry["sha256"]:
        return "the file's contents are not what was saved (SHA-256 differs)"
    return ""
