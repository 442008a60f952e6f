"""Text in an unknown encoding: UTF-8, a byte order mark, what the file declares, or what its bytes suggest."""

from __future__ import annotations

import codecs
import re

UTF8 = "utf-8"
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins with the mark of UTF-16, so it comes first
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
CANDIDATES = (
    "cp1252", "cp1250", "cp1251", "koi8_r", "cp1253", "cp1254", "cp1255", "cp1256", "shift_jis", "euc_jp", "gb18030",
    "big5", "euc_kr",
)  # fmt: skip
"""Encodings that are guessed: one or two for each script. With all 90 of Python's, short texts are guessed wrong."""
SAMPLE = 2**16
"""Number of bytes that a guess is made from: lines with a byte that is not ASCII."""
CONTROLS = re.compile("[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f\x80-\x84\x86-\x9f]")
MOST_CONTROLS = 0.005
"""Share of control characters above which bytes are no text in an encoding of one byte, where anything can be read."""
_DECLARED = re.compile(
    rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w.:-]{1,40})"""
    rb"""|<\?xml[^>]{0,200}encoding\s*=\s*["']([\w.:-]{1,40})""",
    re.IGNORECASE,
)


class NoText(Exception):
    """Bytes that are no text in any encoding."""


def decoded(raw: bytes) -> tuple[str, str]:
    """The text of a whole file, and the name of its encoding."""
    mark = next((name for mark, name in MARKS if raw.startswith(mark)), None)
    for name in (mark or UTF8, *declared(raw)):
        text = _attempt(raw, name)
        if text is not None and "\x00" not in text:
            return text, UTF8 if name == "utf-8-sig" else name
    if b"\x00" in raw:
        raise NoText
    for name in (*guesses(raw), "cp1252", "latin-1"):
        text = _attempt(raw, name)
        if text is not None and len(CONTROLS.findall(text)) <= MOST_CONTROLS * len(text):
            return text, name
    raise NoText


def declared(raw: bytes) -> list[str]:
    """The encoding that an HTML or XML file says it has; none otherwise."""
    found = _DECLARED.search(raw[:2048])
    if found is None:
        return []
    name = (found[1] or found[2]).decode("ascii").lower()
    # As browsers do: who declares Latin-1 has written Windows-1252.
    return ["cp1252"] if name in ("iso-8859-1", "latin1", "us-ascii", "ascii") else [name]


def guesses(raw: bytes) -> list[str]:
    """Encodings that the bytes suggest, likeliest first; none without charset-normalizer."""
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return []
    sample = b"\n".join(line for line in raw[: 16 * SAMPLE].split(b"\n") if not line.isascii())[:SAMPLE]
    found = from_bytes(sample or raw[:SAMPLE], cp_isolation=list(CANDIDATES))
    # Of equal ones Windows-1252 is by far the most frequent: French reads well in Windows-1250, too.
    ranked = sorted((one.chaos, -one.coherence, CANDIDATES.index(_first(one.could_be_from_charset))) for one in found)
    return [CANDIDATES[place] for _, _, place in ranked]


def _first(names: list[str]) -> str:
    """Of encodings that give the same text, the first candidate."""
    return next(name for name in CANDIDATES if name in names)


def _attempt(raw: bytes, encoding: str) -> str | None:
    try:
        return raw.decode(encoding)
    except (UnicodeError, LookupError):
        return None
