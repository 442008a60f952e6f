"""Histories as arrays: each user's items in order, and the training examples made from them.

Items are row numbers of the corpus. Padded histories hold item numbers (row + 1) and are right-padded with 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path

import numpy as np

from callslip.corpus.documents import Corpus, Query
from callslip.errors import CallslipError, closest

USERS, COUNTED = "users.jsonl", "counted.jsonl"
LONGEST = 20
"""Default maximum length of a history; longer ones keep their last items."""


@dataclass(frozen=True)
class Examples:
    """Histories with their targets: the next item, or another item of the same user."""

    histories: np.ndarray
    """Item numbers (row + 1) [n, T], right-padded with 0."""
    targets: np.ndarray
    """Row of each target item, [n]."""
    sequence: np.ndarray
    """Index of the sequence each example comes from, [n]."""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def lengths(self) -> np.ndarray:
        return np.count_nonzero(self.histories, axis=1)


@dataclass(frozen=True)
class Sequences:
    """The items of every user in order of time, one user after the other."""

    users: list[str]
    items: np.ndarray
    """Rows of items, [interactions]."""
    bounds: np.ndarray
    """Offset of each user's first item, and the end of the last user's items, [users + 1]."""

    @classmethod
    def of(cls, histories: Mapping[str, Sequence[int]]) -> Sequences:
        """The rows of the items of each user."""
        items = np.array([row for rows in histories.values() for row in rows], np.int64)
        return cls(list(histories), items, np.cumsum([0, *map(len, histories.values())]))

    def __len__(self) -> int:
        return len(self.users)

    def each(self) -> list[np.ndarray]:
        """The rows of each user's items."""
        return np.split(self.items, self.bounds[1:-1]) if len(self) else []

    def counts(self, documents: int) -> np.ndarray:
        """Number of interactions of each item, [documents]."""
        return np.bincount(self.items, minlength=documents)

    def sequential(self, longest: int = LONGEST) -> Examples:
        """One example per item except a user's first: the item, after at most `longest` items before it."""
        owner, start, _ = self._places()
        at = np.arange(len(self.items))
        chosen = at > start
        at, owner, start = at[chosen], owner[chosen], start[chosen]
        first = np.maximum(start, at - longest)
        return Examples(self._padded(first, at - first, longest), self.items[at], owner)

    def general(self, longest: int = LONGEST) -> Examples:
        """One example per item of users with two or more items: the item, with at most the last `longest` of the
        user's other items, earlier or later."""
        owner, start, end = self._places()
        at = np.arange(len(self.items))
        chosen = end - start > 1
        at, owner, start, end = at[chosen], owner[chosen], start[chosen], end[chosen]
        first = np.maximum(start, end - 1 - longest)
        return Examples(self._padded(first, end - 1 - first, longest, skip=at), self.items[at], owner)

    def whole(self, longest: int = LONGEST) -> np.ndarray:
        """The last `longest` items of each user as item numbers, [users, T]."""
        first = np.maximum(self.bounds[:-1], self.bounds[1:] - longest)
        return self._padded(first, self.bounds[1:] - first, longest)

    def _places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For every interaction: its user, and where the user's items begin and end."""
        owner = np.repeat(np.arange(len(self)), np.diff(self.bounds))
        return owner, self.bounds[:-1][owner], self.bounds[1:][owner]

    def _padded(
        self, first: np.ndarray, lengths: np.ndarray, longest: int, skip: np.ndarray | None = None
    ) -> np.ndarray:
        """`lengths` item numbers from each offset in `first`, without the position `skip` if it is in the range."""
        width = min(longest, int(lengths.max(initial=0))) or 1
        place = first[:, None] + np.arange(width)
        if skip is not None:
            place = place + (place >= skip[:, None])
        if not len(self.items):
            return np.zeros(place.shape, np.int64)
        numbers = self.items[np.minimum(place, len(self.items) - 1)] + 1
        return np.where(np.arange(width) < lengths[:, None], numbers, 0)


def sequences(corpus: Corpus, split: str = "train") -> Sequences:
    """The sequences to train on: the history and target of every judged query of the split that has a history."""
    row_of = corpus.rows()
    queries, judgements = corpus.split(split)
    users: list[str] = []
    items: list[int] = []
    bounds = [0]
    for query_id, query in queries.items():
        if not query.history:
            continue
        rows = [row_of[item] for item in query.history if item in row_of]
        rows += [row_of[item] for item, grade in judgements[query_id].items() if grade > 0 and item in row_of]
        users.append(query_id.removesuffix(f"#{split}"))
        items += rows
        bounds.append(len(items))
    return Sequences(users, np.array(items, np.int64), np.array(bounds, np.int64))


