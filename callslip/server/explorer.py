"""The tree of codes, node by node: the documents below a prefix, their number, and their characteristic words.

Codes are sorted, so a node is a slice, and counting takes two lookups. Words come from a sample, computed when a node
is first visited and cached until the number of its documents changes.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from callslip.identifiers.prefix_words import Labels
from callslip.identifiers.table import END, Identifiers, code_to_text
from callslip.index.retriever import Retriever
from callslip.server.errors import ApiError

KEPT = 4096
"""Maximum number of nodes in the cache of words."""
NO_CODES = "this index has no codes"


def coded(retriever: Retriever) -> Retriever | None:
    """The retriever, or the part of a hybrid, whose documents have codes; None if there is none."""
    if isinstance(getattr(retriever, "identifiers", None), Identifiers):
        return retriever
    return next((part for part in getattr(retriever, "parts", ()) if coded(part) is not None), None)


def vocabulary_of(retriever: Retriever) -> Sequence[str] | None:
    """The word of each token, where codes are words."""
    part = coded(retriever)
    return None if part is None else getattr(part, "vocabulary", None)


def tree_levels(retriever: Retriever) -> int | None:
    """Number of tokens that form the tree, where codes go on after it; None if all of them do."""
    part = coded(retriever)
    return None if part is None else getattr(part, "tree_levels", None)


def tree_of(part: Any) -> Identifiers:
    """The codes as far as they form a tree."""
    return getattr(part, "tree_identifiers", part.identifiers)


@dataclass
class View:
    """The tree of one state of an index, without deleted documents."""

    retriever: Retriever
    identifiers: Identifiers
    alive: np.ndarray
    """Whether the document at each sorted position is alive."""
    before: np.ndarray
    """Number of living documents before each sorted position, and in total."""
    labels: Labels

    def count(self, inside: slice) -> int:
        return int(self.before[inside.stop] - self.before[inside.start])


class Explorer:
    """Answers queries about the tree of an index, across generations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._view: tuple[Any, View] | None = None
        self._words: OrderedDict[tuple[int, ...], tuple[int, list[str]]] = OrderedDict()
        self._background: tuple[int, Counter[str]] | None = None

    def children(self, retriever: Retriever, prefix: tuple[int, ...], depth: int, limit: int) -> dict[str, Any]:
        """A node and its `limit` largest children, to a depth of one or two levels."""
        return self._steady(retriever, lambda: self._children(self._now(retriever), prefix, depth, limit))

    def documents(self, retriever: Retriever, prefix: tuple[int, ...], offset: int, limit: int) -> dict[str, Any]:
        """The documents below a node, in the order of their codes."""
        return self._steady(retriever, lambda: self._documents(self._now(retriever), prefix, offset, limit))

    def words(self, retriever: Retriever, code: Sequence[int]) -> list[list[str]]:
        """The characteristic words of each prefix of a code."""

        def ask() -> list[list[str]]:
            view = self._now(retriever)
            trie, found = view.identifiers.trie(), []
            for level in range(len(code)):
                prefix = tuple(code[: level + 1])
                node = trie.node_of(prefix)
                inside = trie.documents_of(level, node) if node >= 0 else slice(0, 0)
                found.append(self._words_of(view, prefix, inside) if view.count(inside) else [])
            return found

        return self._steady(retriever, ask)

    def neighbours(self, retriever: Retriever, doc_id: str, limit: int) -> dict[str, Any]:
        """The documents whose codes share the longest prefixes with that of a document, the longest first."""
        return self._steady(retriever, lambda: _neighbours(retriever, doc_id, limit))

    def _steady(self, retriever: Retriever, ask: Any) -> Any:
        """Run a query on a consistent state of the index; an error if the method has no codes."""
        if coded(retriever) is None:
            raise ApiError(409, NO_CODES, f"{retriever.method} finds documents without codes.")
        return retriever.living.read(ask, now=True)

    def _now(self, retriever: Retriever) -> View:
        part = coded(retriever)
        assert part is not None
        identifiers = tree_of(part)
        key = (id(identifiers), retriever.living.version, len(retriever.rows.alive))
        with self._lock:
            if self._view is None or self._view[0] != key:
                alive = retriever.rows.alive[identifiers.rows]
                before = np.concatenate([[0], np.cumsum(alive)])
                labels = Labels(retriever.documents.rows, retriever.rows.alive)
                self._view = key, View(retriever, identifiers, alive, before, labels)
            return self._view[1]

    def _children(self, view: View, prefix: tuple[int, ...], depth: int, limit: int) -> dict[str, Any]:
        node, level = _node(view, prefix), len(prefix) - 1
        inside = view.identifiers.trie().documents_of(level, node)
        below, left = self._below(view, level, node, limit)
        children = []
        for child in below:
            entry = self._entry(view, level + 1, child, (*prefix,))
            if depth > 1 and not entry["end"]:
                deeper, more = self._below(view, level + 1, child, limit)
                entry["children"] = [self._short(view, level + 2, one) for one in deeper]
                entry["left_out"] = more
            children.append(entry)
        return {
            "prefix": list(prefix),
            "text": code_to_text(prefix, vocabulary_of(view.retriever)),
            "level": len(prefix),
            "length": view.identifiers.length,
            "documents": view.count(inside),
            "words": self._words_of(view, prefix, inside) if prefix else [],
            "children": children,
            "left_out": left,
        }

    def _below(self, view: View, level: int, node: int, limit: int) -> tuple[list[int], dict[str, int]]:
        """The largest living children of a node in order of token, and the counts of the others."""
        trie = view.identifiers.trie()
        inside = trie.children_of(level, node)
        nodes = np.arange(inside.start, inside.stop)
        if not len(nodes):
            return [], {"nodes": 0, "documents": 0}
        bounds = np.append(nodes, inside.stop)
        for deeper in trie.below[level + 1 :]:
            bounds = deeper[bounds]
        counts = np.diff(view.before[bounds])
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] > 0]
        kept = np.sort(order[:limit])
        rest = order[limit:]
        return nodes[kept].tolist(), {"nodes": len(rest), "documents": int(counts[rest].sum())}

    def _short(self, view: View, level: int, node: int) -> dict[str, Any]:
        trie = view.identifiers.trie()
        token = int(trie.tokens[level][node])
        inside = trie.documents_of(level, node)
        vocabulary = vocabulary_of(view.retriever)
        name = "end" if token == END else code_to_text([token], vocabulary)
        return {"token": token, "name": name, "documents": view.count(inside)}

    def _entry(self, view: View, level: int, node: int, prefix: tuple[int, ...]) -> dict[str, Any]:
        short = self._short(view, level, node)
        inside = view.identifiers.trie().documents_of(level, node)
        end = short["token"] == END or level + 1 == view.identifiers.length
        return short | {"end": end, "words": self._words_of(view, (*prefix, short["token"]), inside)}

    def _words_of(self, view: View, prefix: tuple[int, ...], inside: slice) -> list[str]:
        count = view.count(inside)
        with self._lock:
            known = self._words.get(prefix)
            if known is not None and known[0] == count:
                self._words.move_to_end(prefix)
                return known[1]
        words = view.labels.of(view.identifiers.rows[inside], self._usual(view))
        with self._lock:
            self._words[prefix] = (count, words)
            while len(self._words) > KEPT:
                self._words.popitem(last=False)
        return words

    def _usual(self, view: View) -> Counter[str]:
        """Document frequencies of words in a sample of the whole index, recomputed when its size changes."""
        count = len(view.retriever)
        if self._background is None or not 0.8 < (count + 1) / (self._background[0] + 1) < 1.25:
            self._background = count, view.labels.background()
        return self._background[1]

    def _documents(self, view: View, prefix: tuple[int, ...], offset: int, limit: int) -> dict[str, Any]:
        inside = view.identifiers.trie().documents_of(len(prefix) - 1, _node(view, prefix))
        positions = np.flatnonzero(view.alive[inside])[offset : offset + limit] + inside.start
        found = view.retriever.documents.rows(view.identifiers.rows[positions].tolist())
        codes = [view.identifiers.code_at(int(position)) for position in positions]
        vocabulary = vocabulary_of(view.retriever)
        rest = "" if tree_levels(view.retriever) is None else "-…"
        return {
            "prefix": list(prefix),
            "text": code_to_text(prefix, vocabulary),
            "total": view.count(inside),
            "documents": [
                {
                    "doc_id": document.doc_id,
                    "title": document.title,
                    "text": document.text[:400],
                    "code": list(code),
                    "code_text": code_to_text(code, vocabulary) + rest,
                }
                for document, code in zip(found, codes, strict=True)
            ],
        }


