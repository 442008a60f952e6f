"""A look over the shoulder of a search: somebody may watch each level as it is written, and may end the search.

A server uses it to stop searches that nobody waits for any more, and to tell where a document fell out of the beam. A
search that nobody watches pays one look at a context variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Watch = Callable[[int, "Tensor", "Tensor"], None]
"""Called with a level, the nodes that were chosen there [queries, beams] (-1: none) and the scores of their prefixes.
Whatever it raises ends the search."""

_watch: ContextVar[Watch | None] = ContextVar("callslip_search_watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Let `watch` see every level of the searches inside, in this thread or task."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def current() -> Watch | None:
    """Who watches the searches of this thread or task."""
    return _watch.get()
