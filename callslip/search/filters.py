"""Filters: which documents a search may return.

A filter is applied before ranking (as a mask over rows, or over the trie's nodes), never to a finished list,
so a search under a filter still returns k hits when k documents match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from callslip.corpus.documents import Document
from callslip.errors import BadSetting


@dataclass(frozen=True)
class Filter:
    """Documents must satisfy every part that is given."""

    where: Mapping[str, Any] = field(default_factory=dict)
    """Metadata: a value must be equal; a list, tuple or set holds the allowed values. Lists in the
    document's metadata match if any element does."""
    allow: frozenset[str] | None = None
    """Only these doc_ids."""
    deny: frozenset[str] = frozenset()
    """None of these doc_ids."""
    predicate: Callable[[Document], bool] | None = None
    """Any Python test of a document."""

    def accepts(self, document: Document) -> bool:
        if document.doc_id in self.deny or (self.allow is not None and document.doc_id not in self.allow):
            return False
        if not all(_matches(document.metadata.get(key), wanted) for key, wanted in self.where.items()):
            return False
        return self.predicate is None or bool(self.predicate(document))

    def mask(self, documents: Iterable[Document]) -> np.ndarray:
        """One boolean per document, in order."""
        return np.fromiter((self.accepts(document) for document in documents), dtype=bool)


def _matches(value: Any, wanted: Any) -> bool:
    allowed = wanted if isinstance(wanted, (list, tuple, set, frozenset)) else (wanted,)
    present = value if isinstance(value, (list, tuple)) else (value,)
    return any(p == a or str(p) == str(a) for p in present for a in allowed if p is not None)


def parse_where(conditions: list[str]) -> Filter | None:
    """`["lang=en,de", "year=2020"]` -> a filter; repeated keys add allowed values."""
    where: dict[str, list[str]] = {}
    for condition in conditions:
        key, sign, values = condition.partition("=")
        if not sign or not key:
            raise BadSetting(f"cannot read the filter {condition!r}", "Write it as field=value or field=value,value.")
        where.setdefault(key, []).extend(values.split(","))
    return Filter(where=where) if where else None
