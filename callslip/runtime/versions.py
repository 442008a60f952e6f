"""Versions of Python and of the packages that can affect results, and the platform."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from callslip import __version__

PACKAGES = ("numpy", "torch", "transformers", "ir-measures", "pytrec-eval-terrier", "bm25s")


def versions() -> dict[str, str]:
    """Versions from package metadata, since importing torch for its version would take seconds."""
    found = {"callslip": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["platform"] = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    return found
