"""Lines of text from a plain or gzipped file, and the policy for bad lines.

Parsers raise `Flaw`, which says what is wrong but not where. `Intake` knows the file and the line: it turns a
flaw into a `BadInput` or, with `skip_bad`, skips the line and counts it.
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
from callslip.corpus.remote import ZSTD_MAGIC, is_url, open_url, without_secrets, zstd_reader
from callslip.errors import BadInput

T = TypeVar("T")
R = TypeVar("R")

MAX_LINE = 256 * 2**20
"""Maximum length of a line in bytes, so that a file without line breaks cannot exhaust the memory."""

SKIP = "pass --skip-bad (skip_bad=True) to skip and count bad lines."
GZIP_MAGIC = b"\x1f\x8b"


class Flaw(Exception):
    """A problem with one record. `Intake` adds the file and the line."""

    def __init__(self, problem: str, *, field: str | None = None, remedy: str = "Correct the line") -> None:
        super().__init__(problem)
        self.problem, self.field, self.remedy = problem, field, remedy
        self.line: int | None = None  # set if the record is a whole file


class Intake:
    """The bad-input policy of one load: raise, or skip and count in `skipped`."""

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
        """(line, parsed record) for every record that parses; bad records raise or are counted."""
        for line, record in records:
            try:
                parsed = parse(record)
            except Flaw as flaw:
                self.refuse(path, line, flaw)
                continue
            yield line, parsed

    def lines(self, path: str | Path, *, keep_ends: bool = False) -> Iterator[tuple[int, str]]:
        """(line number from 1, text) of each valid line, without its line break unless `keep_ends`."""
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
                    # Nothing past this point can be read: the lines so far are all there are.
                    self.refuse(path, number, _unreadable(error))
                    return
                del raw  # do not hold a long line twice while the consumer works on it
                yield number, text if keep_ends else text.rstrip("\r\n")


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a file, or the file behind a URL, for reading; gzip and Zstandard are detected by their magic bytes,
    whatever the suffix."""
    try:  # the caller closes it
        stream: IO[bytes] = open_url(str(path)) if is_url(path) else Path(path).open("rb")  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise BadInput(printable(path), _reason(error), remedy="Check the path and its permissions.") from None
    try:
        start = stream.peek(4)[:4]  # type: ignore[attr-defined]
    except OSError as error:
        stream.close()
        raise BadInput(printable(path), _reason(error), remedy="Check the path and its permissions.") from None
    if start[:2] == GZIP_MAGIC:
        if is_url(path):
            return io.BufferedReader(gzip.GzipFile(fileobj=stream), 2**16)  # type: ignore[type-var, return-value]
        # GzipFile closes only files it opened itself; the buffer speeds up short lines.
        stream.close()
        return io.BufferedReader(gzip.open(path, "rb"), 2**16)  # type: ignore[type-var, return-value]
    if start == ZSTD_MAGIC:
        return zstd_reader(stream)
    for suffix, name in ((".gz", "gzip"), (".zst", "Zstandard")):
        if str(path).endswith(suffix) and start:
            stream.close()
            problem = f"the suffix is {suffix}, but the file is not {name}"
            raise BadInput(printable(path), problem, remedy="Compress it again, or rename it.")
    return stream


def decode(raw: bytes) -> str:
    """Decode bytes as UTF-8 without NUL characters."""
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
    """Check that a value is valid text. JSON escapes can produce characters that `decode` rejects."""
    if not isinstance(value, str):
        raise Flaw(f"must be text, not {kind_of(value)}", field=field)
    if "\x00" in value:
        raise Flaw("contains a NUL character", field=field)
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Flaw(
                f"contains a lone surrogate, U+{ord(value[error.start]):04X}, which is not a valid character",
                field=field,
            ) from None
    return value


def check_id(value: Any, field: str) -> str:
    """Check that a value is an id: non-blank text, or a number, which is converted to text."""
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
    """Check that a JSON value has only valid text and finite numbers, so that it can be written back as JSON."""
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
    """The JSON name of a value's type, for messages."""
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
    """A value for a message: quoted, and truncated to `width` characters."""
    return repr(value if len(value) <= width else value[: width - 1] + "…")


def printable(path: str | Path) -> str:
    """A path that can be printed, since a file name need not be valid UTF-8; a URL without passwords."""
    if is_url(path):
        path = without_secrets(str(path))
    return os.fspath(path).encode("utf-8", "replace").decode("utf-8")


def _drop_rest_of_line(stream: IO[bytes]) -> None:
    while (piece := stream.readline(2**20)) and not piece.endswith(b"\n"):
        pass


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "expected a file, found a folder"
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def _unreadable(error: Exception) -> Flaw:
    if isinstance(error, EOFError):
        return Flaw("the gzip file is truncated", remedy="Download it again")
    if isinstance(error, (zlib.error, gzip.BadGzipFile)):
        return Flaw(f"the gzip file is corrupt ({error})", remedy="Download it again")
    return Flaw(_reason(error), remedy="Check the disk")
