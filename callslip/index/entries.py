"""Entries: the codes under which documents are found. A document has one for its text, and may have more for passages.

Entries are kept in the order of their tree tokens, so that the documents of a prefix are a slice. A query scores all
prefixes that exist, opens the best ones, and reads the rest of the codes there. What was added since the table was
written lies in further layers, each sorted in itself; all are searched as one table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np

from callslip.errors import BadSetting
from callslip.identifiers.external import sorted_by_key
from callslip.identifiers.tied import WIDTH, token_sums
from callslip.runtime.columns import Column

CODES, SCALES, OWNERS = "entries.npy", "scales.npy", "owners.npy"
TEXTS = "texts.npy"
TREE = 2
"""Most tokens of a prefix."""
SMALL, LARGE = 512, 65_536
"""Entries that a layer takes before another one is begun, and that layers are merged up to."""


Block = tuple[np.ndarray, np.ndarray, bool]
"""Codes, their rows, and whether they are those of whole texts rather than of passages."""


class Layer:
    """A sorted table: codes uint8 [E, L], scales float16 [E], the row of the document that each belongs to, int32 [E],
    and whether it is the entry of the document's text."""

    def __init__(
        self, codes: np.ndarray, scales: np.ndarray, owners: np.ndarray, texts: np.ndarray, keys: np.ndarray
    ) -> None:
        """All sorted by `keys`, the tree tokens of the codes."""
        self.codes, self.scales, self.owners, self.texts, self.keys = codes, scales, owners, texts, keys

    @classmethod
    def sorted(cls, codes: np.ndarray, scales: np.ndarray, owners: np.ndarray, texts: np.ndarray, tree: int) -> Layer:
        keys = prefix_keys(codes, tree)
        order = np.argsort(keys, kind="stable")
        codes = codes[order].astype(np.uint8, copy=False)
        return cls(codes, scales[order].astype(np.float16), owners[order].astype(np.int32), texts[order], keys[order])

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def _by_row(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Entries in the order of their rows, and these rows; None if entry i is that of row i."""
        if len(self) and int(self.owners.max()) + 1 == len(self):
            order = np.full(len(self), -1, np.int32)
            order[self.owners] = np.arange(len(self), dtype=np.int32)
            if (order >= 0).all():  # every row once
                return order, None
        order = np.argsort(self.owners, kind="stable").astype(np.int32)
        return order, self.owners[order]

    def of_rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entries of these rows, and the place in `rows` that each belongs to."""
        order, owners = self._by_row
        if owners is None:
            places = np.flatnonzero(rows < len(order))
            return order[rows[places]], places
        first, last = np.searchsorted(owners, rows), np.searchsorted(owners, rows, side="right")
        return order[_ranges(first, last)], np.repeat(np.arange(len(rows)), last - first)


class Entries:
    """All entries of an index, in layers. An entry's number counts through the layers."""

    def __init__(
        self, codes: np.ndarray, scales: np.ndarray, owners: np.ndarray, tree: int, texts: np.ndarray | None = None
    ) -> None:
        """`texts` marks the entry of each row's whole text; by default it is the first of the row."""
        texts = first_of_each(owners) if texts is None else texts
        self._set([Layer.sorted(codes, scales, owners, texts, tree)], tree)

    @classmethod
    def of_blocks(
        cls, blocks: Iterable[Block], length: int, tree: int, scales: Callable[[np.ndarray], np.ndarray]
    ) -> Entries:
        """Entries of codes of `length` tokens, which are read a block at a time and, if there are many, sorted on disk
        and mapped. `scales` gives their scales."""
        kinds = {
            "keys": (np.uint16, ()),
            "codes": (np.uint8, (length,)),
            "scales": (np.float16, ()),
            "owners": (np.int32, ()),
            "texts": (bool, ()),
        }
        record = np.dtype([(name, *kind) for name, kind in kinds.items()])

        def records() -> Iterator[np.ndarray]:
            for codes, owners, of_texts in blocks:
                found = np.empty(len(codes), record)
                found["keys"], found["codes"] = prefix_keys(codes, tree), codes
                found["scales"], found["owners"], found["texts"] = scales(codes), owners, of_texts
                yield found

        pieces = sorted_by_key(records(), WIDTH**tree)
        first, second = next(pieces, np.zeros(0, record)), next(pieces, None)
        several = [] if second is None else [second]
        columns = {name: Column(kind, bool(several), width) for name, (kind, width) in kinds.items()}
        for some in chain([first], several, pieces):
            for name, column in columns.items():
                column.append(some[name])
        arrays = {name: column.whole() for name, column in columns.items()}
        return cls.__new__(cls)._set([Layer(**arrays)], tree)

    def _set(self, layers: list[Layer], tree: int, sizes: np.ndarray | None = None) -> Self:
        self.layers, self.tree = layers, tree
        self._firsts = np.cumsum([0, *map(len, layers)])
        if sizes is None:
            every = np.arange(WIDTH**tree, dtype=np.uint16)
            ends = np.sum([np.searchsorted(layer.keys, every, side="right") for layer in layers], axis=0)
            sizes = np.diff(ends, prepend=0)
        self._sizes = sizes
        """Number of entries of each prefix."""
        return self

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @property
    def codes(self) -> np.ndarray:
        return self._whole("codes")

    @property
    def owners(self) -> np.ndarray:
        return self._whole("owners")

    def _whole(self, name: str) -> np.ndarray:
        """An array of all layers, in the order of the entries."""
        parts = [getattr(layer, name) for layer in self.layers]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    # Search.

    def open(self, table: np.ndarray, wanted: int | None, mask: np.ndarray | None = None) -> np.ndarray:
        """The entries of the best prefixes, until `wanted` of them are allowed by the mask of rows; None for all."""
        if wanted is None or wanted >= len(self):
            return np.arange(len(self)) if mask is None else np.flatnonzero(mask[self.owners])
        leaves = np.flatnonzero(self._sizes)
        scores = table[0].take(leaves >> (8 * (self.tree - 1)))
        if self.tree > 1:
            scores = scores + table[1].take(leaves & (WIDTH - 1))
        # Prefixes are sorted as far as they are needed: twice as many again and again, until there are enough.
        count = 2 * wanted * len(leaves) // len(self) + 16
        while True:
            best = leaves[_best(scores, count)]
            found, prefix = self._entries_of(best)
            if mask is not None:
                allowed = mask[self._owners(found)]
                found, prefix = found[allowed], prefix[allowed]
            if len(found) >= wanted:
                # The prefix that has the last entry that is wanted is the last one to be opened.
                sizes = np.cumsum(np.bincount(prefix, minlength=len(best)))
                return found[prefix <= np.searchsorted(sizes, wanted)]
            if count >= len(leaves):
                return found
            count *= 4

    def _entries_of(self, prefixes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entries of prefixes, and the place in `prefixes` that each belongs to."""
        entries, places = [], []
        wanted = prefixes.astype(np.uint16)
        for first, layer in zip(self._firsts, self.layers, strict=False):
            low, high = np.searchsorted(layer.keys, wanted), np.searchsorted(layer.keys, wanted, side="right")
            entries.append(_ranges(low, high) + first)
            places.append(np.repeat(np.arange(len(prefixes)), high - low))
        return np.concatenate(entries), np.concatenate(places)

    def _owners(self, entries: np.ndarray) -> np.ndarray:
        return self._taken("owners", entries)

    def _taken(self, name: str, entries: np.ndarray) -> np.ndarray:
        """Of an array of all layers, what belongs to these entries."""
        if len(self.layers) == 1:
            return getattr(self.layers[0], name)[entries]
        first = getattr(self.layers[0], name)
        taken = np.empty((len(entries), *first.shape[1:]), first.dtype)
        number = np.searchsorted(self._firsts, entries, side="right") - 1
        for at, layer in enumerate(self.layers):
            here = number == at
            taken[here] = getattr(layer, name)[entries[here] - self._firsts[at]]
        return taken

    def scores(self, table: np.ndarray, entries: np.ndarray) -> np.ndarray:
        """Inner products of the query with the reconstructions of entries."""
        codes, scales = self._taken("codes", entries), self._taken("scales", entries)
        return token_sums(table, codes) * scales.astype(np.float32)

    def best_of_rows(self, entries: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the entries, sorted, with the best score of each."""
        rows, place = np.unique(self._owners(entries), return_inverse=True)
        best = np.full(len(rows), -np.inf, np.float32)
        np.maximum.at(best, place, scores)
        return rows, best

    def scores_of_rows(self, table: np.ndarray, rows: np.ndarray, texts: bool = False) -> np.ndarray:
        """The best score of each of these rows, or that of its whole text."""
        best = np.full(len(rows), -np.inf, np.float32)
        for first, layer in zip(self._firsts, self.layers, strict=False):
            entries, places = layer.of_rows(rows)
            if texts:
                whole = layer.texts[entries]
                entries, places = entries[whole], places[whole]
            np.maximum.at(best, places, self.scores(table, entries + first))
        return best

    def codes_of(self, rows: np.ndarray) -> np.ndarray:
        """The codes of the texts of these rows, uint8 [n, L]."""
        found = np.zeros((len(rows), self.layers[0].codes.shape[1]), np.uint8)
        for layer in self.layers:
            entries, places = layer.of_rows(rows)
            of_texts = layer.texts[entries]
            found[places[of_texts]] = layer.codes[entries[of_texts]]
        return found

    def codes_of_rows(self, count: int) -> np.ndarray:
        """The codes of the texts of the first `count` rows, uint8 [count, L]."""
        return self.codes_of(np.arange(count))

    def prefixes_of_rows(self, count: int) -> np.ndarray:
        """The tree tokens of the texts of the first `count` rows, int32 [count, tree]."""
        keys = np.zeros(count, np.int32)
        for layer in self.layers:
            keys[layer.owners[layer.texts]] = layer.keys[layer.texts]
        return keys[:, None] >> (8 * np.arange(self.tree - 1, -1, -1, dtype=np.int32)) & (WIDTH - 1)

    # Changes.

    def with_more(self, codes: np.ndarray, scales: np.ndarray, owners: np.ndarray) -> Entries:
        """These entries, and others beside them. The first layer is shared; what was added lately is sorted again."""
        known = np.zeros(len(owners), bool)
        for layer in self.layers:
            known[layer.of_rows(owners)[1]] = True
        new = Layer.sorted(codes, scales, owners, first_of_each(owners) & ~known, self.tree)
        layers = [*self.layers]
        if len(layers) > 1 and len(layers[-1]) <= SMALL:
            new = self._merged([layers.pop(), new])
        layers.append(new)
        # Layers grow in size from the last to the first, so that an entry is sorted again but a few times.
        while len(layers) > 2 and len(layers[-2]) <= len(layers[-1]) and len(layers[-2]) + len(layers[-1]) <= LARGE:
            layers[-2:] = [self._merged(layers[-2:])]
        sizes = self._sizes + np.bincount(prefix_keys(codes, self.tree), minlength=len(self._sizes))
        return Entries.__new__(Entries)._set(layers, self.tree, sizes)

    def _merged(self, layers: list[Layer]) -> Layer:
        names = ("codes", "scales", "owners", "texts")
        codes, scales, owners, texts = (np.concatenate([getattr(one, name) for one in layers]) for name in names)
        return Layer.sorted(codes, scales, owners, texts, self.tree)

    def one_layer(self) -> Entries:
        """The same entries as one sorted table."""
        return self if len(self.layers) == 1 else Entries.__new__(Entries)._set([self._merged(self.layers)], self.tree)

    def kept(self, rows: np.ndarray) -> Entries:
        """The entries of these rows only, which are numbered anew from 0."""
        whole = self.one_layer().layers[0]
        number = np.full(int(whole.owners.max(initial=-1)) + 1, -1, np.int32)
        number[rows] = np.arange(len(rows))
        owners = number[whole.owners]
        stays = owners >= 0
        return Entries(whole.codes[stays], whole.scales[stays], owners[stays], self.tree, whole.texts[stays])

    # Files.

    def save(self, folder: Path) -> None:
        whole = self.one_layer().layers[0]
        for name, array in ((CODES, whole.codes), (SCALES, whole.scales), (OWNERS, whole.owners)):
            np.save(folder / name, array, allow_pickle=False)
        if not whole.texts.all():
            np.save(folder / TEXTS, whole.texts, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, tree: int) -> Entries:
        codes, scales, owners = (
            np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in (CODES, SCALES, OWNERS)
        )
        several = (folder / TEXTS).exists()
        texts = np.load(folder / TEXTS, allow_pickle=False) if several else np.ones(len(codes), bool)
        return cls.__new__(cls)._set([Layer(codes, scales, owners, texts, prefix_keys(codes, tree))], tree)


def first_of_each(owners: np.ndarray) -> np.ndarray:
    """Whether each entry is the first of its row."""
    first = np.zeros(len(owners), bool)
    first[np.unique(owners, return_index=True)[1]] = True
    return first


def prefix_keys(codes: np.ndarray, tree: int) -> np.ndarray:
    """The tree tokens of codes as one integer each, in the order of the tokens."""
    if not 1 <= tree <= TREE:
        raise BadSetting(f"a tree of {tree} tokens", f"Use 1 to {TREE}.")
    key = codes[:, 0].astype(np.uint16)
    return key if tree == 1 else (key << 8) | codes[:, 1].astype(np.uint16)


def _ranges(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The numbers from each first to before its last, one range after the other."""
    lengths = last - first
    return np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """Places of at least `count` best scores, best first, ties by place."""
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
    chosen = np.flatnonzero(scores >= threshold)
    return chosen[np.argsort(-scores[chosen], kind="stable")]
