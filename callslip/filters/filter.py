"""Filters, which restrict the documents a search may return.

A filter is applied before ranking (as a mask over rows, or over the trie's nodes), never to the list of hits, so a
filtered search still returns k hits if k documents match. `Filter.accepts` defines the meaning of a filter;
`filters/masks.py` computes the same from an index of the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from callslip.corpus.documents import Document
from callslip.errors import BadSetting
from callslip.filters.globs import Glob
from callslip.filters.ranges import Range


@dataclass(frozen=True)
class Filter:
    """A conjunction: documents must satisfy every given condition."""

    where: Mapping[str, Any] = field(default_factory=dict)
    """Conditions on metadata: a value must be equal, or equal as text (2020 and "2020"), lie in a `Range` or match a
    `Glob`; a list, tuple or set holds alternatives. A list in the document's metadata matches if any element
    does; null never does."""
    where_not: Mapping[str, Any] = field(default_factory=dict)
    """Metadata that documents must not have, in the form of `where`. Documents without the field are accepted."""
    allow: frozenset[str] | None = None
    """Allowed doc_ids; all others are excluded."""
    deny: frozenset[str] = frozenset()
    """Excluded doc_ids."""
    predicate: Callable[[Document], bool] | None = None
    """Any Python predicate on a document. Results are cached, so it must be deterministic."""

    def __post_init__(self) -> None:
        for name in ("allow", "deny"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise BadSetting(f"the filter's {name} is a string: {given!r}", "Give a set or list of doc_ids.")
            if given is not None:
                object.__setattr__(self, name, frozenset(given))

    def accepts(self, document: Document) -> bool:
        if document.doc_id in self.deny or (self.allow is not None and document.doc_id not in self.allow):
            return False
        if not all(_matches(document.metadata.get(key), wanted) for key, wanted in self.where.items()):
            return False
        if any(_matches(document.metadata.get(key), unwanted) for key, unwanted in self.where_not.items()):
            return False
        return self.predicate is None or bool(self.predicate(document))

    def mask(self, documents: Iterable[Document]) -> np.ndarray:
        """One boolean per document, in order."""
        return np.fromiter((self.accepts(document) for document in documents), dtype=bool)

    @property
    def fields(self) -> list[str]:
        """The metadata fields that the filter uses."""
        return list(dict.fromkeys([*self.where, *self.where_not]))

    @property
    def empty(self) -> bool:
        """Whether the filter has no conditions and accepts every document."""
        return not (self.where or self.where_not or self.deny) and self.allow is None and self.predicate is None

    def key(self) -> Hashable | None:
        """Cache key, equal for filters with the same conditions. None if a condition is not hashable: no caching."""
        try:
            conditions = [
                frozenset((name, _frozen(value)) for name, value in part.items())
                for part in (self.where, self.where_not)
            ]
            key = (*conditions, self.allow, self.deny, self.predicate)
            hash(key)
        except TypeError:
            return None
        return key


def choices(wanted: Any) -> Iterable[Any]:
    """The allowed values of a condition: one value, or those of a list, tuple or set. None matches nothing."""
    several = wanted if isinstance(wanted, (list, tuple, set, frozenset)) else (wanted,)
    return [value for value in several if value is not None]


def elements(value: Any) -> Iterable[Any]:
    """The values of a document's metadata field: the value, or the elements of a list, without null."""
    if value is None:
        return ()
    return [one for one in value if one is not None] if isinstance(value, (list, tuple)) else (value,)


def texts(value: Any) -> tuple[str, ...]:
    """The text forms of a value. Two values match if they are equal or share a text form."""
    if type(value) is str:
        return (value,)
    if isinstance(value, bool):
        return (str(value), str(value).lower())  # as in Python, and as in JSON
    if isinstance(value, str):
        return (str(value), str.__str__(value))  # the name and the value of a string enum
    return (str(value),)


def _matches(value: Any, wanted: Any) -> bool:
    return any(_equal(present, allowed) for present in elements(value) for allowed in choices(wanted))


def _equal(present: Any, allowed: Any) -> bool:
    if isinstance(allowed, Range):
        return allowed.holds(present)
    if isinstance(allowed, Glob):
        return allowed.holds(texts(present))
    return present == allowed or not set(texts(present)).isdisjoint(texts(allowed))


def _frozen(value: Any) -> Hashable:
    """A value as part of a cache key, with its type: 1, 1.0 and True are equal in Python, but match different texts."""
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_frozen, value))
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(map(_frozen, value))
    if isinstance(value, Mapping):
        return type(value), tuple((name, _frozen(inner)) for name, inner in value.items())
    return type(value), str(value), value


def parse_where(conditions: list[str]) -> Filter | None:
    """`["lang=en,de", "year=2018..2022", "year!=2020", "path=docs/*"]` -> a filter; repeated keys add values."""
    where: dict[str, list[str | Range | Glob]] = {}
    where_not: dict[str, list[str | Range | Glob]] = {}
    for condition in conditions:
        key, sign, values = condition.partition("=")
        target = where_not if key.endswith("!") else where
        key = key.removesuffix("!")
        if not sign or not key:
            raise BadSetting(
                f"cannot parse the filter {condition!r}",
                "Write it as field=value, field=value,value, field=low..high, field=begin* or field!=value.",
            )
        target.setdefault(key, []).extend(map(_parsed, values.split(",")))
    return Filter(where=where, where_not=where_not) if conditions else None


def _parsed(value: str) -> str | Range | Glob:
    return Glob(value) if "*" in value else Range.parse(value) or value


def group_by_filter(
    filter: Filter | Sequence[Filter | None] | None, queries: int
) -> list[tuple[Filter | None, list[int]]]:
    """Group queries by filter: distinct filters, each with the indices of its queries, which are searched together."""
    if filter is None or isinstance(filter, Filter):
        return [(filter, list(range(queries)))]
    if not isinstance(filter, Sequence) or not all(one is None or isinstance(one, Filter) for one in filter):
        raise BadSetting(
            f"{filter!r} is not a filter", "Give a Filter, or a list with a Filter or None for each query."
        )
    if len(filter) != queries:
        raise BadSetting(f"{len(filter)} filters for {queries} queries", "Give one filter for all, or one per query.")
    groups: dict[Hashable, tuple[Filter | None, list[int]]] = {}
    for number, one in enumerate(filter):
        key = None if one is None else one.key() or id(one)
        groups.setdefault(key, (one, []))[1].append(number)
    return list(groups.values())
