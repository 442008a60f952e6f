"""Observers of a search: a callback sees each level as it is decoded, and may abort the search.

The server uses it to abort searches whose client has gone, and to find out where a document fell out of the beam.
Without an observer, the overhead is one lookup of a context variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Watch = Callable[[int, "Tensor", "Tensor"], None]
"""Callback with a level, the nodes chosen at it [queries, beams] (-1: none) and the scores of their prefixes. An
exception aborts the search."""

OBSERVER: ContextVar[Watch | None] = ContextVar("callslip_search_watch", default=None)
"""The observer of the searches in this thread or task, or None."""


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Call `watch` at every level of the searches inside the block, in this thread or task."""
    token = OBSERVER.set(watch)
    try:
        yield
    finally:
        OBSERVER.reset(token)
