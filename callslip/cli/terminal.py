"""All that the command line prints. Documents, manifests and file names come from anybody, and must not drive the
terminal: control characters, escape sequences and bidirectional overrides are made visible or escaped.

Two layers. Commands print by `echo` and `say`, which let no escape sequence through. Below them, `guard` puts a filter
on standard output and standard error, so that what a library prints, or a line that was forgotten, can set colours at
most.
"""

from __future__ import annotations

import json
import re
import sys
from typing import IO, Any

import typer

# C0 but tab and newline, DEL and C1; bidirectional marks, overrides and isolates; separators of lines and paragraphs;
# annotations and tags, which are invisible; lone surrogates, which are no characters.
_DANGEROUS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb\U000e0000-\U000e007f"
    "\ud800-\udfff"
)
_ANY = re.compile(f"[{_DANGEROUS}]")
_ANY_IN_LINE = re.compile(f"[\t\n{_DANGEROUS}]")
_ANY_BUT_COLOURS = re.compile(f"(\x1b\\[[0-9;]*m)|[{_DANGEROUS}]")
SHOWN = "\N{REPLACEMENT CHARACTER}"


def clean(text: str) -> str:
    """Text of several lines without anything that a terminal would obey."""
    return _ANY.sub(SHOWN, text)


def printable(text: str) -> str:
    """Text for the middle of a line, such as a doc_id: neither tabs nor newlines."""
    return _ANY_IN_LINE.sub(SHOWN, text)


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that reads back as it was, with everything that a terminal would obey written as \\uXXXX."""

    def escaped(found: re.Match[str]) -> str:
        return json.dumps(found[0])[1:-1]

    return _ANY.sub(escaped, json.dumps(value, indent=indent, ensure_ascii=False))


def echo(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print text, in a style if one is given."""
    typer.secho(clean(text), err=err, nl=nl, **style)


def say(text: str) -> None:
    """A line for the person at the terminal; standard output is for results."""
    echo(text, err=True)


class Guarded:
    """A text stream that lets colours through, and nothing else that a terminal would obey."""

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
    """Put the filter on both streams of this process."""
    if not isinstance(sys.stdout, Guarded):
        sys.stdout = Guarded(sys.stdout)  # type: ignore[assignment]
    if not isinstance(sys.stderr, Guarded):
        sys.stderr = Guarded(sys.stderr)  # type: ignore[assignment]
