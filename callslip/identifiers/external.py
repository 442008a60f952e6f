"""The table of codes that are too many for memory: sorted on disk, a part at a time, and written as streams.

Codes are distributed over files by their first token; a file that is too large is distributed again by the next token.
Each file is sorted in memory, and its codes are appended to the arrays of table and trie. What is held at once is one
file, whatever the number of codes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from callslip.errors import BadSetting
from callslip.identifiers.table import END, check_codes
from callslip.identifiers.trie import BLOCK
from callslip.runtime import durable

FILES = 256
"""Files that codes are distributed over at once."""
HELD = 2_000_000
"""Codes that are sorted in memory: about 100 MB for codes of four tokens."""
TOKENS = (np.uint8, np.int16, np.int32)
OFFSETS = (np.uint8, np.int16, np.int32, np.int64)
ROWS = (np.int32, np.int64)
COPIED = 1 << 22
"""Numbers that are converted or copied at once."""


def write_table(
    blocks: Iterable[np.ndarray], folder: Path, length: int, *, with_codes: bool = True, held: int = HELD
) -> int:
    """Write rows.npy, the trie's files and, unless `with_codes` is false, codes.npy: the arrays that `Identifiers.save`
    writes. Codes come in blocks [n, L], in the order of their rows. Returns the number of codes."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="callslip-sort-", dir=folder) as place:
        writer, row = _Writer(Path(place), length, with_codes), 0
        spool = _Spool(Path(place), "all", length)
        with spool:
            for block in blocks:
                codes = check_codes(block)
                if codes.shape[1] != length:
                    raise BadSetting(f"a block of codes of {codes.shape[1]} tokens in a table of {length}")
                for start in range(0, len(codes), held):
                    some = codes[start : start + held]
                    spool.add(some, row + np.arange(len(some)))
                    row += len(some)
        for codes, rows in spool.sorted(held):
            writer.append(codes, rows)
        writer.save(folder)
    return row


