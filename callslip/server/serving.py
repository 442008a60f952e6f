"""A served index: its retriever, which a newer generation may replace, and changes of its documents.

Searches never wait for a new generation: it is opened and warmed up in parallel, then replaces the old one between two
batches (hot swap). Running requests keep the old one until they are done.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from callslip.api import load
from callslip.errors import BadSetting, CallslipError
from callslip.index.retriever import Retriever
from callslip.server import overview
from callslip.server.errors import ApiError
from callslip.server.explorer import Explorer
from callslip.server.health import health
from callslip.storage import folder as folders

T = TypeVar("T")


class Served:
    """A served index. A request must read `retriever` only once, because a hot swap may replace it."""

    def __init__(self, name: str, path: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.name, self.path, self.settings = name, path, dict(settings or {})
        self._writing = threading.RLock()
        self.swaps = 0
        self.retriever = self._open()
        self.explorer = Explorer()
        self._kept: dict[str, tuple[Any, Any]] = {}
        self._keeping = {kind: threading.Lock() for kind in ("health", "facets", "examples", "histories", "labels")}

    def _open(self) -> Retriever:
        retriever = load(self.path)
        known = {name: value for name, value in self.settings.items() if name in retriever.search_settings}
        retriever.adjust(known)
        if len(retriever):
            with suppress(CallslipError):  # a method that reads no text needs no warm-up
                retriever.search("warm", k=1)  # the first search loads encoder, engine and trie
        return retriever

    @property
    def newer(self) -> bool:
        """Whether the folder contains another generation or another index than the one in use, or other files of the
        same generation, as after a restore from a copy."""
        home = self.retriever.living.home
        held = home.manifest
        try:
            found = folders.read_manifest(self.path, verify=False)
        except CallslipError:  # the folder is being replaced right now
            return False
        return (found["index"], found["generation"]) != (held["index"], held["generation"]) or home.store.detached

    def renew(self) -> bool:
        """Switch to the folder's current contents if they are newer. Waits for our own writes, which are already in
        use."""
        with self._writing:
            if not self.newer:
                return False
            self.retriever = self._open()
            self.swaps += 1
        gc.collect()  # the old retriever keeps files and connections open until it is collected
        return True

    def health(self) -> dict[str, Any]:
        """Metrics and plots, which scan all codes."""
        return self._once("health", lambda retriever: health(self.name, retriever))

    def facets(self) -> dict[str, Any]:
        """Metadata fields with few values, which scans all metadata. While another request counts them after a change,
        those of the state before."""
        return self._once("facets", overview.facets, wait=False)

    def examples(self) -> list[str]:
        """Queries to begin with."""
        return self._once("examples", overview.examples, wait=False)

    def histories(self) -> list[list[dict[str, str]]]:
        """Histories to begin with, where queries are histories of items."""
        return self._once("histories", overview.histories, wait=False)

    def listed(self, contains: str, offset: int, limit: int) -> dict[str, Any]:
        """Documents in order, or those whose title or doc_id contains a text."""
        if not contains.strip():
            return overview.listed(self.retriever, offset, limit)
        known = self._once("labels", overview.labels, wait=False)
        return overview.containing(self.retriever, known, contains, offset, limit)

    def _once(self, kind: str, compute: Callable[[Retriever], Any], *, wait: bool = True) -> Any:
        """Something that is computed once for every state of the index, by one thread. With `wait`, others wait for it;
        otherwise only if there is no earlier one."""
        retriever = self.retriever.refresh(now=True)
        state = (id(retriever), retriever.living.version, retriever.living.generation)
        known, lock = self._kept.get(kind), self._keeping[kind]
        if known is not None and known[0] == state:
            return known[1]
        if not lock.acquire(blocking=wait or known is None):
            assert known is not None
            return known[1]
        try:
            known = self._kept.get(kind)
            if known is None or known[0] != state:
                known = self._kept[kind] = state, compute(retriever)
            return known[1]
        finally:
            lock.release()

    def change(self, do: Callable[[Retriever], T]) -> T:
        """Change documents. If the index was replaced meanwhile, the change is applied to its successor."""
        with self._writing:
            try:
                return do(self.retriever)
            except ApiError:
                raise
            except CallslipError:
                if not self.renew():
                    raise
                return do(self.retriever)


def serve_all(paths: Iterable[Path], settings: Mapping[str, Any] | None = None) -> dict[str, Served]:
    """Open indexes under the names of their folders; equal names get a number. Each setting must exist in at least one
    of them."""
    found: dict[str, Served] = {}
    for path in paths:
        base = path.resolve().name or "index"
        name, number = base, 2
        while name in found:
            name, number = f"{base}-{number}", number + 1
        found[name] = Served(name, path, settings)
    for setting in settings or {}:
        if not any(setting in served.retriever.search_settings for served in found.values()):
            raise BadSetting(f"none of the indexes has a search setting {setting!r}", "See `callslip methods`.")
    return found
