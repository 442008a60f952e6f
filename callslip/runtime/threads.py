"""Threads of a search: few, and asleep when there is nothing to do.

OpenMP's threads spin while they wait for each other. Beside another busy process they wait for a core that is taken,
and a search takes 2 to 70 times as long. So the command line tells OpenMP to sleep instead, before torch is loaded
(afterwards it is too late), and short texts are encoded by one thread, which two would hardly hasten.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_SPIN = "10000"
"""Turns of a waiting loop, some tens of microseconds: training has many short parallel parts, and sleeping after each
made a step a quarter longer."""

_lock = threading.Lock()
_inside = 0
_before = 0


def prepare(*, searching: bool) -> bool:
    """Choose how OpenMP's threads wait, unless the user has chosen; says whether it was in time."""
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
def one() -> Iterator[None]:
    """Let torch compute with one thread. Others may be inside at the same time; the last one out restores."""
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
