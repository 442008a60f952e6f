"""Headings and the text under them, from pages, Markdown, reStructuredText, HTML and plain text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser

from callslip.corpus.lines import Flaw


@dataclass(frozen=True, slots=True)
class Section:
    """Text under a path of headings, outermost first."""

    headings: tuple[str, ...]
    text: str
    page: int | None = None


class Outline:
    """Collects headings and lines in reading order into sections."""

    def __init__(self) -> None:
        self.title = ""
        self._path: list[tuple[int, str]] = []
        self._lines: list[str] = []
        self._sections: list[Section] = []

    def heading(self, level: int, title: str) -> None:
        self._close()
        while self._path and self._path[-1][0] >= level:
            self._path.pop()
        self._path.append((level, " ".join(title.split())))

    def line(self, text: str) -> None:
        self._lines.append(text)

    def page(self, number: int, text: str) -> None:
        """A page as a section of its own."""
        self._close()
        self._sections.append(Section((), text.strip(), number))

    def take_back(self) -> str:
        """Remove and return the last line, which turned out to be a heading."""
        return self._lines.pop()

    def _close(self) -> None:
        text = "\n".join(self._lines).strip()
        self._sections.append(Section(tuple(title for _, title in self._path), text))
        self._lines = []

    def sections(self) -> list[Section]:
        """All sections with text, and headings without text or subsections."""
        self._close()
        kept = []
        for section, following in zip(self._sections, [*self._sections[1:], None]):
            parent = following is not None and following.headings[: len(section.headings)] == section.headings
            if section.text or (section.headings and not parent):
                kept.append(section)
        return kept


def plain(text: str) -> Outline:
    outline = Outline()
    outline.line(text)
    return outline


_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*$")


def markdown(text: str) -> Outline:
    """Outline by `#` and underlined headings outside of code fences, and the `title` of the front matter."""
    outline = Outline()
    lines = text.split("\n")
    if lines[0].rstrip() == "---" and "---" in (line.rstrip() for line in lines[1:200]):
        end = 1 + [line.rstrip() for line in lines[1:200]].index("---")
        for line in lines[1:end]:
            if line.startswith("title:"):
                outline.title = line.removeprefix("title:").strip().strip("\"'")
        lines = lines[end + 1 :]
    fence, previous = "", ""
    for line in lines:
        line = line.rstrip("\r")
        opened = _FENCE.match(line)
        if opened and (not fence or opened[1].startswith(fence)):
            fence = "" if fence else opened[1]
        elif not fence and (atx := _ATX.match(line)):
            outline.heading(len(atx[1]), _without_closing_hashes(atx[2] or ""))
            previous = ""
            continue
        elif not fence and previous.strip() and (rule := _SETEXT.match(line)) and not _FENCE.match(previous):
            outline.heading(1 if rule[1][0] == "=" else 2, outline.take_back())
            previous = ""
            continue
        outline.line(line)
        previous = line
    return outline


def _without_closing_hashes(title: str) -> str:
    bare = title.rstrip().rstrip("#")
    return bare if not bare or bare[-1] in " \t" else title


_RULE = re.compile(r"([!-/:-@\[-`{-~])\1+$")


def rst(text: str) -> Outline:
    """Outline by underlined titles; levels follow the order in which the underline characters first appear."""
    outline = Outline()
    kinds: list[tuple[str, bool]] = []
    lines = [line.rstrip() for line in text.split("\n")]
    number = 0
    while number < len(lines):
        overline = bool(_RULE.match(lines[number])) and number + 2 < len(lines) and lines[number + 2] == lines[number]
        at = number + 1 if overline else number
        title = lines[at].strip()
        under = lines[at + 1] if at + 1 < len(lines) else ""
        if title and not _RULE.match(title) and _RULE.match(under) and len(under) >= min(len(title), 4):
            kind = (under[0], overline)
            if kind not in kinds:
                kinds.append(kind)
            outline.heading(kinds.index(kind) + 1, title)
            number = at + 2
        else:
            outline.line(lines[number])
            number += 1
    return outline


_SILENT = {"script", "style", "template", "noscript", "svg", "iframe", "object"}
_BLOCK_NAMES = """
    address article aside blockquote body caption dd details div dl dt fieldset figcaption figure footer form
    header hr li main nav ol option p pre section summary table tbody td tfoot th thead tr ul
"""
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_HEADING = re.compile(r"h[1-6]$")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.outline = Outline()
        self.silent = 0
        self.open_title: list[str] | None = None
        self.open_heading: list[str] | None = None
        self.run: list[str] = []

    def flush(self) -> None:
        if words := " ".join("".join(self.run).split()):
            self.outline.line(words)
            self.outline.line("")
        self.run = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self.silent += 1
        elif tag == "title" and not self.silent:
            self.open_title = []
        elif _HEADING.match(tag):
            self.flush()
            self.open_heading = []
        elif tag in _BLOCKS:
            self.flush()
        elif tag == "br":
            self.run.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT:
            self.silent = max(0, self.silent - 1)
        elif tag == "title" and self.open_title is not None:
            self.outline.title = self.outline.title or " ".join("".join(self.open_title).split())
            self.open_title = None
        elif _HEADING.match(tag) and self.open_heading is not None:
            words = " ".join("".join(self.open_heading).split())
            self.open_heading = None
            if words:
                self.outline.heading(int(tag[1]), words)
        elif tag in _BLOCKS:
            self.flush()

    def handle_data(self, data: str) -> None:
        if self.silent:
            return
        for place in (self.open_title, self.open_heading):
            if place is not None:
                place.append(data)
                return
        self.run.append(data)


def html(text: str) -> Outline:
    """Outline by the headings and blocks of a page, without scripts and styles."""
    page = _Page()
    try:
        page.feed(text)
        page.close()
    except AssertionError as error:  # html.parser's reaction to a malformed declaration
        raise Flaw(f"invalid HTML ({error})") from None
    page.handle_endtag("title")
    if page.open_heading:
        page.handle_endtag("h1")
    page.flush()
    return page.outline


OUTLINES: dict[str, Callable[[str], Outline]] = {
    ".txt": plain,
    ".text": plain,
    ".md": markdown,
    ".markdown": markdown,
    ".rst": rst,
    ".html": html,
    ".htm": html,
}
"""The outline parser of each file suffix."""