class _Spool:
    """Codes and their rows, distributed over files by the token of a level; files are in the order of the tokens."""

    def __init__(self, place: Path, name: str, length: int, level: int = 0) -> None:
        self._place, self._name, self._length, self._level = place, name, length, level
        self._record = np.dtype([("row", np.int64), ("code", np.int32, (length,))])
        self._open: dict[int, Any] = {}
        self._counts: dict[int, int] = {}

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()

    def add(self, codes: np.ndarray, rows: np.ndarray) -> None:
        """Append codes, whose rows ascend."""
        column = codes[:, self._level]
        order = np.argsort(column, kind="stable")
        starts = np.concatenate([[0], np.flatnonzero(np.diff(column[order])) + 1, [len(order)]])
        for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            if first == last:
                continue
            token, some = int(column[order[first]]), order[first:last]
            records = np.empty(last - first, self._record)
            records["row"], records["code"] = rows[some], codes[some]
            self._file(token).write(records.data)
            self._counts[token] = self._counts.get(token, 0) + len(records)

    def _file(self, token: int) -> Any:
        if token not in self._open:
            if len(self._open) >= FILES:  # close the oldest: files are opened to append
                self._open.pop(next(iter(self._open))).close()
            self._open[token] = self._path(token).open("ab")
        return self._open[token]

    def _path(self, token: int) -> Path:
        return self._place / f"{self._name}.{token}"

    def sorted(self, held: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Codes and rows in the order of both, at most `held` at once. The files are removed."""
        for token in sorted(self._counts):
            path, count = self._path(token), self._counts[token]
            if self._level + 1 == self._length or token == END:  # equal codes, in the order of their rows
                for records in self._read(path, held):
                    yield records["code"], records["row"]
            elif count <= held:
                records = np.fromfile(path, self._record)
                path.unlink()
                order = _order(records["code"][:, self._level + 1 :])
                yield records["code"][order], records["row"][order]
            else:
                deeper = _Spool(self._place, path.name, self._length, self._level + 1)
                with deeper:
                    for records in self._read(path, held):
                        deeper.add(records["code"], records["row"])
                path.unlink(missing_ok=True)
                yield from deeper.sorted(held)
            path.unlink(missing_ok=True)

    def _read(self, path: Path, held: int) -> Iterator[np.ndarray]:
        with path.open("rb") as file:
            while len(records := np.fromfile(file, self._record, held)):
                yield records


def _order(codes: np.ndarray) -> np.ndarray:
    """The stable order of codes: by one number a code where its tokens and its place fit into 64 bits."""
    highest = codes.max(axis=0, initial=0)
    bits = [(int(top) + 1).bit_length() for top in highest]
    place = max(1, len(codes) - 1).bit_length()
    if sum(bits) + place > 64:
        return np.lexsort(codes.T[::-1])
    keys = np.zeros(len(codes), np.uint64)
    for level, size in enumerate(bits):
        keys <<= np.uint64(size)
        keys |= (codes[:, level].astype(np.int64) + 1).astype(np.uint64)
    keys <<= np.uint64(place)
    keys |= np.arange(len(codes), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64((1 << place) - 1)).astype(np.int64)


class _Writer:
    """Appends sorted codes to the arrays of a table and its trie."""

    def __init__(self, place: Path, length: int, with_codes: bool) -> None:
        self._length = length
        self._rows = _Column(place / "rows", ROWS)
        self._codes = _Column(place / "codes", (np.int32,)) if with_codes else None
        self._tokens = [_Column(place / f"tokens-{level}", TOKENS) for level in range(length)]
        self._below = [_OffsetColumn(place, level) for level in range(length)]
        self._last: np.ndarray | None = None
        self._count = 0

    def append(self, codes: np.ndarray, rows: np.ndarray) -> None:
        """Append codes, which come after all that were appended, and their rows."""
        self._rows.append(rows)
        if self._codes is not None:
            self._codes.append(codes.reshape(-1))
        new = np.zeros(len(codes), bool)
        starts: list[np.ndarray] = []
        for level in range(self._length):
            column = codes[:, level]
            new[1:] |= column[1:] != column[:-1]
            new[0] |= self._last is None or bool(column[0] != self._last[level])
            starts.append(np.flatnonzero(new))
            self._tokens[level].append(column[starts[-1]])
        # The first child of a node begins where the node begins.
        for level, start in enumerate(starts[:-1]):
            before = self._tokens[level + 1].count - len(starts[level + 1])
            self._below[level].append(before + np.searchsorted(starts[level + 1], start))
        self._below[-1].append(self._count + starts[-1])
        self._last, self._count = codes[-1].copy(), self._count + len(codes)

    def save(self, folder: Path) -> None:
        for level in range(self._length):
            last = level + 1 == self._length
            self._below[level].append(np.array([self._count if last else self._tokens[level + 1].count]))
            self._tokens[level].save(folder / f"trie-{level}-tokens.npy")
            self._below[level].bases.save(folder / f"trie-{level}-bases.npy")
            self._below[level].rest.save(folder / f"trie-{level}-rest.npy")
        self._rows.save(folder / "rows.npy")
        if self._codes is not None:
            self._codes.save(folder / "codes.npy", self._length)


class _Column:
    """Numbers that are appended to a file, in the first of several types that holds them all."""

    def __init__(self, path: Path, kinds: tuple[Any, ...]) -> None:
        self._path, self._kinds = path, [np.dtype(kind) for kind in kinds]
        self.count = 0
        path.touch()

    def append(self, values: np.ndarray) -> None:
        if not len(values):
            return
        low, high = int(values.min()), int(values.max())
        while low < np.iinfo(self._kinds[0]).min or high > np.iinfo(self._kinds[0]).max:
            self._widen()
        with self._path.open("ab") as file:
            file.write(values.astype(self._kinds[0]).data)
        self.count += len(values)

    def _widen(self) -> None:
        """Write what there is in the next type."""
        old, self._kinds = self._kinds[0], self._kinds[1:]
        wider = self._path.with_name(self._path.name + "-wider")
        with self._path.open("rb") as source, wider.open("wb") as target:
            while len(values := np.fromfile(source, old, COPIED)):
                target.write(values.astype(self._kinds[0]).data)
        wider.replace(self._path)

    def save(self, path: Path, columns: int | None = None) -> None:
        """Write a .npy file."""
        shape = (self.count,) if columns is None else (self.count // columns, columns)

        def fill(target: Any) -> None:
            layout = {"descr": self._kinds[0].str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(target, layout)
            with self._path.open("rb") as source:
                while data := source.read(COPIED):
                    target.write(data)

        durable.replace(path, fill)
        self._path.unlink()


class _OffsetColumn:
    """Offsets that are appended, compressed as `Offsets.pack` does."""

    def __init__(self, place: Path, level: int) -> None:
        self.bases = _Column(place / f"bases-{level}", (np.int64,))
        self.rest = _Column(place / f"rest-{level}", OFFSETS)
        self._base = 0

    def append(self, values: np.ndarray) -> None:
        """Append numbers that do not decrease."""
        if not len(values):
            return
        first = -self.rest.count % BLOCK  # where the next block begins
        bases = values[first::BLOCK]
        self.bases.append(bases)
        whole = np.repeat(np.concatenate([[self._base], bases]), BLOCK)[BLOCK - first :][: len(values)]
        self.rest.append(values - whole)
        if len(bases):
            self._base = int(bases[-1])
