"""Records that are too many for memory, sorted on disk by a small key.

Records come in blocks. If there are more than are held at once, they are distributed over files by ranges of their
keys, and a file that is too large is distributed again, by smaller ranges. Each file is then sorted in memory. The
files have no names, so nothing is left of them whatever happens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np

FILES = 64
"""Files that records are distributed over at once: with those of smaller ranges fewer than any system allows."""
HELD = 250_000
"""Records that are held and sorted in memory: about 80 MB for codes of 96 tokens, with the copies of a sort."""


def sorted_by_key(blocks: Iterable[np.ndarray], keys: int, held: int | None = None) -> Iterator[np.ndarray]:
    """The records of all blocks, structured arrays with a field `keys` below that number, in the order of their keys,
    and of the blocks where keys are equal. They come in pieces; there is one piece if all fit into memory."""
    held, count = HELD if held is None else held, 0
    kept: list[np.ndarray] = []
    spool: _Spool | None = None
    for block in blocks:
        count += len(block)
        if spool is None and count > held:
            spool = _Spool(-(-keys // FILES))
            while kept:
                spool.add(kept.pop(0))
        if spool is None:
            kept.append(block)
        else:
            spool.add(block)
    if spool is not None:
        yield from spool.sorted(held)
    elif kept:
        whole = np.concatenate(kept)
        kept.clear()
        yield whole[np.argsort(whole["keys"], kind="stable")]


class _Spool:
    """Records, distributed over files by ranges of `step` keys."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._files: dict[int, IO[bytes]] = {}
        self._kind: Any = None

    def add(self, records: np.ndarray) -> None:
        self._kind = records.dtype
        number = records["keys"] // self._step
        order = np.argsort(number, kind="stable")
        records, number = records[order], number[order]
        starts = np.flatnonzero(np.diff(number, prepend=-1, append=-1) if len(number) else [])
        for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            at = int(number[first])
            if at not in self._files:
                self._files[at] = tempfile.TemporaryFile(prefix="callslip-sort-")  # noqa: SIM115
            self._files[at].write(records[first:last].data)

    def sorted(self, held: int) -> Iterator[np.ndarray]:
        """All records in the order of their keys, at most `held` at once. The files are removed."""
        for number in sorted(self._files):
            with self._files.pop(number) as file:
                count = file.tell() // self._kind.itemsize
                file.seek(0)
                if count <= held:
                    records = np.fromfile(file, self._kind)
                    yield records[np.argsort(records["keys"], kind="stable")]
                elif self._step == 1:
                    yield from self._pieces(file, held)
                else:
                    deeper = _Spool(-(-self._step // FILES))
                    for piece in self._pieces(file, held):
                        deeper.add(piece)
                    yield from deeper.sorted(held)

    def _pieces(self, file: IO[bytes], held: int) -> Iterator[np.ndarray]:
        while len(records := np.fromfile(file, self._kind, held)):
            yield records
