"""Lines of text from a file or a gzip file, and the one policy for what cannot be taken.

Parsers raise `Flaw`: what is wrong, without knowing where. `Intake` knows the file and the line. It turns a
flaw into a `BadInput`, or, under `skip_bad`, leaves the line out and counts it.
"""

from __future__ import annotations

import codecs
import gzip
import io
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from callslip.corpus.documents import ID_CHARACTERS, SkippedLines
from callslip.errors import BadInput

T = TypeVar("T")
R = TypeVar("R")

MAX_LINE = 256 * 2**20
"""Bytes in the longest line that is read: a file without line ends must not take all the memory there is."""

SKIP = "pass --skip-bad (skip_bad=True) to leave such lines out and count them."
GZIP_MAGIC = b"\x1f\x8b"


class Flaw(Exception):
    """What is wrong with one record. `Intake` adds the file and the line."""

    def __init__(self, problem: str, *, field: str | None = None, remedy: str = "Correct the line") -> None:
        super().__init__(problem)
        self.problem, self.field, self.remedy = problem, field, remedy
        self.line: int | None = None  # set where a whole file is one record


class Intake:
    """The bad-input policy of one load: refuse, or leave out and count in `skipped`."""

    def __init__(self, skip_bad: bool = False) -> None:
        self.skip_bad = skip_bad
        self.skipped = SkippedLines()

    def refuse(self, path: str | Path, line: int | None, flaw: Flaw) -> None:
        """Raise the flaw as a `BadInput`, or count it."""
        remedy = f"{flaw.remedy}, or {SKIP}"
        error = BadInput(printable(path), flaw.problem, line=line or flaw.line, field=flaw.field, remedy=remedy)
        if not self.skip_bad:
            raise error
        self.skipped.add(error.problem)

    def each(
        self, path: str | Path, records: Iterable[tuple[int, T]], parse: Callable[[T], R]
    ) -> Iterator[tuple[int, R]]:
        """(line, parsed record) for every record that parses; the others are refused or counted."""
        for line, record in records:
            try:
                parsed = parse(record)
            except Flaw as flaw:
                self.refuse(path, line, flaw)
                continue
            yield line, parsed

    def lines(self, path: str | Path, *, keep_ends: bool = False) -> Iterator[tuple[int, str]]:
        """(line number from 1, text) of each good line, without its line end unless `keep_ends`."""
        number = 0
        with open_bytes(path) as stream:
            while True:
                number += 1
                try:
                    raw = stream.readline(MAX_LINE + 1)
                    if not raw:
                        return
                    if len(raw) > MAX_LINE:
                        _drop_rest_of_line(stream)
                        raise Flaw(f"the line is longer than {MAX_LINE} bytes", remedy="Break it up")
                    if number == 1:
                        raw = raw.removeprefix(codecs.BOM_UTF8)
                    text = decode(raw)
                except Flaw as flaw:
                    self.refuse(path, number, flaw)
                    continue
                except (EOFError, zlib.error, OSError) as error:
                    # Nothing can be read past this point, so what was read is all there is.
                    self.refuse(path, number, _unreadable(error))
                    return
                del raw  # a long line is held once while its consumer works
                yield number, text if keep_ends else text.rstrip("\r\n")


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a file for reading; gzip is known by its first bytes, so a wrong suffix does no harm."""
    try:
        stream: IO[bytes] = Path(path).open("rb")  # noqa: SIM115 (the caller closes it)
    except (OSError, ValueError) as error:
        raise BadInput(printable(path), _reason(error), remedy="Check the path and its permissions.") from None
    try:
        start = stream.peek(2)[:2]  # type: ignore[attr-defined]
    except OSError as error:
        stream.close()
        raise BadInput(printable(path), _reason(error), remedy="Check the path and its permissions.") from None
    if start == GZIP_MAGIC:
        # GzipFile closes only what it opened itself; the buffer makes short lines fast.
        stream.close()
        return io.BufferedReader(gzip.open(path, "rb"), 2**16)  # type: ignore[type-var, return-value]
    if str(path).endswith(".gz") and start:
        stream.close()
        raise BadInput(printable(path), "named .gz, but it is not gzip", remedy="Compress it again, or rename it.")
    return stream


def decode(raw: bytes) -> str:
    """Bytes as text: UTF-8 without NUL."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Flaw(
            f"not valid UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1}",
            remedy="Convert the file to UTF-8",
        ) from None
    if "\x00" in text:
        raise Flaw(f"a NUL character at position {text.index(chr(0)) + 1}")
    return text


def check_text(value: Any, field: str) -> str:
    """A value that must be text. JSON escapes can smuggle in what `decode` refuses, hence the second look."""
    if not isinstance(value, str):
        raise Flaw(f"must be text, not {kind_of(value)}", field=field)
    if "\x00" in value:
        raise Flaw("contains a NUL character", field=field)
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Flaw(
                f"contains a lone surrogate, U+{ord(value[error.start]):04X}, which is no character",
                field=field,
            ) from None
    return value


def check_id(value: Any, field: str) -> str:
    """A value that names something: text that is not blank, or a number, which becomes its text."""
    if isinstance(value, float) and math.isfinite(value):
        value = str(int(value)) if value.is_integer() else repr(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    elif not isinstance(value, str):
        raise Flaw(f"must be an id (text or a number), not {kind_of(value)}", field=field)
    if not value.strip():
        raise Flaw("the id is empty", field=field)
    if len(value) > ID_CHARACTERS:
        raise Flaw(f"the id has {len(value):,} characters; {ID_CHARACTERS} are allowed", field=field)
    return check_text(value, field)


def check_value(value: Any, field: str) -> Any:
    """Any JSON value, with all text in it good and all numbers finite, so that it can be written again."""
    if isinstance(value, str):
        return check_text(value, field)
    if isinstance(value, float) and not math.isfinite(value):
        raise Flaw("not a finite number", field=field)
    if isinstance(value, list):
        return [check_value(part, field) for part in value]
    if isinstance(value, dict):
        return {sys.intern(check_text(key, field)): check_value(part, field) for key, part in value.items()}
    return value


def kind_of(value: Any) -> str:
    """The JSON word for a value's type, as the reader of a message knows it."""
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def shown(value: str, width: int = 80) -> str:
    """A value as it may stand in a message: quoted, and short."""
    return repr(value if len(value) <= width else value[: width - 1] + "…")


def printable(path: str | Path) -> str:
    """A path that can be printed: file names need not be valid UTF-8."""
    return os.fspath(path).encode("utf-8", "replace").decode("utf-8")


def _drop_rest_of_line(stream: IO[bytes]) -> None:
    while (piece := stream.readline(2**20)) and not piece.endswith(b"\n"):
        pass


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder, where a file is expected"
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def _unreadable(error: Exception) -> Flaw:
    if isinstance(error, EOFError):
        return Flaw("the gzip file is truncated", remedy="Fetch it again")
    if isinstance(error, (zlib.error, gzip.BadGzipFile)):
        return Flaw(f"the gzip file is damaged ({error})", remedy="Fetch it again")
    return Flaw(_reason(error), remedy="Check the disk")
