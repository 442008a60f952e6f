"""Threads of a search: few, and sleeping instead of spinning while idle.

OpenMP's threads spin while they wait for each other. If another process keeps a core busy, they wait for that core, and
a search takes 2 to 70 times as long. The command line therefore makes OpenMP's threads sleep, before torch is imported
(afterwards it is too late), and short texts are encoded by one thread, since a second would hardly help.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_SPIN = "10000"
"""Spin count in training, some tens of microseconds: training has many short parallel sections, and sleeping after each
made a step 25% slower."""

_lock = threading.Lock()
_inside = 0
_before = 0


def prepare(*, searching: bool) -> bool:
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
def one() -> Iterator[None]:
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
