"""The trie of a sorted table, as flat arrays a level: nodes are runs, children are ranges.

A short code goes on as a chain of END nodes down to the last level, so the nodes of every level cover all
documents. The first END node is where the code stops; a search may stop there or follow the chain, whose
nodes have one child each and the same documents.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from callslip.errors import BadSetting
from callslip.identifiers.table import END


@dataclass(frozen=True, eq=False)
class Trie:
    """Nodes of level l are numbered 0..node_counts[l]-1 in sorted order. The root is node 0 of level -1."""

    tokens: list[np.ndarray]
    """tokens[l][n]: the token that leads to node n of level l (int32)."""
    documents: list[np.ndarray]
    """documents[l][n] : documents[l][n + 1] are the sorted positions below node n (int64, one entry more than
    nodes)."""
    children: list[np.ndarray]
    """children[l][n] : children[l][n + 1] are its children, nodes of level l + 1; all empty at the last
    level."""

    @classmethod
    def from_sorted(cls, codes: np.ndarray) -> Trie:
        """Build from codes in lexicographic order, [N, L]."""
        count, length = codes.shape
        tokens, documents = [], []
        new = np.zeros(count, bool)
        new[:1] = True
        for level in range(length):
            column = np.ascontiguousarray(codes[:, level])
            new[1:] |= column[1:] != column[:-1]  # a node starts where this token or an earlier one changes
            starts = np.flatnonzero(new)
            tokens.append(column[starts].astype(np.int32, copy=False))
            documents.append(np.append(starts, count).astype(np.int64))
        children = [np.searchsorted(below, above) for above, below in itertools.pairwise(documents)]
        children.append(np.zeros(len(documents[-1]), np.int64))
        for arrays in (tokens, documents, children):
            for array in arrays:
                array.setflags(write=False)
        return cls(tokens, documents, children)

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def node_counts(self) -> tuple[int, ...]:
        """Nodes of each level."""
        return tuple(map(len, self.tokens))

    def children_of(self, level: int, node: int) -> slice:
        """The children of a node, as a range of nodes of the next level; level -1 is the root."""
        if level < 0:
            return slice(0, len(self.tokens[0]))
        return slice(int(self.children[level][node]), int(self.children[level][node + 1]))

    def documents_of(self, level: int, node: int) -> slice:
        """The sorted positions of the documents below a node."""
        if level < 0:
            return slice(0, int(self.documents[0][-1]))
        return slice(int(self.documents[level][node]), int(self.documents[level][node + 1]))

    def child(self, level: int, node: int, token: int) -> int:
        """The child of a node that `token` leads to, or -1."""
        inside = self.children_of(level, node)
        if inside.start == inside.stop:
            return -1
        tokens = self.tokens[level + 1]
        found = inside.start + int(np.searchsorted(tokens[inside], token))
        return found if found < inside.stop and tokens[found] == token else -1

    def node_of(self, prefix: Sequence[int]) -> int:
        """The node of a prefix at level len(prefix) - 1, or -1 if no code begins so. The empty prefix is the
        root, 0."""
        if len(prefix) > self.length:
            raise BadSetting(f"a prefix of {len(prefix)} tokens in a trie of {self.length} levels")
        node = 0
        for level, token in enumerate(prefix):
            node = self.child(level - 1, node, token)
            if node < 0:
                return -1
        return node

    def prefix_of(self, level: int, node: int) -> tuple[int, ...]:
        """The tokens on the way from the root to a node."""
        prefix = []
        while level >= 0:
            prefix.append(int(self.tokens[level][node]))
            level -= 1
            if level >= 0:
                node = int(np.searchsorted(self.children[level], node, side="right")) - 1
        return tuple(reversed(prefix))

    def parents(self, level: int) -> np.ndarray:
        """The parent node, at level - 1, of every node of a level; all 0 (the root) at level 0."""
        if level == 0:
            return np.zeros(len(self.tokens[0]), np.int64)
        above = self.children[level - 1]
        return np.repeat(np.arange(len(above) - 1), np.diff(above))

    def nodes_of_documents(self, level: int) -> np.ndarray:
        """The node of a level that each sorted position lies under."""
        return np.repeat(np.arange(len(self.tokens[level])), np.diff(self.documents[level]))

    def stops(self, level: int) -> np.ndarray:
        """Which nodes of a level are END: the code of their documents stopped before this level."""
        return self.tokens[level] == END

    def live(self, mask: np.ndarray) -> list[np.ndarray]:
        """For each level, which nodes have at least one document that `mask` (over sorted positions) lets
        through."""
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != (int(self.documents[0][-1]),):
            raise BadSetting(
                f"a mask is bool over {int(self.documents[0][-1])} documents, not {mask.dtype} {mask.shape}"
            )
        before = np.concatenate(([0], np.cumsum(mask)))
        return [before[bounds[1:]] > before[bounds[:-1]] for bounds in self.documents]
