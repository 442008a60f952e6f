"""The table of documents and codes, sorted by code, so that every prefix is a slice.

Documents that share a prefix are adjacent. A single array therefore holds the trie, the buckets and the prefix groups
that several methods train on, without traversal or hashing.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from callslip.errors import BadSetting, IndexCorrupt, NotAnIndex
from callslip.runtime import durable

if TYPE_CHECKING:
    from callslip.identifiers.grown import Later
    from callslip.identifiers.trie import Trie

END = -1
"""Padding after the last token of a code shorter than the table. Sorts before every token."""

FILES = ("codes.npy", "rows.npy", "doc_ids.json")


READABLE = 8
"""Maximum number of tokens of a code that is shown whole where its first tokens form the tree."""


def code_to_text(code: Iterable[int], vocabulary: Sequence[str] | None = None, tree: int | None = None) -> str:
    """A readable code: "12-7-200", or words if there is a vocabulary.

    A token beyond the vocabulary (a rank added by `disambiguate`) is shown as "#1", "#2", … If only the first `tree`
    tokens form the tree, a long code is shortened to them: "12-7-…".
    """
    tokens = [int(token) for token in code if token != END]
    if tree is not None and len(tokens) > READABLE:
        return code_to_text(tokens[:tree], vocabulary) + "-…"
    if vocabulary is None:
        return "-".join(map(str, tokens))
    known = len(vocabulary)
    return "-".join(vocabulary[token] if token < known else f"#{token - known + 1}" for token in tokens)


def text_to_code(text: str) -> tuple[int, ...]:
    """The inverse of `code_to_text` without a vocabulary: "12-7-200" is (12, 7, 200)."""
    try:
        code = tuple(int(part) for part in text.split("-")) if text else ()
    except ValueError:
        raise BadSetting(f"{text!r} is not a code", "Write tokens joined by '-', as in 12-7-200.") from None
    return code


def check_codes(codes: npt.ArrayLike) -> np.ndarray:
    """The codes as an int32 array [N, L]; invalid codes raise an error that explains the problem."""
    try:
        array = np.asarray(codes)
    except ValueError:
        raise BadSetting(
            "codes have different lengths", "Use Identifiers.from_sequences, which pads with END."
        ) from None
    if array.ndim != 2 or array.shape[1] < 1:
        raise BadSetting(f"codes must be an array [documents, length], not of shape {array.shape}")
    if array.size == 0:
        return np.zeros(array.shape, np.int32)
    if array.dtype.kind not in "iu":
        raise BadSetting(f"codes must be integers, not {array.dtype}")
    if array.min() < END or array.max() > np.iinfo(np.int32).max:
        raise BadSetting(f"tokens must lie between 0 and {np.iinfo(np.int32).max}, or be {END} for END")
    broken = ((array[:, :-1] == END) & (array[:, 1:] != END)).any(axis=1)
    if broken.any():
        row = int(broken.argmax())
        raise BadSetting(f"code of row {row} has a token after END: {array[row].tolist()}")
    return array.astype(np.int32, copy=False)


class Identifiers:
    """Documents and their codes, in lexicographic order of code, then of the original row.

    `doc_ids[i]`, `codes[i]` and `rows[i]` belong to sorted position i; `rows[i]` is the document's original row, and
    `rows` is always a permutation of 0..N-1. Tables are immutable: adding and removing return a new table.
    """

    _folder: Path | None = None
    """Folder from which doc_ids and trie are loaded lazily, if the table was opened without them."""
    _grown: tuple[Identifiers, Later, list[str]] | None = None
    """The table that this one grew from, and what was added: codes and doc_ids. The arrays of the whole are merged when
    somebody asks for them; a search does not."""

    def __init__(self, doc_ids: Iterable[str], codes: npt.ArrayLike) -> None:
        names = list(doc_ids)
        array = check_codes(codes)
        if len(names) != len(array):
            raise BadSetting(f"{len(names)} doc_ids for {len(array)} codes")
        _check_doc_ids(names)
        rows = np.lexsort(array.T[::-1])  # stable: equal codes keep their row order
        self._set([names[row] for row in rows.tolist()], array[rows], rows)

    def _set(self, doc_ids: list[str] | None, codes: np.ndarray, rows: np.ndarray) -> None:
        if len(rows) <= np.iinfo(np.int32).max:
            rows = rows.astype(np.int32, copy=False)  # half the memory; rows are all that search holds per document
        if codes.flags.writeable:
            codes.setflags(write=False)
        if rows.flags.writeable:
            rows.setflags(write=False)
        if doc_ids is not None:
            self.doc_ids = doc_ids
        self.codes, self.rows = codes, rows

    @cached_property
    def doc_ids(self) -> list[str]:
        """The corpus's document ids, in order of code."""
        if self._grown is not None:
            return self._merged_names()
        assert self._folder is not None
        return _read_doc_ids(self._folder, len(self.rows))

    @cached_property
    def codes(self) -> np.ndarray:
        """The codes in their order, int32 [N, L]."""
        assert self._grown is not None
        base, later, _ = self._grown
        return self._merged(base.codes, later.codes)

    @cached_property
    def rows(self) -> np.ndarray:
        """The original row of each document, in order of code."""
        assert self._grown is not None
        base, later, _ = self._grown
        return self._merged(base.rows, (later.order + len(base)).astype(base.rows.dtype))

    def _merged(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """An array of the table that this one grew from, and that of the later codes, in the order of all codes."""
        assert self._grown is not None
        merged = np.insert(old, self._grown[1].documents, new, axis=0)
        merged.setflags(write=False)
        return merged

    def _merged_names(self) -> list[str]:
        """All doc_ids in the order of codes. If a later document has the doc_id of an earlier one, which must have been
        deleted, the earlier one is renamed."""
        assert self._grown is not None
        base, _, later = self._grown
        rows = self.rows.tolist()
        names = [""] * len(base)
        for row, name in zip(base.rows.tolist(), base.doc_ids):
            names[row] = name
        named = {name: row for row, name in enumerate(names)} if later else {}
        for row, name in enumerate(later, start=len(base)):
            if (earlier := named.get(name)) is not None:
                names[earlier] = f"deleted {name} {earlier}"
            named[name] = row
            names.append(name)
        return [names[row] for row in rows]

    @classmethod
    def _sorted(cls, doc_ids: list[str] | None, codes: np.ndarray, rows: np.ndarray) -> Identifiers:
        """A table from parts that are known to be sorted and valid."""
        table = cls.__new__(cls)
        table._set(doc_ids, codes, rows)
        return table

    @classmethod
    def from_sequences(
        cls, doc_ids: Iterable[str], sequences: Iterable[Sequence[int]], length: int | None = None
    ) -> Identifiers:
        """A table of codes of different lengths; shorter codes are padded with END."""
        return cls(doc_ids, pad(sequences, length))

    def __len__(self) -> int:
        return len(self.rows) if self._grown is None else len(self._grown[0]) + len(self._grown[1])

    def __contains__(self, doc_id: object) -> bool:
        return doc_id in self._positions

    def __repr__(self) -> str:
        return f"Identifiers({len(self)} documents, length {self.length}, {self.unique} codes)"

    @property
    def length(self) -> int:
        """L, the number of levels."""
        return int(self.codes.shape[1]) if self._grown is None else self._grown[0].length

    def rows_at(self, positions: np.ndarray) -> np.ndarray:
        """The original rows of the documents at sorted positions."""
        if self._grown is None or "rows" in self.__dict__:
            return self.rows[positions]
        base, later, _ = self._grown
        return self._read(positions, base.rows, later.order + len(base))

    def codes_at(self, positions: np.ndarray) -> np.ndarray:
        """The codes of the documents at sorted positions, [n, L]."""
        if self._grown is None or "codes" in self.__dict__:
            return self.codes[positions]
        base, later, _ = self._grown
        return self._read(positions, base.codes, later.codes)

    def _read(self, positions: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """What `_merged` has at positions, without merging."""
        assert self._grown is not None
        held = self._grown[1].positions
        at = np.searchsorted(held, positions)
        own = np.append(held, -1)[at] == positions
        found = np.empty((len(positions), *old.shape[1:]), old.dtype)
        found[own], found[~own] = new[at[own]], old[(positions - at)[~own]]
        return found

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """The highest token of each level, plus one."""
        if not len(self):
            return (0,) * self.length
        return tuple(int(top) + 1 for top in self.codes.max(axis=0))

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {doc_id: position for position, doc_id in enumerate(self.doc_ids)}

    @cached_property
    def _columns(self) -> list[np.ndarray]:
        return [self.codes[:, level] for level in range(self.length)]

    def position_of(self, doc_id: str) -> int:
        """The sorted position of a document."""
        try:
            return self._positions[doc_id]
        except KeyError:
            raise BadSetting(f"no document {doc_id!r} in the table") from None

    def positions(self, doc_ids: Iterable[str]) -> np.ndarray:
        """The sorted positions of documents, in the order of `doc_ids`."""
        return np.fromiter((self.position_of(doc_id) for doc_id in doc_ids), np.int64)

    def code_of(self, doc_id: str) -> tuple[int, ...]:
        """The code of a document, without END."""
        return self.code_at(self.position_of(doc_id))

    def code_at(self, position: int) -> tuple[int, ...]:
        """The code at a sorted position, without END."""
        return tuple(token for token in self.codes[position].tolist() if token != END)

    def code_text(self, position: int, vocabulary: Sequence[str] | None = None) -> str:
        """The code at a sorted position, as text."""
        return code_to_text(self.code_at(position), vocabulary)

    def in_row_order(self) -> tuple[list[str], np.ndarray]:
        """doc_ids and codes in original row order."""
        codes = np.empty_like(self.codes)
        codes[self.rows] = self.codes
        doc_ids = [""] * len(self)
        for doc_id, row in zip(self.doc_ids, self.rows.tolist()):
            doc_ids[row] = doc_id
        return doc_ids, codes

    def prefix_slice(self, prefix: Sequence[int]) -> slice:
        """The sorted positions of the documents whose code begins with `prefix`; an empty slice if there are
        none."""
        if len(prefix) > self.length:
            raise BadSetting(f"a prefix of {len(prefix)} tokens is too long for codes of length {self.length}")
        if self._grown is not None and "codes" not in self.__dict__:
            node = self.trie().node_of(prefix)
            return slice(0, 0) if node < 0 else self.trie().documents_of(len(prefix) - 1, node)
        start, stop = 0, len(self)
        # bisect on a column view reads only the elements it compares; np.searchsorted would copy the whole column.
        for column, token in zip(self._columns, prefix):
            start, stop = bisect_left(column, token, start, stop), bisect_right(column, token, start, stop)
        return slice(start, stop)

    def bucket(self, code: Sequence[int]) -> slice:
        """The sorted positions of the documents that have exactly this code (END may be left out)."""
        return self.prefix_slice([*code, *[END] * (self.length - len(code))])

    def buckets(self) -> np.ndarray:
        """Start of each bucket, and N at the end: bucket b is positions starts[b]:starts[b + 1]."""
        return self._starts

    @cached_property
    def _starts(self) -> np.ndarray:
        if not len(self):
            return np.zeros(1, np.int64)
        new = (self.codes[1:] != self.codes[:-1]).any(axis=1)
        starts = np.concatenate(([0], np.flatnonzero(new) + 1, [len(self)])).astype(np.int64)
        starts.setflags(write=False)
        return starts

    @property
    def unique(self) -> int:
        """Number of distinct codes."""
        return len(self.trie().tokens[-1])

    def trie(self) -> Trie:
        """The trie that search traverses; built once."""
        return self._trie

    @cached_property
    def _trie(self) -> Trie:
        from callslip.identifiers.trie import Trie

        if self._grown is not None:
            from callslip.identifiers.grown import grown_trie

            return grown_trie(self._grown[0].trie(), self._grown[1])
        if self._folder is not None and (self._folder / "trie-0-tokens.npy").is_file():
            return Trie.load(self._folder, self.length)
        return Trie.from_sorted(self.codes)

    def with_added(self, doc_ids: Iterable[str], codes: npt.ArrayLike) -> Identifiers:
        """The table with more documents, equal to a table built from the old documents followed by the new ones.

        The new codes are merged into the sorted ones, so a small addition does not sort a large table again.
        """
        added = Identifiers(doc_ids, codes)
        both = [doc_id for doc_id in added.doc_ids if doc_id in self._positions]
        if both:
            raise BadSetting(f"{both[0]!r} is already in the table", "Remove it first, with `without`.")
        length = max(self.length, added.length)
        mine, theirs = _lengthen(self.codes, length), _lengthen(added.codes, length)
        at = np.searchsorted(sort_keys(mine), sort_keys(theirs), side="right")
        places = at + np.arange(len(at))  # positions of the added documents in the new table
        old = np.ones(len(self) + len(added), bool)
        old[places] = False
        new_codes = np.empty((len(old), length), np.int32)
        new_codes[old], new_codes[places] = mine, theirs
        rows = np.empty(len(old), np.int64)
        rows[old], rows[places] = self.rows, added.rows + len(self)
        merged: list[str] = []
        last = 0
        for cut, doc_id in zip(at.tolist(), added.doc_ids):
            if cut > last:
                merged += self.doc_ids[last:cut]
                last = cut
            merged.append(doc_id)
        merged += self.doc_ids[last:]
        return Identifiers._sorted(merged, new_codes, rows)

    def with_later(self, doc_ids: Iterable[str], codes: npt.ArrayLike) -> Identifiers:
        """The table with more documents, as `with_added` has it, at the cost of the documents that were added since the
        table was sorted. Documents with the doc_id of an earlier one take its place, as after a deletion."""
        from callslip.identifiers.grown import LARGE, Later

        names, array = list(doc_ids), check_codes(codes)
        if len(names) != len(array):
            raise BadSetting(f"{len(names)} doc_ids for {len(array)} codes")
        _check_doc_ids(names)
        base, later, added = self._grown or (self, Later.none(self.length), [])
        if array.shape[1] > base.length:
            again = {name: f"deleted {name} {self.rows[self.position_of(name)]}" for name in names if name in self}
            return self.whole().renamed(again).with_added(names, array)
        table = Identifiers.__new__(Identifiers)
        table._grown = (base, later.extended(base.trie(), _lengthen(array, base.length)), [*added, *names])
        return table.whole() if len(table._grown[1]) > LARGE else table

    def whole(self) -> Identifiers:
        """The same table, merged."""
        return self if self._grown is None else Identifiers._sorted(self.doc_ids, self.codes, self.rows)

    def renamed(self, names: Mapping[str, str]) -> Identifiers:
        """The same table with new doc_ids for some documents."""
        return Identifiers._sorted([names.get(doc_id, doc_id) for doc_id in self.doc_ids], self.codes, self.rows)

    def without(self, doc_ids: Iterable[str]) -> Identifiers:
        """The table without some documents, equal to a table built from the others in their old order."""
        keep = np.ones(len(self), bool)
        keep[self.positions(doc_ids)] = False
        kept_rows = np.zeros(len(self), np.int64)
        kept_rows[self.rows[keep]] = 1
        rows = (np.cumsum(kept_rows) - 1)[self.rows[keep]]
        names = [self.doc_ids[position] for position in np.flatnonzero(keep).tolist()]
        return Identifiers._sorted(names, self.codes[keep], rows)

    def save(self, folder: str | Path) -> None:
        """Write codes.npy, rows.npy, doc_ids.json and the trie's arrays into a folder."""
        if self._grown is not None:
            self.whole().save(folder)
            return
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        doc_ids = json.dumps(self.doc_ids).encode("ascii")
        durable.replace(folder / "doc_ids.json", doc_ids)
        durable.replace(folder / "codes.npy", durable.array(self.codes))
        durable.replace(folder / "rows.npy", durable.array(self.rows))
        self.trie().save(folder)

    @classmethod
    def load(cls, folder: str | Path, *, mmap: bool = False, check: bool = True) -> Identifiers:
        """Read a saved table. `mmap` memory-maps codes, rows and trie, and loads doc_ids lazily; `check=False` skips
        the verification, which reads the whole table."""
        folder = Path(folder)
        missing = [name for name in FILES if not (folder / name).is_file()]
        if missing:
            raise NotAnIndex(f"{folder} has no table of identifiers: {missing[0]} is missing")
        mode = "r" if mmap else None
        try:
            codes = np.load(folder / "codes.npy", mmap_mode=mode, allow_pickle=False)  # type: ignore[arg-type]
            rows = np.load(folder / "rows.npy", mmap_mode=mode, allow_pickle=False)  # type: ignore[arg-type]
        except (ValueError, OSError, EOFError) as error:
            raise IndexCorrupt(folder, f"the table of identifiers cannot be read ({error})") from None
        problem = _wrong_parts(codes, rows, check)
        if problem:
            raise IndexCorrupt(folder, problem)
        lazy = mmap and not check
        table = cls._sorted(None if lazy else _read_doc_ids(folder, len(rows)), np.asarray(codes), np.asarray(rows))
        if lazy:
            table._folder = folder
        return table


def pad(sequences: Iterable[Sequence[int]], length: int | None = None) -> np.ndarray:
    """Sequences of tokens as int32 [N, L], padded with END; L is the longest length, or `length` if that is
    larger."""
    rows = [list(sequence) for sequence in sequences]
    longest = max(map(len, rows), default=0)
    if length is not None and longest > length:
        raise BadSetting(f"a code of {longest} tokens is too long for a table of length {length}")
    codes = np.full((len(rows), max(1, longest if length is None else length)), END, np.int64)
    for row, tokens in enumerate(rows):
        codes[row, : len(tokens)] = tokens
    if len(rows) and codes.max() > np.iinfo(np.int32).max:
        raise BadSetting(f"tokens must not exceed {np.iinfo(np.int32).max}")
    return codes.astype(np.int32)


def _check_doc_ids(doc_ids: list[str]) -> None:
    for doc_id in doc_ids:
        if not isinstance(doc_id, str) or not doc_id:
            raise BadSetting(f"doc_ids must be non-empty strings, not {doc_id!r}")
    if len(set(doc_ids)) != len(doc_ids):
        seen: set[str] = set()
        twice = next(doc_id for doc_id in doc_ids if doc_id in seen or seen.add(doc_id))  # type: ignore[func-returns-value]
        raise BadSetting(f"doc_id {twice!r} occurs more than once", "Give every document its own doc_id.")


def _lengthen(codes: np.ndarray, length: int) -> np.ndarray:
    return np.pad(codes, ((0, 0), (0, length - codes.shape[1])), constant_values=END)


def sort_keys(codes: np.ndarray) -> np.ndarray:
    """One byte string per code, in the same order as the codes: big-endian, shifted so that END is 0."""
    shifted = (codes.astype(np.int64) + 1).astype(">u4")
    return np.ascontiguousarray(shifted).view(f"S{4 * codes.shape[1]}").reshape(-1)


def _read_doc_ids(folder: Path, count: int) -> list[str]:
    try:
        doc_ids = json.loads((folder / "doc_ids.json").read_bytes())
    except (ValueError, OSError) as error:
        raise IndexCorrupt(folder, f"the table of identifiers cannot be read ({error})") from None
    if not isinstance(doc_ids, list) or not all(isinstance(doc_id, str) for doc_id in doc_ids):
        raise IndexCorrupt(folder, "doc_ids.json is not a list of strings")
    if len(doc_ids) != count:
        raise IndexCorrupt(folder, f"{len(doc_ids)} doc_ids for {count} rows")
    if len(set(doc_ids)) != len(doc_ids):
        raise IndexCorrupt(folder, "a doc_id occurs more than once")
    return doc_ids


def _wrong_parts(codes: np.ndarray, rows: np.ndarray, check: bool) -> str:
    """The problem with the parts of a saved table; empty if there is none."""
    if codes.ndim != 2 or codes.dtype != np.int32 or codes.shape[1] < 1 or rows.dtype not in (np.int32, np.int64):
        return f"codes are {codes.dtype} {codes.shape} and rows {rows.dtype}, not int32 [N, L] and int32 or int64"
    if rows.shape != (len(codes),):
        return f"{len(codes)} codes and {rows.size} rows"
    if not check:
        return ""
    seen = np.zeros(len(rows), bool)
    inside = (rows >= 0) & (rows < len(rows))
    seen[rows[inside]] = True
    if not seen.all():
        return "rows are not a permutation"
    try:
        check_codes(codes)
    except BadSetting as error:
        return error.problem
    return "" if _in_order(codes, rows) else "codes are not sorted"


def _in_order(codes: np.ndarray, rows: np.ndarray) -> bool:
    if len(codes) < 2:
        return True
    differ = codes[1:] != codes[:-1]
    level = differ.argmax(axis=1)[:, None]  # the first level where neighbours differ decides
    step = np.take_along_axis(codes[1:].astype(np.int64) - codes[:-1], level, axis=1)[:, 0]
    return bool(np.where(differ.any(axis=1), step > 0, np.diff(rows) > 0).all())
