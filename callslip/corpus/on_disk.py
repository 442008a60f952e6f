"""Training texts on disk: read one by one when they are asked for, and never all held in memory.

A table is a file without a name, mapped into memory: the kernel keeps the pages that are in use, and removes the file
with the last reference to it, however the process ends. What stays in memory is eight bytes or so for each entry.
"""

from __future__ import annotations

import hashlib
import mmap
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import BinaryIO, overload

import numpy as np

from callslip.corpus.documents import Pair


class TextTable(Sequence[str]):
    """Texts by number, in a file of UTF-8; `take` gives a view of some of them, in any order."""

    def __init__(self, data: mmap.mmap | bytes, bounds: np.ndarray, chosen: np.ndarray | None = None) -> None:
        self._data, self._bounds, self._chosen = data, bounds, chosen

    @classmethod
    def of(cls, texts: Iterable[str]) -> TextTable:
        """Write texts to a file."""
        with tempfile.TemporaryFile(prefix="callslip-texts-") as file:
            bounds = array("q", [0])
            for text in texts:
                bounds.append(bounds[-1] + file.write(text.encode("utf-8", "surrogatepass")))
            return cls(_mapped(file), np.frombuffer(bounds, np.int64))

    def take(self, numbers: np.ndarray) -> TextTable:
        """The texts with these numbers, which may repeat."""
        chosen = numbers if self._chosen is None else self._chosen[numbers]
        return TextTable(self._data, self._bounds, chosen)

    def distinct(self) -> tuple[TextTable, np.ndarray]:
        """The distinct texts in order of first appearance, and the number of each text among them."""
        first, number = first_places(text.encode("utf-8", "surrogatepass") for text in self)
        return self.take(first), number

    def __len__(self) -> int:
        return len(self._bounds) - 1 if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        place = range(len(self))[number]
        place = place if self._chosen is None else int(self._chosen[place])
        return self._data[self._bounds[place] : self._bounds[place + 1]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))


class PairTable(Sequence[Pair]):
    """Training pairs whose texts are on disk. Reads, and compares, as a list of them."""

    def __init__(self, texts: TextTable, rows: np.ndarray, doc_ids: Sequence[str]) -> None:
        """Pair i is text i and the document of row `rows[i]`, whose id is `doc_ids[rows[i]]`."""
        self.texts, self.rows, self._doc_ids = texts, rows, doc_ids

    @classmethod
    def of(cls, pairs: Iterable[Pair], doc_ids: Sequence[str], more: Iterable[Pair] = ()) -> PairTable:
        """Write pairs, and `more` after them."""
        row_of = {doc_id: row for row, doc_id in enumerate(doc_ids)}
        rows = array("q")

        def texts() -> Iterator[str]:
            for pair in chain(pairs, more):
                rows.append(row_of[pair.doc_id])
                yield pair.query

        table = TextTable.of(texts())
        return cls(table, np.array(rows, np.int64), doc_ids)

    def repeated(self, first: int, times: int) -> PairTable:
        """The pairs, with those from number `first` on repeated; their texts are stored once."""
        number = np.concatenate([np.arange(first), np.tile(np.arange(first, len(self)), times)])
        return self.some(number)

    def some(self, numbers: np.ndarray) -> PairTable:
        """The pairs with these numbers."""
        return PairTable(self.texts.take(numbers), self.rows[numbers], self._doc_ids)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, number: int) -> Pair: ...
    @overload
    def __getitem__(self, number: slice) -> list[Pair]: ...
    def __getitem__(self, number: int | slice) -> Pair | list[Pair]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        return Pair(self.texts[number], self._doc_ids[self.rows[number]])

    def __iter__(self) -> Iterator[Pair]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return _alike(self, other)

    __hash__ = None  # type: ignore[assignment]


class TokenTable(Sequence[list[int]]):
    """Token ids of texts, by number. Reads, and compares, as a list of lists."""

    def __init__(self, data: mmap.mmap | bytes, bounds: np.ndarray) -> None:
        self._ids, self._bounds = np.frombuffer(data, np.int32), bounds

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> TokenTable:
        """Write rows of ids to a file."""
        with tempfile.TemporaryFile(prefix="callslip-tokens-") as file:
            bounds = array("q", [0])
            for row in rows:
                file.write(np.asarray(row, np.int32).tobytes())
                bounds.append(bounds[-1] + len(row))
            return cls(_mapped(file), np.frombuffer(bounds, np.int64))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, number: int) -> list[int]: ...
    @overload
    def __getitem__(self, number: slice) -> list[list[int]]: ...
    def __getitem__(self, number: int | slice) -> list[int] | list[list[int]]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        place = range(len(self))[number]
        return self._ids[self._bounds[place] : self._bounds[place + 1]].tolist()

    def __iter__(self) -> Iterator[list[int]]:
        return (self._ids[start:stop].tolist() for start, stop in pairwise(self._bounds.tolist()))

    def __eq__(self, other: object) -> bool:
        return _alike(self, other)

    __hash__ = None  # type: ignore[assignment]


def first_places(contents: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Where each distinct content occurs first, in this order, and the number of each content among these. Contents are
    compared by hashes of 16 bytes, which are all that is held of them."""
    hashes = bytearray()
    for content in contents:
        hashes += hashlib.blake2b(content, digest_size=16).digest()
    pairs = np.frombuffer(hashes, dtype=[("high", "<u8"), ("low", "<u8")])
    _, first, number = np.unique(pairs, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[number]


def _alike(table: Sequence[object], other: object) -> bool:
    """Whether a table holds what another sequence holds, as two lists are compared."""
    if not isinstance(other, Sequence) or isinstance(other, str):
        return NotImplemented
    return len(table) == len(other) and all(one == another for one, another in zip(table, other))


def _mapped(file: BinaryIO) -> mmap.mmap | bytes:
    """A file's contents as a map that outlives the open file."""
    file.flush()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""
