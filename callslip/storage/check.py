"""Verification of an index: every hash, every row, every code and every node of the trie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from callslip.errors import IndexCorrupt
from callslip.identifiers.table import Identifiers
from callslip.identifiers.trie import Trie
from callslip.storage import folder as folders
from callslip.storage.home import Home
from callslip.storage.rows import Numbers


@dataclass(frozen=True)
class Checked:
    """Counts of what was verified."""

    files: int
    documents: int
    deleted: int
    since_snapshot: int
    """Documents added after the snapshot."""
    codes: int
    generation: int
    version: int


def check(path: str | Path) -> Checked:
    """Verify an index; the first defect raises `IndexCorrupt`, which names the file."""
    home = Home.open(path)
    try:
        home.store.verify()
        sequence = home.sequence
        live, deleted, since, codes = _look_at_rows(home)
        tables = sorted(p.parent for p in home.snapshot.rglob("codes.npy"))
        for number, table in enumerate(tables):
            _look_at_codes(table, sequence, codes if number == 0 else {})
        facts = home.store.facts()
        return Checked(
            len(home.manifest["files"]) + 2,
            live,
            deleted,
            since,
            sum(code is not None for code in codes.values()),
            home.manifest["generation"],
            int(facts["version"]),
        )
    finally:
        home.close()


def _look_at_rows(home: Home) -> tuple[int, int, int, dict[int, tuple[int, ...] | None]]:
    """Number of live rows, deleted rows and rows added after the snapshot, and the code of each live row."""
    held = set(home.sequence)
    live = deleted = since = 0
    codes: dict[int, tuple[int, ...] | None] = {}
    has_codes = any(home.snapshot.rglob("codes.npy"))
    for row in home.store.rows():
        if row.deleted is not None:
            deleted += 1
            continue
        live += 1
        codes[row.seq] = row.code
        if row.added > home.version:
            since += 1
        elif row.seq not in held:
            raise IndexCorrupt(home.snapshot / folders.SEQUENCE, f"document {row.document.doc_id!r} is not in it")
        if has_codes and row.code is None:
            raise IndexCorrupt(home.store.place, f"document {row.document.doc_id!r} has no code")
    return live, deleted, since, codes


def _look_at_codes(table: Path, sequence: Numbers, codes: dict[int, tuple[int, ...] | None]) -> None:
    """Check that the table is sorted, its trie matches its codes, and the codes match the store."""
    path = table / "codes.npy"
    held = _or_corrupt(path, lambda: Identifiers.load(table))
    if len(held) != len(sequence):
        raise IndexCorrupt(path, f"{len(held)} codes for {len(sequence)} rows")
    _compare_tries(table, held)
    in_rows = held.in_row_order()[1]
    for row, seq in enumerate(sequence):
        known = codes.get(seq)
        if known is not None and known != tuple(token for token in in_rows[row].tolist() if token >= 0):
            raise IndexCorrupt(path, f"the code of row {row} is not the one in the store")


def _compare_tries(table: Path, held: Identifiers) -> None:
    first = table / "trie-0-tokens.npy"
    if not first.is_file():
        return
    saved, made = _or_corrupt(first, lambda: Trie.load(table, held.length)), Trie.from_sorted(held.codes)
    for level in range(held.length):
        for a, b in (
            (saved.tokens[level], made.tokens[level]),
            (saved.below[level].all(), made.below[level].all()),
        ):
            if not np.array_equal(a, b):
                raise IndexCorrupt(table / f"trie-{level}-tokens.npy", "the trie is not the one of the codes")


def _or_corrupt(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # NumPy raises all kinds of errors for an invalid file, including MemoryError
        raise IndexCorrupt(path, f"cannot be read: {error}") from None
