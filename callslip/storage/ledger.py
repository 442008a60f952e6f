"""The ledger: the last acknowledged commit of a store, recorded outside SQLite's own log.

SQLite stops reading its log at the first damaged frame and ignores the rest, so a truncated log opens without an error.
The ledger is a small file beside the store with two slots. Each has a version, the random mark that the commit wrote to
the store, and a digest. A commit is acknowledged when first the store and then one slot are on disk; a power cut can
tear one slot, never both. A store behind its ledger has lost commits. A store ahead of it has a commit that was never
acknowledged.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from callslip.errors import IndexCorrupt
from callslip.runtime import durable

SUFFIX = "-ledger"
SLOTS = (0, 4096)
"""Offsets of the slots: in separate blocks, so that a torn write damages only one."""
_SLOT = struct.Struct(">8sQ16s")
_MAGIC, _DIGEST = b"callslip", 32
_TRIES = 5


@dataclass(frozen=True, order=True)
class Entry:
    """An acknowledged commit."""

    version: int
    mark: str = ""
    """Random mark that this commit wrote to the store's facts; another commit of the same version has another mark."""

    def to_bytes(self) -> bytes:
        body = _SLOT.pack(_MAGIC, self.version, bytes.fromhex(self.mark).rjust(16, b"\0"))
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Entry | None:
        """None if the write was incomplete, or the data is not an entry."""
        body, digest = data[: _SLOT.size], data[_SLOT.size : _SLOT.size + _DIGEST]
        if len(digest) < _DIGEST or hashlib.sha256(body).digest() != digest:
            return None
        magic, version, mark = _SLOT.unpack(body)
        return cls(version, mark.hex() if any(mark) else "") if magic == _MAGIC else None


def path_of(store: Path) -> Path:
    """The ledger of a store."""
    return store.with_name(f"{store.name}{SUFFIX}")


def create(store: Path, entry: Entry) -> None:
    """Write and sync a new ledger, replacing an existing one."""
    slot = entry.to_bytes()
    durable.replace(path_of(store), slot.ljust(SLOTS[1], b"\0") + slot)


def last(store: Path) -> Entry | None:
    """The last acknowledged commit; None if the store has no ledger, as in earlier versions."""
    path = path_of(store)
    for attempt in range(_TRIES):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        found = _entries(data)
        if found:
            return max(found)
        time.sleep(0.01 * attempt)  # another process may be writing
    raise IndexCorrupt(path, "damaged: neither of its entries can be read")


def _entries(data: bytes) -> list[Entry]:
    return [entry for start in SLOTS if (entry := Entry.from_bytes(data[start : start + 64])) is not None]


def note(store: Path, entry: Entry) -> None:
    """Record a commit; when this returns, it is on disk. With several writers, the latest commit wins."""
    with _alone(path_of(store)) as descriptor:
        slots = [Entry.from_bytes(os.pread(descriptor, 64, start)) for start in SLOTS]
        if any(slot is not None and slot.version >= entry.version for slot in slots):
            return  # its writer synced it before releasing the lock
        oldest = min(range(len(SLOTS)), key=lambda number: (slots[number] or Entry(-1)).version)
        durable.system.write_at(descriptor, entry.to_bytes(), SLOTS[oldest])
        durable.system.sync(descriptor)


@contextmanager
def _alone(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        try:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except ImportError:
            pass
        yield descriptor
    finally:
        os.close(descriptor)