def _node(view: View, prefix: tuple[int, ...]) -> int:
    trie = view.identifiers.trie()
    if len(prefix) > trie.length:
        raise ApiError(404, f"codes have {trie.length} tokens", "Give a shorter prefix.")
    node = trie.node_of(prefix)
    if node < 0 or not view.count(trie.documents_of(len(prefix) - 1, node)):
        raise ApiError(404, "no code has this prefix")
    return node


def _neighbours(retriever: Retriever, doc_id: str, limit: int) -> dict[str, Any]:
    row = retriever.row_of().get(doc_id)
    if row is None:
        raise ApiError(404, "unknown document", "It may have been deleted; check the doc_id.")
    part: Any = coded(retriever)
    identifiers: Identifiers = part.identifiers
    at = int(np.flatnonzero(identifiers.rows == row)[0])
    alive = np.flatnonzero(retriever.rows.alive[identifiers.rows])
    place = int(np.searchsorted(alive, at))
    # Codes are sorted, so a document shares no longer prefix than one that is nearer on the same side.
    near = np.concatenate([alive[max(0, place - limit) : place], alive[place + 1 : place + 1 + limit]])
    own = np.asarray(identifiers.codes[at])
    length = int(np.count_nonzero(own >= 0))
    same = np.cumprod(np.asarray(identifiers.codes[near]) == own, axis=1).sum(axis=1)
    shared = np.minimum(same, length)
    order = [int(one) for one in np.lexsort((np.abs(near - at), -shared))[:limit] if shared[one]]
    found = retriever.documents.rows(identifiers.rows[near[order]].tolist()) if order else []
    words, tree = vocabulary_of(retriever), tree_levels(retriever)
    entry = [
        {
            "doc_id": document.doc_id,
            "title": document.title,
            "text": document.text[:400],
            "code_text": code_to_text(identifiers.code_at(int(near[one])), words, tree),
            "shared": int(shared[one]),
        }
        for one, document in zip(order, found, strict=True)
    ]
    return {"doc_id": doc_id, "length": length, "neighbours": entry}
