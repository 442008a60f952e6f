"""The tokens a search may write next: the children of trie nodes (on the model's device), or any token."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from callslip.errors import BadSetting
from callslip.identifiers.trie import BLOCK

if TYPE_CHECKING:
    from callslip.identifiers.grown import Growth
    from callslip.identifiers.trie import Trie

SHIFT = BLOCK.bit_length() - 1
LevelMasks = Sequence[np.ndarray]
"""One boolean array per level: which nodes may be visited."""


class Tree(Protocol):
    """The children of nodes. `node` is [queries, beams], with -1 for an empty slot."""

    @property
    def length(self) -> int: ...

    def may_end(self, level: int) -> bool:
        """Whether a token of this level can be END."""

    def expand(self, level: int, node: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All children at `level` of nodes of the previous level, query by query: the flat index of the parent, a key
        that orders candidates of one query by code, and the token."""

    def arrive(self, key: Tensor, index: Tensor) -> Tensor:
        """The nodes of the candidates at `index`, [queries, beams], from the keys of all candidates."""

    def leaf(self, level: int, node: Tensor) -> Tensor:
        """The last-level node of finished beams; -1 if there is no trie."""


@dataclass(frozen=True)
class FreeTree:
    """No trie: every token may follow every prefix, so the search may write codes that no document has."""

    widths: tuple[int, ...]
    with_end: bool = False

    @property
    def length(self) -> int:
        return len(self.widths)

    def may_end(self, level: int) -> bool:
        return self.with_end

    def expand(self, level: int, node: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A node is the rank of its prefix among the query's beams, which suffices to order children by code."""
        lowest = -1 if self.with_end else 0
        tokens = torch.arange(lowest, self.widths[level], device=node.device)
        places = (node.reshape(-1) >= 0).nonzero().view(-1)
        owner = places.repeat_interleave(len(tokens))
        token = tokens.repeat(len(places))
        return owner, node.reshape(-1)[owner] * len(tokens) + token - lowest, token

    def arrive(self, key: Tensor, index: Tensor) -> Tensor:
        return key[index].argsort(dim=1).argsort(dim=1)

    def leaf(self, level: int, node: Tensor) -> Tensor:
        return torch.full_like(node, -1)


class DeviceTrie:
    """A trie's arrays as tensors; on a CPU they share memory with the arrays, even memory-mapped ones."""

    def __init__(self, trie: Trie, device: torch.device) -> None:
        self.length = trie.length
        self.roots = len(trie.tokens[0])
        self.first = torch.arange(self.roots, device=device)
        self.root = torch.zeros_like(self.first)
        self.tokens = [_tensor(array, device) for array in trie.tokens]
        self.bases = [_tensor(offsets.bases, device) for offsets in trie.below]
        self.rest = [_tensor(offsets.rest, device) for offsets in trie.below]
        # END is -1, which a level of unsigned bytes cannot contain.
        self.ends = [bool((array == -1).any()) if array.dtype != np.uint8 else False for array in trie.tokens]

    def bounds(self, level: int, node: Tensor) -> tuple[Tensor, Tensor]:
        """Start and stop of the ranges of the nodes' children."""
        return self.offsets(level, node), self.offsets(level, node + 1)

    def offsets(self, level: int, node: Tensor) -> Tensor:
        return self.bases[level][node >> SHIFT] + self.rest[level][node]

    def token(self, level: int, node: Tensor) -> Tensor:
        """The tokens that lead to nodes of a level."""
        return self.tokens[level][node].long()


class GrownDeviceTrie:
    """The same for a trie with later codes beside it: see `callslip.identifiers.grown`."""

    def __init__(self, trie: DeviceTrie, growth: Growth, device: torch.device) -> None:
        self.length, self._trie = trie.length, trie
        self._numbers = [_tensor(nodes.numbers, device) for nodes in growth.levels]
        self._tokens = [_tensor(nodes.tokens, device).long() for nodes in growth.levels]
        self._below = [_tensor(parents, device) for parents in growth.below]
        self.roots = trie.roots + len(self._numbers[0])
        self.first = torch.arange(self.roots, device=device)
        self.root = torch.zeros_like(self.first)
        self.ends = [end or nodes.may_end for end, nodes in zip(trie.ends, growth.levels, strict=True)]

    def bounds(self, level: int, node: Tensor) -> tuple[Tensor, Tensor]:
        return self._offsets(level, node), self._offsets(level, node + 1)

    def _offsets(self, level: int, node: Tensor) -> Tensor:
        old = self._trie.offsets(level, node - torch.searchsorted(self._numbers[level], node))
        return old + torch.searchsorted(self._below[level], node)

    def token(self, level: int, node: Tensor) -> Tensor:
        numbers, old = self._numbers[level], self._trie.tokens[level]
        if not len(numbers):
            return old[node].long()
        at = torch.searchsorted(numbers, node)
        new = at.clamp(max=len(numbers) - 1)
        own = self._tokens[level][new]
        if not len(old):
            return own
        return torch.where(numbers[new] == node, own, old[(node - at).clamp(max=len(old) - 1)].long())


class TrieTree:
    """Children in a trie, restricted by one mask for all queries, or one mask per query."""

    def __init__(
        self,
        trie: DeviceTrie | GrownDeviceTrie,
        live: Sequence[LevelMasks | None] | None,
        queries: int,
        device: torch.device,
    ) -> None:
        self.trie, self.queries = trie, queries
        self.masks: list[list[Tensor] | None] = [
            None if levels is None else [torch.from_numpy(np.asarray(mask)).to(device) for mask in levels]
            for levels in live or []
        ]

    @property
    def length(self) -> int:
        return self.trie.length

    def one_mask(self) -> LevelMasks | None:
        """The mask of a search for one query on a CPU."""
        mask = self.masks[0] if self.masks else None
        return None if mask is None else [level.numpy() for level in mask]

    def may_end(self, level: int) -> bool:
        return self.trie.ends[level]

    def expand(self, level: int, node: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = node.reshape(-1)
        if level == 0:
            child, owner = self.trie.first, self.trie.root
            if self.queries > 1:
                child = child.repeat(self.queries)
                owner = torch.arange(self.queries, device=flat.device).repeat_interleave(self.trie.roots)
        else:
            first, last = self.trie.bounds(level - 1, flat.clamp(min=0) if self.queries > 1 else flat)
            counts = last - first
            if self.queries > 1:  # a single query has no empty slots
                counts.masked_fill_(flat < 0, 0)
            ends = counts.cumsum(0)
            owner = torch.repeat_interleave(counts)
            child = torch.arange(len(owner), device=flat.device) + (first + counts - ends)[owner]
        if self.masks:
            kept = self._kept(level, child, owner, node.shape[1])
            owner, child = owner[kept], child[kept]
        return owner, child, self.trie.token(level, child)

    def _kept(self, level: int, child: Tensor, owner: Tensor, places: int) -> Tensor:
        if len(self.masks) == 1:
            mask = self.masks[0]
            return torch.ones_like(child, dtype=torch.bool) if mask is None else mask[level][child]
        kept, query = torch.ones_like(child, dtype=torch.bool), owner // places
        for number, mask in enumerate(self.masks):
            if mask is not None:
                mine = (query == number).nonzero().view(-1)
                kept[mine] = mask[level][child[mine]]
        return kept

    def arrive(self, key: Tensor, index: Tensor) -> Tensor:
        return key[index]

    def leaf(self, level: int, node: Tensor) -> Tensor:
        """Follow the chain of END nodes down to the last level."""
        for above in range(level, self.length - 1):
            down = self.trie.bounds(above, node.clamp(min=0))[0]
            node = torch.where(node < 0, node, down)
        return node


_ON_DEVICE: WeakKeyDictionary[Trie, dict[torch.device, DeviceTrie | GrownDeviceTrie]] = WeakKeyDictionary()


def tree_of(
    trie: Trie | FreeTree, device: torch.device, live: LevelMasks | Sequence[LevelMasks | None] | None, queries: int
) -> Tree:
    """The tree that a search traverses. A trie's tensors are created once per device."""
    if isinstance(trie, FreeTree):
        if live is not None:
            raise BadSetting("a mask needs a trie", "Leave out `live`.")
        return trie
    masks = live
    if live is not None and len(live) and isinstance(live[0], np.ndarray):
        masks = [cast(LevelMasks, live)]  # the result of Trie.live: one mask for all queries
    if masks is not None and len(masks) not in (1, queries):
        raise BadSetting(f"{len(masks)} masks for {queries} queries", "Give one for all, or one (or None) for each.")
    return TrieTree(_on_device(trie, device), cast(Sequence[LevelMasks | None] | None, masks), queries, device)


def _on_device(trie: Trie, device: torch.device) -> DeviceTrie | GrownDeviceTrie:
    kept = _ON_DEVICE.setdefault(trie, {})
    if device not in kept:
        grown = trie.growth
        if grown is None:
            kept[device] = DeviceTrie(trie, device)
        else:
            kept[device] = GrownDeviceTrie(cast(DeviceTrie, _on_device(grown.trie, device)), grown, device)
    return kept[device]


def check_fit(model: object, tree: Tree) -> None:
    """Reject a tree that does not match the model's `length` and `with_end`, if the model has them."""
    length = getattr(model, "length", tree.length)
    if length != tree.length:
        raise BadSetting(f"the codes have {tree.length} levels, and the model writes {length}")
    if not getattr(model, "with_end", True) and any(tree.may_end(level) for level in range(tree.length)):
        raise BadSetting("some codes are short, and the model has no END output", "Create it with with_end=True.")


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # the tensor is never written to
        return torch.from_numpy(array).to(device)
