"""Output of the command line. Documents, manifests and file names are untrusted and must not control the terminal:
control characters, escape sequences and bidirectional overrides are made visible or escaped.

There are two layers. Commands print with `echo` and `say`, which block all escape sequences. Below them, `guard`
filters standard output and standard error, so that anything else, such as a library's output, can at most set colours.
"""

from __future__ import annotations

import json
import re
import sys
from typing import IO, Any

import typer

# C0 except tab and newline, DEL and C1; bidirectional marks, overrides and isolates; line and paragraph separators;
# invisible annotations and tags; lone surrogates.
_DANGEROUS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\U000e0000-\U000e007f"
    "\ud800-\udfff"
)
_ANY = re.compile(f"[{_DANGEROUS}]")
_ANY_IN_LINE = re.compile(f"[\t\n{_DANGEROUS}]")
_ANY_BUT_COLOURS = re.compile(f"(\x1b\\[[0-9;]*m)|[{_DANGEROUS}]")
SHOWN = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """Text, possibly of several lines, without terminal control characters."""
    return _ANY.sub(SHOWN, text)


def printable(text: str) -> str:
    """Text for part of a line, such as a doc_id, also without tabs and newlines."""
    return _ANY_IN_LINE.sub(SHOWN, text)


def to_json(value: Any, indent: int | None = None) -> str:
    """Lossless JSON, with terminal control characters escaped as \\uXXXX."""

    def escaped(found: re.Match[str]) -> str:
        return json.dumps(found[0])[1:-1]

    return _ANY.sub(escaped, json.dumps(value, indent=indent, ensure_ascii=False))


def echo(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print text, optionally styled."""
    typer.secho(clean(text), err=err, nl=nl, **style)


def say(text: str) -> None:
    """Print a message to standard error; standard output is for results."""
    echo(text, err=True)


class Guarded:
    """A text stream that passes colours, and filters all other terminal control characters."""

    def __init__(self, stream: IO[str]) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        self.unguarded.write(_ANY_BUT_COLOURS.sub(lambda found: found[1] or SHOWN, text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


def guard() -> None:
    """Install the filter on standard output and standard error."""
    if not isinstance(sys.stdout, Guarded):
        sys.stdout = Guarded(sys.stdout)  # type: ignore[assignment]
    if not isinstance(sys.stderr, Guarded):
        sys.stderr = Guarded(sys.stderr)  # type: ignore[assignment]
