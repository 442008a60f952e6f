"""User-facing errors.

Every message says what is wrong, where, and what to do about it. The command line prints it without a traceback and
exits with the error's `exit_code`; any other exception is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class CallslipError(Exception):
    """Base class of user-facing errors: a problem and, if there is one, its remedy."""

    exit_code = 2

    def __init__(self, problem: str, remedy: str = "") -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}\n  {remedy}" if remedy else problem)


class BadInput(CallslipError):
    """An invalid input file. The message gives the file and, if known, line and field."""

    def __init__(
        self,
        path: str | Path,
        problem: str,
        *,
        line: int | None = None,
        field: str | None = None,
        remedy: str = "",
    ) -> None:
        self.path, self.line, self.field = str(path), line, field
        where = self.path if line is None else f"{self.path}:{line}"
        what = problem if field is None else f"field {field!r}: {problem}"
        super().__init__(f"{where}: {what}", remedy)


class BadSetting(CallslipError):
    """An invalid value of a setting, option or argument."""


COMPARED, LONGEST = 500, 64
"""Names that a mistyped one is compared with, and characters of each: a hint must cost less than a search."""


def closest(name: str, known: Iterable[str], n: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names that are most like a mistyped one, best first. Of very many only the likeliest are looked at:
    those of about the same length that begin alike."""
    import difflib
    import heapq
    import os.path

    names, name = list(known), name[:LONGEST]
    if len(names) > COMPARED:
        near = (one for one in names if one[:1] == name[:1] and abs(len(one) - len(name)) <= 2)
        names = heapq.nlargest(COMPARED, near, key=lambda one: len(os.path.commonprefix([one, name])))  # noqa: RUF071
    shown = {one[:LONGEST]: one for one in names}
    return [shown[one] for one in difflib.get_close_matches(name, shown, n=n, cutoff=cutoff)]


class UnknownName(CallslipError):
    """An unknown name of a method, encoder, measure, setting or format."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = closest(name, names)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        super().__init__(f"unknown {kind} {name!r}", f"{hint}Known: {', '.join(names)}.")
        self.kind, self.name = kind, name


class MissingExtra(CallslipError):
    """An optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional dependency", f"Install it: pip install 'callslip[{extra}]'")
        self.extra = extra


class Unsupported(CallslipError):
    """An operation that the method does not support; the remedy names an alternative."""


class NotAnIndex(CallslipError):
    """A folder that is not a saved index, or has a format that this version cannot read."""


class IndexCorrupt(CallslipError):
    """A saved index whose files do not match its manifest."""

    exit_code = 3

    def __init__(self, path: str | Path, problem: str, remedy: str = "") -> None:
        super().__init__(f"{path}: {problem}", remedy or "Restore the folder from a copy, or fit the index again.")
        self.path = str(path)


class TrainingFailed(CallslipError):
    """Training failed: collapsed codes, or a loss that is not finite."""

    exit_code = 4


class TrainingStopped(CallslipError):
    """Training was stopped on request, after saving its state."""

    def __init__(self, problem: str, remedy: str = "", *, signal: int = 2) -> None:
        super().__init__(problem, remedy)
        self.signal = signal
        self.exit_code = 128 + signal  # the shell's convention for a process ended by a signal
