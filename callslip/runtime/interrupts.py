"""Signals that wait until no library is being loaded.

Ctrl-C raises an exception wherever the program happens to be. Inside the loading of a library that is partly compiled
code (torch) that can end the whole process with an abort, and nobody is told how to go on.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object]
AGAIN = 0.05
"""Seconds until a signal that came too early is given again."""


def outside_imports(handler: Handler) -> Handler:
    """The handler, called when no import is under way but those that were when this was called."""
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
    """How many frames of the import system are on the stack."""
    found = 0
    while frame is not None:
        found += frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    return found
