"""A sorted table that grows without being sorted again: later codes lie beside its trie, numbered as in one trie.

Where each later code belongs in the table is found by one walk down the trie. From these places follows, for every
level, which nodes only later codes have, and what their numbers would be in the trie of all codes. The number of any
other node is shifted by those before it. So tokens and offsets of the whole trie can be read at any node, although
nobody has written them down, and a search finds what it would find in a table that was built anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from callslip.identifiers.table import END, sort_keys
from callslip.identifiers.trie import Trie

LARGE = 16_384
"""Later codes above which a table is merged. What the next search after an addition costs grows with their number."""


class Offset(Protocol):
    """Offsets of a trie, as they are read."""

    def __getitem__(self, index: np.ndarray | int) -> np.ndarray: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Later:
    """Codes that were added to a table, in the order of the codes, [n]; and where they belong in its trie."""

    codes: np.ndarray
    """[n, L]."""
    order: np.ndarray
    """The place of each one in the order of the additions."""
    before: np.ndarray
    """For each level, the number of the trie's nodes before the code's prefix, [n, L]."""
    known: np.ndarray
    """For each level, whether the trie has the code's prefix, [n, L]."""
    documents: np.ndarray
    """The number of the table's documents before the code, those with the same code included."""

    @classmethod
    def none(cls, length: int) -> Later:
        empty = np.zeros((0, length), np.int64)
        return cls(empty.astype(np.int32), np.zeros(0, np.int64), empty, empty.astype(bool), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.codes)

    def extended(self, trie: Trie, codes: np.ndarray) -> Later:
        """With further codes [m, L], which come after those with the same code."""
        order = np.lexsort(codes.T[::-1])
        codes = codes[order]
        before, known, documents = places(trie, codes)
        at = np.searchsorted(sort_keys(self.codes), sort_keys(codes), side="right")
        mine = (self.codes, self.order, self.before, self.known, self.documents)
        theirs = (codes, order + len(self), before, known, documents)
        return Later(*(np.insert(a, at, b, axis=0) for a, b in zip(mine, theirs, strict=True)))

    @property
    def positions(self) -> np.ndarray:
        """Their sorted positions in the table of all codes."""
        return self.documents + np.arange(len(self))


def places(trie: Trie, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where codes [n, L] belong in a trie: `before`, `known` and `documents` of `Later`."""
    before, known = np.zeros(codes.shape, np.int64), np.zeros(codes.shape, bool)
    first, last = np.zeros(len(codes), np.int64), np.full(len(codes), len(trie.tokens[0]))
    for level in range(codes.shape[1]):
        tokens, wanted = trie.tokens[level], codes[:, level].astype(np.int64)
        low, high = first, last
        while (open_ := low < high).any():  # bisection, all codes at once
            middle = (low + high) >> 1
            right = open_.copy()
            right[open_] = tokens[middle[open_]].astype(np.int64) < wanted[open_]
            low, high = np.where(right, middle + 1, low), np.where(open_ & ~right, middle, high)
        there = low < last
        there[there] = tokens[low[there]].astype(np.int64) == wanted[there]
        before[:, level], known[:, level] = low, there
        # Without such a node, the range is empty: it begins with the children of the node that follows.
        first, last = trie.below[level][low], trie.below[level][low + there]
    return before, known, last


def grown_trie(trie: Trie, later: Later) -> Trie:
    """The trie of all codes, whose arrays are computed where they are read."""
    levels: list[Nodes] = []
    start = np.arange(len(later)) == 0
    above = np.zeros(len(later), np.int64)
    for level in range(trie.length):
        column = later.codes[:, level]
        start[1:] |= column[1:] != column[:-1]
        own = start & ~later.known[:, level]
        numbers = later.before[:, level] + np.cumsum(own) - ~later.known[:, level]
        levels.append(Nodes(numbers[own], column[own], above[own]))
        above = numbers
    below = [*(one.parents for one in levels[1:]), above]
    tokens = [GrownTokens(old, nodes) for old, nodes in zip(trie.tokens, levels, strict=True)]
    both = zip(trie.below, levels, below, strict=True)
    offsets = [GrownOffsets(old, nodes, parents) for old, nodes, parents in both]
    return Trie(cast(Any, tokens), cast(Any, offsets), Growth(trie, levels, below))


@dataclass(frozen=True)
class Nodes:
    """The nodes of a level that only later codes have: their numbers among all nodes, ascending, their tokens, and the
    numbers of their parents."""

    numbers: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray

    @property
    def may_end(self) -> bool:
        return bool((self.tokens == END).any())


@dataclass(frozen=True)
class Growth:
    """What a grown trie is computed from."""

    trie: Trie
    levels: list[Nodes]
    below: list[np.ndarray]
    """For each level, the parents of the next level's later nodes, or of the later documents; ascending."""


class GrownTokens:
    """Tokens of a level, read like an array."""

    def __init__(self, old: np.ndarray, nodes: Nodes) -> None:
        self._old, self._nodes = old, nodes
        self.dtype = np.dtype(np.int32)

    def __len__(self) -> int:
        return len(self._old) + len(self._nodes.numbers)

    @property
    def nbytes(self) -> int:
        return self._old.nbytes + self._nodes.tokens.nbytes

    def __getitem__(self, index: Any) -> np.ndarray:
        node = np.arange(len(self))[index] if isinstance(index, slice) else np.asarray(index)
        new = self._nodes
        if not len(new.numbers):
            return self._old[node].astype(np.int32)
        at = np.searchsorted(new.numbers, node)
        own = new.numbers[np.minimum(at, len(new.numbers) - 1)] == node
        if not len(self._old):
            return new.tokens[np.minimum(at, len(new.numbers) - 1)].astype(np.int32)
        old = self._old[np.minimum(node - at, len(self._old) - 1)].astype(np.int32)
        return np.where(own, new.tokens[np.minimum(at, len(new.numbers) - 1)], old)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype)

    def astype(self, dtype: Any) -> np.ndarray:
        return self[:].astype(dtype)

    def max(self, **options: Any) -> Any:
        return self[:].max(**options)

    def __lt__(self, other: Any) -> np.ndarray:
        return self[:] < other

    def __eq__(self, other: Any) -> Any:
        return self[:] == other

    __hash__ = None  # type: ignore[assignment]


class GrownOffsets:
    """Offsets of a level, read like `Offsets`."""

    def __init__(self, old: Offset, nodes: Nodes, below: np.ndarray) -> None:
        self._old, self._nodes, self._below = old, nodes, below

    def __len__(self) -> int:
        return len(self._old) + len(self._nodes.numbers)

    @property
    def nbytes(self) -> int:
        return cast(Any, self._old).nbytes + self._nodes.parents.nbytes

    def __getitem__(self, index: np.ndarray | int) -> np.ndarray:
        node = np.asarray(index)
        old = node - np.searchsorted(self._nodes.numbers, node)
        return self._old[old] + np.searchsorted(self._below, node)

    def all(self) -> np.ndarray:
        return self[np.arange(len(self))]

    def owner(self, values: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.all(), values, side="right") - 1