def runs(histories: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Bounds of runs of consecutive examples that extend the same history, [runs + 1].

    An example extends the previous one if its history is the previous history plus the previous target (without the
    first item if the table is too narrow). A causal model that reads the last example of a run has therefore read all
    of them. A run has at most as many examples as the table has columns, or half as many where histories are
    truncated, so that every example keeps at least half of its history.
    """
    count, width = histories.shape
    lengths = np.count_nonzero(histories, axis=1)
    if not count:
        return np.zeros(1, np.int64)
    before, after = histories[:-1], histories[1:]
    last = np.take_along_axis(after, np.maximum(lengths[1:] - 1, 0)[:, None], axis=1)[:, 0] == targets[:-1] + 1
    columns = np.arange(width)
    grown = (lengths[1:] == lengths[:-1] + 1) & ((before == after) | (columns >= lengths[:-1, None])).all(axis=1)
    moved = (lengths[1:] == width) & (lengths[:-1] == width) & (before[:, 1:] == after[:, :-1]).all(axis=1)
    bounds, length = [0], 1
    for place, (grows, moves) in enumerate(zip(last & grown, last & moved, strict=True), start=1):
        if grows or (moves and length < max(1, width // 2)):
            length += 1
        else:
            bounds.append(place)
            length = 1
    return np.array([*bounds, count], np.int64)


def padded(histories: Iterable[Sequence[str]], number_of: Mapping[str, int], longest: int = LONGEST) -> np.ndarray:
    """Histories of doc_ids as item numbers [n, T], right-padded with 0.

    `number_of` maps an item to its number, from 1; unknown items are dropped. A history without known items becomes a
    row of zeros.
    """
    rows = [[number for item in history if (number := number_of.get(item, 0))][-longest:] for history in histories]
    table = np.zeros((len(rows), max(map(len, rows), default=0) or 1), np.int64)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table


@dataclass
class Users:
    """A history of each user, saved with the index, one JSON object per line: the full one, for `search --user`, or
    what was counted of it."""

    lines: bytes = b""
    """The file, read at the first lookup of a user."""
    _histories: dict[str, tuple[str, ...]] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, corpus: Corpus) -> Users:
        """The longest history of each user, followed by its target."""
        known: dict[str, tuple[str, ...]] = {}
        for split, judgements in corpus.judgements.items():
            for query_id, grades in judgements.items():
                query = corpus.queries.get(query_id)
                if query is not None and query.history:
                    user = query_id.removesuffix(f"#{split}")
                    whole = (*query.history, *(item for item, grade in grades.items() if grade > 0))
                    known[user] = max(known.get(user, ()), whole, key=len)
        return cls.named(known)

    @classmethod
    def named(cls, histories: Mapping[str, Sequence[str]]) -> Users:
        lines = (json.dumps({"user": user, "items": list(items)}) for user, items in histories.items())
        return cls("".join(f"{line}\n" for line in lines).encode())

    @classmethod
    def load(cls, folder: Path, name: str = USERS) -> Users:
        path = folder / name
        return cls(path.read_bytes() if path.exists() else b"")

    def save(self, folder: Path, name: str = USERS) -> None:
        if self.lines:
            (folder / name).write_bytes(self.lines)

    def with_more(self, new: Mapping[str, Sequence[str]]) -> Users:
        """With further items at the end of histories, those that a history has already left out; itself if there are
        none."""
        more = {}
        for user, items in new.items():
            held = self.histories.get(user, ())
            added = [item for item in items if item not in held]
            if added:
                more[user] = (*held, *added)
        return Users.named(self.histories | more) if more else self

    @property
    def interactions(self) -> int:
        """Number of items of all histories."""
        return sum(map(len, self.histories.values()))

    @property
    def histories(self) -> dict[str, tuple[str, ...]]:
        if self._histories is None:
            rows = (json.loads(line) for line in self.lines.splitlines())
            self._histories = {row["user"]: tuple(row["items"]) for row in rows}
        return self._histories

    def first(self, most: int) -> list[tuple[str, ...]]:
        """The histories of up to `most` users; the others are not read."""
        with BytesIO(self.lines) as lines:
            return [tuple(json.loads(line)["items"]) for line in islice(lines, most)]

    def query(self, user: str) -> Query:
        """The user's history as a query; an unknown user is an error with a remedy."""
        if user in self.histories:
            return Query(user, "", self.histories[user])
        if not self.histories:
            remedy = "Search by text, or fit a method that reads histories, such as item-knn or tiger, on a log."
            raise CallslipError("this index has no users: it was not fitted on an interaction log", remedy)
        remedy = "Give items instead: --history id,id,id (a query with a history)."
        close = closest(user, self.histories)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise CallslipError(f"unknown user {user!r}", hint + remedy)
