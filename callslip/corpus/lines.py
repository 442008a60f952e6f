"""Files as bytes and lines of text: plain, compressed (gzip, Zstandard), or behind a URL such as
s3://bucket/corpus.jsonl.gz, by fsspec (extra `remote`); and the policy for bad lines.

A URL is read because the user gave it. One that comes from the manifest of an index is not, without the user's consent.

Parsers raise `Flaw`, which says what is wrong but not where. `Intake` knows the file and the line: it turns a
flaw into a `BadInput` or, with `skip_bad`, skips the line and counts it.
"""

from __future__ import annotations

import codecs
import gzip
import io
import math
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from callslip.corpus.documents import ID_CHARACTERS, SkippedLines
from callslip.errors import BadInput, CallslipError, MissingExtra
from callslip.runtime import consent

T = TypeVar("T")
R = TypeVar("R")

MAX_LINE = 256 * 2**20
"""Maximum length of a line in bytes, so that a file without line breaks cannot exhaust the memory."""

SKIP = "pass --skip-bad (skip_bad=True) to skip and count bad lines."
GZIP_MAGIC = b"\x1f\x8b"
URL = re.compile(r"[a-z][a-z0-9+.-]+(::[a-z][a-z0-9+.-]+)*://", re.IGNORECASE)
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BUFFER = 1 << 20
CHECK = "Check the address, and your credentials for it."


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


# Files behind URLs, and Zstandard.


def is_url(source: object) -> bool:
    """Whether a source is the URL of a file; a `Path` never is."""
    return isinstance(source, str) and URL.match(source) is not None


def without_secrets(url: str) -> str:
    """A URL for messages and records: without user, password, and the query, which may be a signature."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def file_name(source: str | Path) -> PurePath:
    """The name of a file, which may be behind a URL."""
    if not is_url(source):
        return PurePath(Path(source).name)
    url = str(source)
    return PurePosixPath(PurePosixPath(urlsplit(url).path or urlsplit(url).netloc).name)


def open_url(url: str) -> IO[bytes]:
    """Open the file behind a URL for reading; it can be sought in where the protocol allows that."""
    shown = without_secrets(url)
    if not consent.may_download(url):
        raise CallslipError(
            f"{shown} comes from the manifest of an index, and reading it may send your credentials",
            f"If you trust this address, name it in the environment variable {consent.HUB}.",
        )
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingExtra("reading a corpus from a URL", "remote") from None
    try:
        system, path = url_to_fs(url)
        return _Guarded.buffered(system.open(path, "rb"))
    except ImportError as error:  # says which package the protocol needs
        raise BadInput(shown, f"its protocol needs another package ({_said(error, url)})",
                       remedy="Install that package beside callslip[remote].") from None  # fmt: skip
    except ValueError as error:
        raise BadInput(shown, f"cannot be read: {_said(error, url)}",
                       remedy="Use a protocol of fsspec, such as file, https, s3, gs or abfs.") from None  # fmt: skip
    except FileNotFoundError:
        raise BadInput(shown, "no such file", remedy=CHECK) from None
    except Exception as error:  # each protocol has errors of its own
        raise BadInput(shown, f"cannot be read: {_said(error, url)}", remedy=CHECK) from None


def zstd_reader(stream: IO[bytes]) -> IO[bytes]:
    """What a stream holds that was compressed by Zstandard."""
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("reading .zst files", "remote") from None
    return _Guarded.buffered(_Frames(stream, zstandard.ZstdDecompressor()))


class _Frames:
    """The contents of Zstandard's frames, one after the other. A frame that ends too early is an error, which
    zstandard's own reader would not notice."""

    def __init__(self, stream: IO[bytes], decompressor: Any) -> None:
        self._stream, self._decompressor = stream, decompressor
        self._frame: Any = None
        self._compressed = self._contents = b""

    def read(self, size: int) -> bytes:
        while not self._contents:
            if self._frame is not None and self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
            data, self._compressed = self._compressed or self._stream.read(BUFFER), b""
            if not data:
                if self._frame is not None:
                    raise OSError(None, "the Zstandard file is truncated")
                return b""
            self._frame = self._frame or self._decompressor.decompressobj()
            self._contents = self._frame.decompress(data)
        found, self._contents = self._contents[:size], self._contents[size:]
        return found

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self._stream.close()


class _Guarded(io.RawIOBase):
    """A stream of another library, whose errors while reading become those of the system."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @classmethod
    def buffered(cls, stream: Any) -> IO[bytes]:
        return io.BufferedReader(cls(stream), BUFFER)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._stream.seekable())

    def readinto(self, target: Any) -> int:
        try:
            data = self._stream.read(len(target))
        except OSError:
            raise
        except Exception as error:  # of the protocol, or of Zstandard
            raise OSError(None, str(error).splitlines()[0] if str(error) else type(error).__name__) from None
        target[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def _said(error: Exception, url: str) -> str:
    """The first line of an error, without the secrets of the URL."""
    lines = str(error).replace(url, without_secrets(url)).splitlines()
    return lines[0] if lines else type(error).__name__


def local(source: str | Path) -> str | Path:
    """A source as a path, unless it is a URL."""
    return source if is_url(source) else Path(source)
