"""Metadata index: the rows that have a value, or a value in a range, for each field.

The index gives the same results as `Filter.accepts` without reading the documents again. Fields are indexed when a
filter first uses them, since most fields of most corpora never occur in a filter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from callslip.errors import LONGEST, BadSetting, closest
from callslip.filters.filter import Filter, choices, elements, texts
from callslip.filters.globs import Glob
from callslip.filters.ranges import Range, date_of, number_of

SHOWN = 10
"""Maximum number of field names that an error lists."""

NO_ROWS = np.zeros(0, dtype=np.int64)


class Groups:
    """Rows by key in a single array: with one array per key, unique values would need an array per document."""

    def __init__(self, keys: Sequence[Hashable], rows: Sequence[int]) -> None:
        self._number: dict[Hashable, int] = {}
        numbers = np.fromiter((self._number.setdefault(key, len(self._number)) for key in keys), dtype=np.int64)
        self._rows = np.asarray(rows, dtype=np.int64)[np.argsort(numbers, kind="stable")]
        counts = np.bincount(numbers, minlength=len(self._number))
        self._ends = np.concatenate([[0], np.cumsum(counts)])

    def rows(self, key: Hashable) -> np.ndarray:
        number = self._number.get(key)
        return NO_ROWS if number is None else self._rows[self._ends[number] : self._ends[number + 1]]

    def matching(self, glob: Glob) -> list[np.ndarray]:
        """The rows of every key whose text matches."""
        return [self.rows(key) for key in self._number if glob.matches(str(key))]


class Ordered:
    """Rows sorted by number or date, as Python objects, because float64 would round large integers."""

    def __init__(self, values: list[Any], rows: Sequence[int]) -> None:
        order = sorted(range(len(values)), key=values.__getitem__)
        self._values = [values[position] for position in order]
        self._rows = np.asarray(rows, dtype=np.int64)[order] if order else NO_ROWS

    def rows(self, wanted: Range) -> np.ndarray:
        first = 0 if wanted.low is None else bisect_left(self._values, wanted.low)
        if wanted.high is None:
            last = len(self._values)
        elif isinstance(wanted.high, str):
            length = len(wanted.high)  # see Range: the end of a range includes everything with that prefix
            last = bisect_right(self._values, wanted.high, key=lambda value: value[:length])
        else:
            last = bisect_right(self._values, wanted.high)
        return self._rows[first:last]


class Field:
    """One field: its values (elements of lists, without nulls) and the row of each."""

    def __init__(self, values: list[Any], rows: list[int]) -> None:
        self._values, self._row_numbers = values, rows
        self._unhashable: list[tuple[Any, int]] = []
        written: tuple[list[Hashable], list[int]] = [], []
        hashed: tuple[list[Hashable], list[int]] = [], []
        for value, row in zip(values, rows, strict=True):
            for text in texts(value):
                written[0].append(text)
                written[1].append(row)
            # Equal strings share a text form, so only other values are looked up by equality (1 == 1.0 == True).
            if type(value) is str:
                continue
            if _hashable(value):
                hashed[0].append(value)
                hashed[1].append(row)
            else:
                self._unhashable.append((value, row))
        self._by_text, self._by_value = Groups(*written), Groups(*hashed)
        self._ordered: dict[bool, Ordered] = {}

    def rows(self, wanted: Any) -> list[np.ndarray]:
        """Rows whose value matches a value, range or glob; a row may occur more than once."""
        if isinstance(wanted, Range):
            return [self._in_order(wanted.of_dates).rows(wanted)]
        if isinstance(wanted, Glob):
            return self._by_text.matching(wanted)
        found = [self._by_text.rows(text) for text in texts(wanted)]
        if _hashable(wanted):
            found.append(self._by_value.rows(wanted))
        if not isinstance(wanted, (str, int, float)):  # strings and numbers never equal a list or object
            equal = [row for value, row in self._unhashable if value == wanted]
            found.append(np.array(equal, dtype=np.int64))
        return found

    def _in_order(self, of_dates: bool) -> Ordered:
        if of_dates not in self._ordered:
            read: Callable[[Any], Any] = date_of if of_dates else number_of
            pairs = [(read(value), row) for value, row in zip(self._values, self._row_numbers, strict=True)]
            pairs = [pair for pair in pairs if pair[0] is not None]
            self._ordered[of_dates] = Ordered([value for value, _ in pairs], [row for _, row in pairs])
        return self._ordered[of_dates]


class MetadataIndex:
    """The fields of all documents. `metadata` yields one mapping per row, and is read again for each new field."""

    def __init__(self, metadata: Callable[[], Iterable[Mapping[str, Any]]], count: int) -> None:
        self._metadata = metadata
        self._count = count
        self._names: set[str] | None = None
        self._fields: dict[str, tuple[Field, int]] = {}
        """Each field, and the number of rows that it was indexed with."""
        self._recent: list[tuple[int, Mapping[str, Any]]] = []
        """Rows that were added since the first field was indexed."""
        self._recent_fields: dict[str, Field] = {}

    def extend(self, metadata: Sequence[Mapping[str, Any]]) -> None:
        """Take new rows after the present ones. Fields that are indexed already are not indexed again."""
        if self._fields:
            self._recent += enumerate(metadata, start=self._count)
            self._recent_fields = {}
        if self._names is not None:
            self._names.update(*metadata)
        self._count += len(metadata)

    def mask(self, filter: Filter) -> np.ndarray:
        """Rows that satisfy the filter's `where` and `where_not`."""
        self._index(filter.fields)
        mask = np.ones(self._count, dtype=bool)
        for name, wanted in filter.where.items():
            mask &= self._matching(name, wanted)
        for name, unwanted in filter.where_not.items():
            mask &= ~self._matching(name, unwanted)
        return mask

    def _matching(self, name: str, wanted: Any) -> np.ndarray:
        mask = np.zeros(self._count, dtype=bool)
        for value in choices(wanted):
            for rows in (*self._fields[name][0].rows(value), *self._recent_field(name).rows(value)):
                mask[rows] = True
        return mask

    def _recent_field(self, name: str) -> Field:
        """The values of a field in the rows that were added since it was indexed."""
        if name not in self._recent_fields:
            known = self._fields[name][1]
            pairs = [(v, row) for row, data in self._recent if row >= known for v in elements(data.get(name))]
            self._recent_fields[name] = Field([value for value, _ in pairs], [row for _, row in pairs])
        return self._recent_fields[name]

    def _index(self, names: list[str]) -> None:
        """Index all new fields in one pass over the metadata."""
        new = [name for name in names if name not in self._fields]
        if not new:
            return
        if self._names is not None:  # reject an unknown field without a second pass
            self._check(new)
        known: set[str] = set()
        values: dict[str, list[Any]] = {name: [] for name in new}
        rows: dict[str, list[int]] = {name: [] for name in new}
        for row, metadata in enumerate(self._metadata()):
            known.update(metadata)
            for name in new:
                for value in elements(metadata.get(name)):
                    values[name].append(value)
                    rows[name].append(row)
        self._names = known
        self._check(new)
        for name in new:
            self._fields[name] = Field(values[name], rows[name]), self._count

    def _check(self, names: list[str]) -> None:
        known = self._names or set()
        for name in names:
            if name not in known:
                raise BadSetting(f"no document has the metadata field {_shown(name)}", _remedy(name, known))


def _remedy(name: str, known: set[str]) -> str:
    """List the available fields or, if there are many, those with the most similar names."""
    if not known:
        return "The documents of this index have no metadata: leave the condition out."
    close = closest(str(name), map(str, known))
    hint = f"Did you mean {_shown(close[0])}? " if close else ""
    if len(known) <= SHOWN:
        return f"{hint}Fields: {', '.join(map(_shown, sorted(known, key=str)))}."
    nearest = closest(str(name), sorted(map(str, known)), SHOWN, 0.0) or sorted(map(str, known))[:SHOWN]
    return f"{hint}Some of {len(known):,} fields: {', '.join(map(_shown, nearest))}."


def _shown(name: Any) -> str:
    """A quoted name: names come from untrusted files, and repr keeps control characters off the terminal."""
    return repr(str(name)[:LONGEST])


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
