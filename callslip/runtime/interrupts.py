"""Signal handlers that are deferred while a module is being imported.

Ctrl-C raises an exception wherever the program happens to be. During the import of a library with compiled code
(torch), that can abort the whole process, without a message on how to continue.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object]
AGAIN = 0.05
"""Seconds until a deferred signal is delivered again."""


def outside_imports(handler: Handler) -> Handler:
    """The handler, deferred while any import started after this call is in progress."""
    before = _imports(sys._getframe())

    def careful(number: int, frame: FrameType | None) -> None:
        if _imports(frame) > before:
            later = threading.Timer(AGAIN, _thread.interrupt_main, (number,))
            later.daemon = True
            later.start()
        else:
            handler(number, frame)

    return careful


def _imports(frame: FrameType | None) -> int:
    """Number of frames of the import system on the stack."""
    found = 0
    while frame is not None:
        found += frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    return found
