"""What the page shows of an index before anybody asks: example queries, facets, and the documents to choose from."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from callslip.corpus.sentences import split_sentences
from callslip.filters.filter import elements
from callslip.index.retriever import Retriever

EXAMPLES = 6
"""Number of example queries."""
EXAMPLE_CHARACTERS = 90
"""Longest example query."""
FIELDS = 64
"""Maximum number of metadata fields that are counted."""
FACETS = 12
"""Maximum number of facets: the fields that the most documents have."""
VALUES = 24
"""Maximum number of values of a facet; a field with more is no facet."""
VALUE_CHARACTERS = 100
"""Longest value of a facet; a field with longer ones is text."""
HISTORY_USERS = 20_000
"""Number of users that are looked through for example histories."""
HISTORY_ITEMS = 4
"""Maximum number of items of an example history."""
HISTORY_SHARED = 5
"""Least number of users who had an item, for it to be in an example history."""
LABELS = 20_000
"""Number of documents whose titles are held, to be looked through; the others are found by doc_id."""

Label = tuple[str, str, str]
"""doc_id, title, and both in lower case."""


def examples(retriever: Retriever) -> list[str]:
    """Queries to begin with: titles or first sentences. Never queries that the index remembers: other users wrote
    them, perhaps in confidence."""
    if retriever.reads_histories:
        return []

    def read() -> list[str]:
        alive = np.flatnonzero(retriever.rows.alive)
        documents = retriever.documents.rows(alive[_spread(len(alive), 4 * EXAMPLES)].tolist())
        return [d.title or next(iter(split_sentences(d.text[:1000])), "") for d in documents]

    found = dict.fromkeys(" ".join(text.split()) for text in retriever.living.read(read))
    short = [text for text in found if 0 < len(text) <= EXAMPLE_CHARACTERS]
    return [short[at] for at in _spread(len(short), EXAMPLES)]


def histories(retriever: Retriever) -> list[list[dict[str, str]]]:
    """Histories to begin with: the last items of some users of the log, with titles. Users are not named, and every
    item was had by several, so that no example is about one person."""

    def read() -> list[list[dict[str, str]]]:
        row_of, known = retriever.row_of(), retriever.users.first(HISTORY_USERS)
        users = Counter(item for history in known for item in set(history))
        common = {item for item, count in users.items() if count >= HISTORY_SHARED and item in row_of}
        last = ([item for item in history if item in common][-HISTORY_ITEMS:] for history in known)
        long = list(dict.fromkeys(tuple(items) for items in last if len(items) > 1))
        chosen = [long[at] for at in _spread(len(long), EXAMPLES)]
        items = sorted({item for history in chosen for item in history})
        documents = retriever.documents.rows([row_of[item] for item in items]) if items else []
        titles = {document.doc_id: document.title[:VALUE_CHARACTERS] for document in documents}
        return [[{"doc_id": item, "title": titles[item]} for item in history] for history in chosen]

    return retriever.living.read(read) if retriever.reads_histories else []


def _spread(count: int, most: int) -> list[int]:
    """Up to `most` numbers below `count`, at even distances."""
    return np.linspace(0, max(count - 1, 0), min(most, count)).astype(int).tolist()


def facets(retriever: Retriever) -> dict[str, Any]:
    """The metadata fields with few values, and the number of documents of each value."""

    def read() -> dict[str, Any]:
        alive = retriever.rows.alive
        counted = _Counted()
        for row, metadata in enumerate(retriever.documents.metadata()):
            if alive[row]:
                for name, value in metadata.items():
                    counted.add(name, value)
        return {"documents": len(retriever), "facets": counted.facets(len(retriever))}

    return retriever.living.read(read, now=True)


class _Counted:
    """Counts of values by field; a field is forgotten as soon as it cannot be a facet, so memory is bounded."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.documents: Counter[str] = Counter()
        self.forgotten: set[str] = set()

    def add(self, name: str, value: Any) -> None:
        if name in self.forgotten:
            return
        if name not in self.counts:
            if len(self.counts) + len(self.forgotten) >= FIELDS:
                return
            self.counts[name] = Counter()
        values = list(elements(value))
        if any(isinstance(one, (dict, list)) or len(str(one)) > VALUE_CHARACTERS for one in values):
            self._forget(name)
            return
        # By JSON: 1 and true are equal in Python, and two values to everybody else.
        self.counts[name].update({json.dumps(one, ensure_ascii=False) for one in values})
        self.documents[name] += bool(values)
        if len(self.counts[name]) > VALUES:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self.forgotten.add(name)
        del self.counts[name], self.documents[name]

    def facets(self, total: int) -> list[dict[str, Any]]:
        useful = [
            name
            for name, values in self.counts.items()
            if len(values) > 1 or any(count < total for count in values.values())
        ]
        useful.sort(key=lambda name: (-self.documents[name], name))
        return [
            {
                "field": name,
                "documents": self.documents[name],
                "values": [
                    {"value": json.loads(value), "documents": count}
                    for value, count in sorted(self.counts[name].items(), key=lambda one: (-one[1], one[0]))
                ],
            }
            for name in useful[:FACETS]
        ]


def labels(retriever: Retriever) -> list[Label]:
    """doc_ids and titles of the first documents, to be looked through."""

    def read() -> list[Label]:
        found = []
        for row in np.array_split(np.flatnonzero(retriever.rows.alive)[:LABELS], max(1, LABELS // 1000)):
            for document in retriever.documents.rows(row.tolist()) if len(row) else ():
                title = document.title[:VALUE_CHARACTERS]
                found.append((document.doc_id, title, f"{title}\n{document.doc_id}".casefold()))
        return found

    return retriever.living.read(read, now=True)


def listed(retriever: Retriever, offset: int, limit: int) -> dict[str, Any]:
    """Documents in the order in which they were added."""

    def read() -> dict[str, Any]:
        alive = np.flatnonzero(retriever.rows.alive)
        documents = retriever.documents.rows(alive[offset : offset + limit].tolist())
        named = [{"doc_id": d.doc_id, "title": d.title[:VALUE_CHARACTERS]} for d in documents]
        return {"total": len(alive), "complete": True, "documents": named}

    return retriever.living.read(read, now=True)


def containing(retriever: Retriever, known: list[Label], text: str, offset: int, limit: int) -> dict[str, Any]:
    """Documents whose title or doc_id contains a text: the one with this doc_id, then those whose title or doc_id
    begins with the text, then the others."""
    wanted = text.casefold().strip()
    found = [(doc_id, title, label) for doc_id, title, label in known if wanted in label]
    found.sort(key=lambda one: (one[0] != text.strip(), f"\n{wanted}" not in f"\n{one[2]}"))
    if (not found or found[0][0] != text.strip()) and (named := _named(retriever, text.strip())):
        found.insert(0, named)  # it may be beyond those that are looked through
    documents = [{"doc_id": doc_id, "title": title} for doc_id, title, _ in found[offset : offset + limit]]
    return {"total": len(found), "complete": len(known) < LABELS, "documents": documents}


def _named(retriever: Retriever, doc_id: str) -> Label | None:
    def read() -> Label | None:
        row = retriever.row_of().get(doc_id)
        return None if row is None else (doc_id, retriever.documents.rows([row])[0].title[:VALUE_CHARACTERS], "")

    return retriever.living.read(read, now=True)
