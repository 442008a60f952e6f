"""This process: how its threads wait, when its signals are handled, what memory it has used, the versions of its
packages, and where it keeps its caches.

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
from pathlib import Path
from types import FrameType

from callslip import __version__

PACKAGES = ("numpy", "torch", "transformers", "ir-measures", "pytrec-eval-terrier", "bm25s")
"""Packages that can affect results."""
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


def peak_memory() -> int | None:
    """The most bytes that this process has held so far; None where the system does not tell."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux; `getrusage` would also count the process that started this one
        found = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return 1024 * int(found[0]) if found else None
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can affect results, and the platform: from package metadata, since
    importing torch for its version would take seconds."""
    import platform
    from importlib import metadata

    found = {"callslip": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["platform"] = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    return found


def cache_folder() -> Path | None:
    """The folder of vectors, exported encoders, converted weights and generated queries: $CALLSLIP_CACHE, or the user's
    cache folder; None if the cache is disabled (CALLSLIP_CACHE=off)."""
    stated = os.environ.get("CALLSLIP_CACHE", "")
    if stated.lower() == "off":
        return None
    if stated:
        return Path(stated).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callslip"
