"""The memory of this process."""

from __future__ import annotations

import sys
from pathlib import Path


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
