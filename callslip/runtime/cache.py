"""Where the user's caches are: vectors, exported encoders, converted weights, generated queries."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """$CALLSLIP_CACHE, or the user's cache folder; None if the cache is disabled (CALLSLIP_CACHE=off)."""
    stated = os.environ.get("CALLSLIP_CACHE", "")
    if stated.lower() == "off":
        return None
    if stated:
        return Path(stated).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callslip"
