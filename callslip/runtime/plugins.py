"""Parts that other packages bring: methods, encoders, makers of codes and corpus formats, by entry points.

A package names them in its pyproject.toml, and they are then known by their names, as callslip's own are:

    [project.entry-points."callslip.methods"]
    overlap = "my_package.overlap:Overlap"

Only packages that are installed can bring anything, and nothing of them is imported before it is used.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from callslip.errors import CallslipError

METHODS, ENCODERS, CODES, FORMATS = "callslip.methods", "callslip.encoders", "callslip.codes", "callslip.formats"


@dataclass(frozen=True)
class Plugin:
    """A part of another package."""

    name: str
    where: str
    """The object, as module:name."""
    package: str
    version: str

    def load(self) -> Any:
        """Import the object."""
        entry = metadata.EntryPoint(self.name, self.where, "")
        try:
            return entry.load()
        except Exception as error:  # another package's module may raise anything when it is imported
            reason = str(error).strip().splitlines()
            raise CallslipError(
                f"the plugin {self.name!r} of the package {self.package} {self.version} cannot be imported "
                f"({type(error).__name__}: {reason[0] if reason else ''})",
                f"Install it again, or remove it: pip uninstall {self.package}.",
            ) from None


@functools.cache
def plugins(group: str) -> dict[str, Plugin]:
    """The installed plugins of a group, by name."""
    found: dict[str, Plugin] = {}
    for entry in metadata.entry_points(group=group):
        package = (entry.dist.name, entry.dist.version) if entry.dist is not None else ("", "")
        found[entry.name] = Plugin(entry.name, entry.value, *package)
    return found


def package_of(cls: type) -> dict[str, str]:
    """Where a class comes from: its module and name and, if it was installed, its package and version."""
    found = {"class": f"{cls.__module__}:{cls.__qualname__}"}
    top = cls.__module__.partition(".")[0]
    for name in metadata.packages_distributions().get(top, []):
        return found | {"package": name, "version": metadata.version(name)}
    return found
