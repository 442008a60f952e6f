"""Timeout for locks held by another process, and notification of the wait.

A command waits for minutes and prints a message; a request to a server has a deadline. Both use the same locks, so the
timeout belongs to the caller's context, not to the lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from callslip.errors import CallslipError

STEP = 0.05
"""Seconds between two attempts to take a lock."""
QUIET = 1.0
"""Seconds of waiting before a message is printed."""


class Locked(CallslipError):
    """Another process held a lock beyond the caller's timeout. Nothing was changed."""


@dataclass(frozen=True)
class Patience:
    seconds: float = 30.0
    tell: Callable[[str], None] = lambda text: None


_current: ContextVar[Patience] = ContextVar("patience", default=Patience())  # noqa: B039  (it is frozen)


@contextmanager
def patience(seconds: float, tell: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Set the timeout of every lock taken inside the block; `tell` gets a message if the wait exceeds a second."""
    token = _current.set(Patience(seconds, tell))
    try:
        yield
    finally:
        _current.reset(token)


def wait_for(take: Callable[[], bool], what: str) -> None:
    """Call `take` until it succeeds; raises `Locked` after the timeout."""
    current, began, announced = _current.get(), time.monotonic(), False
    while not take():
        waited = time.monotonic() - began
        if waited >= current.seconds:
            raise Locked(
                f"{what}: another process has been writing for {current.seconds:.0f} seconds",
                "Nothing was changed. Try again when it has finished.",
            )
        if waited >= QUIET and not announced:
            current.tell(f"waiting for another process that writes to {what}")
            announced = True
        time.sleep(STEP)
