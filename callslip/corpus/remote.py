"""Files behind URLs, such as s3://bucket/corpus.jsonl.gz, by fsspec (extra `remote`), and Zstandard.

A URL is read because the user gave it. One that comes from the manifest of an index is not, without the user's consent.
"""

from __future__ import annotations

import io
import re
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

from callslip.errors import BadInput, CallslipError, MissingExtra
from callslip.runtime import consent

URL = re.compile(r"[a-z][a-z0-9+.-]+(::[a-z][a-z0-9+.-]+)*://", re.IGNORECASE)
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BUFFER = 1 << 20
CHECK = "Check the address, and your credentials for it."


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
