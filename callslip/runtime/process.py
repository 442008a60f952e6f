"""This process: how its threads wait, and when its signals are handled. Both depend on the import of torch.

**Threads.** OpenMP's threads spin while they wait for each other. If another process keeps a core busy, they wait for
that core, and a search takes 2 to 70 times as long. The command line therefore makes OpenMP's threads sleep, before
torch is imported (afterwards it is too late), and short texts are encoded by one thread, since a second would hardly
help.

**Signals.** Ctrl-C raises an exception wherever the program happens to be. During the import of a library with compiled
code (torch), that can abort the whole process, without a message on how to continue. Handlers are therefore deferred
while a module is being imported.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SHORT_SPIN = "10000"
"""Spin count in training, some tens of microseconds: training has many short parallel sections, and sleeping after each
made a step 25% slower."""
Handler = Callable[[int, FrameType | None], object]
AGAIN = 0.05
"""Seconds until a deferred signal is delivered again."""

_lock = threading.Lock()
_inside = 0
_before = 0


def prepare_threads(*, searching: bool) -> bool:
    """Set how OpenMP's threads wait, unless the user has; returns whether it was in time."""
    if any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        return True
    if "torch" in sys.modules:
        return False
    if searching:
        os.environ["OMP_WAIT_POLICY"] = "passive"
    else:
        os.environ["GOMP_SPINCOUNT"] = SHORT_SPIN
    return True


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread for a block. Blocks may overlap in several threads; the last to exit restores it."""
    import torch

    global _inside, _before
    with _lock:
        if not _inside:
            _before = torch.get_num_threads()
        _inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                torch.set_num_threads(_before)


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
