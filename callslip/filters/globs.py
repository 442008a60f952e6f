"""Globs: text with `*` for any characters, for filters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from callslip.errors import BadSetting


@dataclass(frozen=True)
class Glob:
    """Texts that match a pattern in which `*` stands for any characters, `/` included; case counts.

    Nothing else is special: brackets and question marks are common in the names of files.
    """

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise BadSetting(f"the glob {self.pattern!r} is not a text", "Give a text, e.g. 'docs/*'.")

    def __str__(self) -> str:
        return self.pattern

    def matches(self, text: str) -> bool:
        """Whether a whole text matches. Takes the first place of each piece, so it never backtracks."""
        first, *rest = self.pattern.split("*")
        if not rest:
            return text == first
        if not text.startswith(first):
            return False
        last, at = rest.pop(), len(first)
        for piece in rest:
            found = text.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
        return len(text) - len(last) >= at and text.endswith(last)

    def holds(self, texts: Iterable[str]) -> bool:
        """Whether one of a value's text forms matches."""
        return any(map(self.matches, texts))
