"""Numbers: the store's number of each row, ascending. Consecutive numbers are one run, so a fresh index has one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from callslip.errors import IndexCorrupt


class Numbers:
    """Ascending numbers from 1, as runs. Numbers can be appended, which does not copy those that are there."""

    def __init__(self, firsts: np.ndarray | Sequence[int] = (), counts: np.ndarray | Sequence[int] = ()) -> None:
        """`firsts` are the first numbers of the runs, and `counts` how many each has, at least one."""
        self._runs = len(firsts)
        self._firsts = np.array(firsts, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)
        """Row at which each run begins; after the last, the number of rows."""

    @classmethod
    def of(cls, numbers: np.ndarray | Sequence[int]) -> Numbers:
        values = np.asarray(numbers, np.int64)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(values) != 1) + 1])[: len(values)]
        return cls(values[starts], np.diff(np.append(starts, len(values))))

    def __len__(self) -> int:
        return int(self._starts[self._runs])

    def __iter__(self) -> Iterator[int]:
        for run in range(self._runs):
            first = int(self._firsts[run])
            yield from range(first, first + int(self._starts[run + 1] - self._starts[run]))

    def of_rows(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """The numbers of these rows; IndexError if there is no such row."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"no row {int(rows.max())}")
        run = np.searchsorted(self._starts[: self._runs + 1], rows, side="right") - 1
        return self._firsts[run] + rows - self._starts[run]

    def rows_of(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """The row of each number; -1 for a number that is not there."""
        wanted = np.asarray(numbers, np.int64)
        if not self._runs:
            return np.full(len(wanted), -1, np.int64)
        run = np.searchsorted(self._firsts[: self._runs], wanted, side="right") - 1
        rows = self._starts[np.maximum(run, 0)] + wanted - self._firsts[np.maximum(run, 0)]
        return np.where((run >= 0) & (rows < self._starts[run + 1]), rows, -1)

    def last(self) -> int:
        """The last number, or 0."""
        return 0 if not len(self) else int(self.of_rows([len(self) - 1])[0])

    def extend(self, numbers: Iterable[int]) -> None:
        """Append numbers above the last."""
        for number in numbers:
            if number == self.last() + 1 and self._runs:
                self._starts[self._runs] += 1
                continue
            if self._runs == len(self._firsts):
                room = max(16, self._runs)
                self._firsts = np.concatenate([self._firsts, np.zeros(room, np.int64)])
                self._starts = np.concatenate([self._starts, np.zeros(room, np.int64)])
            self._firsts[self._runs] = number
            self._starts[self._runs + 1] = self._starts[self._runs] + 1
            self._runs += 1

    def copy(self) -> Numbers:
        return Numbers(self._firsts[: self._runs], np.diff(self._starts[: self._runs + 1]))

    def taken(self, rows: np.ndarray) -> Numbers:
        """The numbers of these rows, which ascend."""
        return Numbers.of(self.of_rows(rows))

    def tolist(self) -> list[int]:
        return list(self)

    def array(self) -> np.ndarray:
        """As they are saved: first number and length of each run, [runs, 2]; or every number, if that is shorter."""
        if 2 * self._runs < len(self):
            return np.stack([self._firsts[: self._runs], np.diff(self._starts[: self._runs + 1])], axis=1)
        return np.fromiter(self, np.int64, len(self))


def read_numbers(path: Path) -> Numbers:
    """Read what `Numbers.array` gives, and refuse anything else."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a wrong length allocates nothing
        whole = isinstance(found, np.ndarray) and found.ndim in (1, 2) and found.dtype == np.int64
    except (ValueError, EOFError, SyntaxError, OverflowError, TypeError) as error:
        raise IndexCorrupt(path, f"is not an array of row numbers ({error})") from None
    if not whole or (found.ndim == 2 and found.shape[1] != 2):
        raise IndexCorrupt(path, "is not an array of row numbers")
    if found.ndim == 1:
        if len(found) and (found[0] < 1 or (np.diff(found) <= 0).any()):
            raise IndexCorrupt(path, "the numbers of rows do not rise")
        return Numbers.of(found)
    firsts, counts = found[:, 0], found[:, 1]
    wrong = (counts < 1).any() or (counts > 1 << 48).any() or (firsts > 1 << 48).any()
    if wrong or (len(found) and firsts[0] < 1) or (firsts[1:] < firsts[:-1] + counts[:-1]).any():
        raise IndexCorrupt(path, "the numbers of rows do not rise")
    return Numbers(firsts, counts)
