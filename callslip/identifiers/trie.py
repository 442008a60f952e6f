"""The trie of a sorted table as flat arrays per level: nodes are runs of documents, children are ranges of nodes.

A short code continues as a chain of END nodes down to the last level, so the nodes of every level cover all
documents. The code stops at its first END node; a search may stop there or follow the chain, whose nodes have one
child each and the same documents.

The arrays are small and flat, so that they can be memory-mapped: ten million codes of four levels take about four
bytes per code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from callslip.errors import BadSetting, IndexCorrupt
from callslip.identifiers.table import END
from callslip.runtime import durable

if TYPE_CHECKING:
    from callslip.identifiers.grown import Growth

SPARSE = 16
"""A mask that keeps fewer than one in this many documents is processed document by document."""


BLOCK = 64
_SHIFT = 6


class Offsets:
    """Compressed offsets: a non-decreasing sequence, such as where each node's children begin, in one or two bytes
    each.

    Full 8-byte offsets would take most of an index's memory. Neighbouring offsets are close together, so every 64th
    is stored in full, and the others as differences from it. `offsets[i]` for an index or an array of them, int64;
    `i` runs from 0 to n, since n ranges have n + 1 bounds."""

    def __init__(self, bases: np.ndarray, rest: np.ndarray) -> None:
        self.bases, self.rest = bases, rest

    @classmethod
    def pack(cls, values: np.ndarray) -> Offsets:
        """Compress numbers, which must be non-decreasing."""
        values = np.asarray(values, np.int64)
        bases = values[::BLOCK].copy()
        rest = values - np.repeat(bases, BLOCK)[: len(values)]
        highest = int(rest.max()) if len(rest) else 0
        kind = next(k for k in (np.uint8, np.int16, np.int32, np.int64) if highest <= np.iinfo(k).max)
        rest = rest.astype(kind)
        bases.setflags(write=False)
        rest.setflags(write=False)
        return cls(bases, rest)

    def __len__(self) -> int:
        return len(self.rest)

    def __getitem__(self, index: np.ndarray | int) -> np.ndarray:
        where = np.asarray(index)
        return self.bases[where >> _SHIFT] + self.rest[where]

    def all(self) -> np.ndarray:
        """All numbers, uncompressed."""
        return np.repeat(self.bases, BLOCK)[: len(self.rest)] + self.rest

    def owner(self, values: np.ndarray) -> np.ndarray:
        """Index of the range that contains each value: the last i with offsets[i] <= value. No range may be empty."""
        block = np.searchsorted(self.bases, values, side="right") - 1
        low = block << _SHIFT
        high = np.minimum(low + BLOCK, len(self.rest))
        wanted = values - self.bases[block]
        for _ in range(_SHIFT):  # binary search in all blocks at once
            middle = (low + high) >> 1
            right = self.rest[np.minimum(middle, len(self.rest) - 1)] <= wanted
            right &= middle < high
            low, high = np.where(right, middle, low), np.where(right, high, middle)
        return low

    @property
    def nbytes(self) -> int:
        return self.bases.nbytes + self.rest.nbytes


class Trie:
    """Nodes of level l are numbered 0..node_counts[l]-1 in sorted order. The root is node 0 of level -1."""

    tokens: list[np.ndarray]
    """tokens[l][n]: the token that leads to node n of level l, in the smallest sufficient integer type."""
    below: list[Offsets]
    """below[l][n] : below[l][n + 1] is the range of the children of node n, which are nodes of level l + 1; at the last
    level, the range of the sorted positions of its documents."""

    def __init__(self, tokens: list[np.ndarray], below: list[Offsets], growth: Growth | None = None) -> None:
        """`growth` is what a grown trie (`callslip.identifiers.grown`) is computed from."""
        self.tokens, self.below, self.growth = tokens, below, growth

    @classmethod
    def from_sorted(cls, codes: np.ndarray) -> Trie:
        """Build from codes in lexicographic order, [N, L]."""
        count, length = codes.shape
        tokens: list[np.ndarray] = []
        below: list[Offsets] = []
        new = np.zeros(count, bool)
        new[:1] = True
        above: np.ndarray | None = None
        for level in range(length):
            column = np.ascontiguousarray(codes[:, level])
            new[1:] |= column[1:] != column[:-1]  # a node starts where this token or an earlier one changes
            starts = np.append(np.flatnonzero(new), count)
            if above is not None:
                below.append(Offsets.pack(np.searchsorted(starts, above)))
            tokens.append(_smallest(column[starts[:-1]]))
            above = starts
        assert above is not None
        below.append(Offsets.pack(above))
        return cls(tokens, below)

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def node_counts(self) -> tuple[int, ...]:
        """Number of nodes of each level."""
        return tuple(map(len, self.tokens))

    @property
    def count(self) -> int:
        """Number of documents."""
        return int(self.below[-1][len(self.tokens[-1])])

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(array.nbytes for array in self.tokens) + sum(offsets.nbytes for offsets in self.below)

    def documents(self, level: int) -> np.ndarray:
        """Start of the documents of each node of a level in sorted order, and N at the end."""
        bounds = self.below[level].all()
        for deeper in self.below[level + 1 :]:
            bounds = deeper[bounds]
        return bounds

    def children_of(self, level: int, node: int) -> slice:
        """The children of a node, as a range of nodes of the next level; level -1 is the root."""
        if level < 0:
            return slice(0, len(self.tokens[0]))
        if level + 1 == self.length:
            return slice(0, 0)
        return slice(int(self.below[level][node]), int(self.below[level][node + 1]))

    def documents_of(self, level: int, node: int) -> slice:
        """The sorted positions of the documents below a node."""
        if level < 0:
            return slice(0, self.count)
        bounds = np.array([node, node + 1])
        for deeper in self.below[level:]:
            bounds = deeper[bounds]
        return slice(int(bounds[0]), int(bounds[1]))

    def child(self, level: int, node: int, token: int) -> int:
        """The child of a node that `token` leads to, or -1."""
        inside = self.children_of(level, node)
        if inside.start == inside.stop:
            return -1
        tokens = self.tokens[level + 1]
        found = inside.start + int(np.searchsorted(tokens[inside], token))
        return found if found < inside.stop and tokens[found] == token else -1

    def node_of(self, prefix: Sequence[int]) -> int:
        """The node of a prefix at level len(prefix) - 1, or -1 if no code has this prefix. The empty prefix is the
        root, 0."""
        if len(prefix) > self.length:
            raise BadSetting(f"a prefix of {len(prefix)} tokens is too long for a trie of {self.length} levels")
        node = 0
        for level, token in enumerate(prefix):
            node = self.child(level - 1, node, token)
            if node < 0:
                return -1
        return node

    def leaves_of(self, codes: np.ndarray) -> np.ndarray:
        """The node of the last level of each code [n, L], or -1 where the code does not exist."""
        if codes.ndim != 2 or codes.shape[1] != self.length:
            raise BadSetting(f"codes of shape {codes.shape} do not fit a trie of {self.length} levels")
        return np.array([self.node_of(code) for code in codes.tolist()], np.int64).reshape(len(codes))

    def prefix_of(self, level: int, node: int) -> tuple[int, ...]:
        """The tokens on the path from the root to a node."""
        prefix = []
        while level >= 0:
            prefix.append(int(self.tokens[level][node]))
            level -= 1
            if level >= 0:
                node = int(self.below[level].owner(np.array([node]))[0])
        return tuple(reversed(prefix))

    def codes_of(self, leaves: np.ndarray) -> np.ndarray:
        """The codes of nodes of the last level, int32 [n, L]."""
        nodes = np.asarray(leaves)
        columns = []
        for level in reversed(range(self.length)):
            columns.append(self.tokens[level][nodes].astype(np.int32))
            if level:
                nodes = self.below[level - 1].owner(nodes)
        return np.stack(columns[::-1], axis=1)

    def parents(self, level: int) -> np.ndarray:
        """The parent node, at level - 1, of every node of a level; all 0 (the root) at level 0."""
        if level == 0:
            return np.zeros(len(self.tokens[0]), np.int64)
        above = self.below[level - 1].all()
        return np.repeat(np.arange(len(above) - 1), np.diff(above))

    def nodes_of_documents(self, level: int) -> np.ndarray:
        """The node of a level that each sorted position lies under."""
        return np.repeat(np.arange(len(self.tokens[level])), np.diff(self.documents(level)))

    def stops(self, level: int) -> np.ndarray:
        """Which nodes of a level are END: the code of their documents stopped before this level."""
        return self.tokens[level] == END

    def live(self, mask: np.ndarray) -> list[np.ndarray]:
        """For each level, which nodes have at least one document in `mask` (over sorted positions)."""
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != (self.count,):
            raise BadSetting(f"a mask must be bool over {self.count} documents, not {mask.dtype} {mask.shape}")
        nodes = np.flatnonzero(mask)
        sparse = len(nodes) * SPARSE < len(mask)
        levels: list[np.ndarray] = []
        alive = mask
        for tokens, offsets in zip(reversed(self.tokens), reversed(self.below), strict=True):
            if sparse:
                nodes = np.unique(offsets.owner(nodes))
                alive = np.zeros(len(tokens), bool)
                alive[nodes] = True
            elif len(tokens):
                alive = np.logical_or.reduceat(alive, offsets.all()[:-1])
            levels.append(alive)
        return levels[::-1]

    # Files.

    def save(self, folder: Path) -> None:
        """Write the arrays as .npy files."""
        for level, (tokens, offsets) in enumerate(zip(self.tokens, self.below, strict=True)):
            arrays = {"tokens": tokens, "bases": offsets.bases, "rest": offsets.rest}
            for name, array in arrays.items():
                durable.replace(folder / f"trie-{level}-{name}.npy", durable.array(array))

    @classmethod
    def load(cls, folder: Path, length: int) -> Trie:
        """Memory-map the files of `save`; nothing is read until a search needs it."""
        tokens, below = [], []
        for level in range(length):
            path = folder / f"trie-{level}-tokens.npy"
            try:
                parts = [
                    # asarray: the same memory map without np.memmap, whose indexing is slower
                    np.asarray(np.load(path := folder / f"trie-{level}-{name}.npy", mmap_mode="r", allow_pickle=False))
                    for name in ("tokens", "bases", "rest")
                ]
            except (ValueError, OSError, EOFError) as error:
                raise IndexCorrupt(path, f"the trie cannot be read ({error})") from None
            tokens.append(parts[0])
            below.append(Offsets(parts[1], parts[2]))
        return cls(tokens, below)


def _smallest(tokens: np.ndarray) -> np.ndarray:
    """The tokens in the smallest integer type that torch can index with; signed, because of END."""
    lowest, highest = (int(tokens.min()), int(tokens.max())) if len(tokens) else (0, 0)
    for kind in (np.uint8, np.int16):
        if np.iinfo(kind).min <= lowest and highest <= np.iinfo(kind).max:
            tokens = tokens.astype(kind)
            break
    tokens.setflags(write=False)
    return tokens
