"""Words and sentences of plain text, by regular expressions alone."""

from __future__ import annotations

import itertools
import re
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callslip.corpus.documents import Document

_NO_SPACES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # kana and Han have no spaces, so each character is a word
_WORD = re.compile(rf"[{_NO_SPACES}]|[^\s{_NO_SPACES}]+")

# The lookbehind makes a run of full stops a single candidate.
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+\s++|[。！？]++[」』”’)]*+\s*+")
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*|\n(?=[^\S\n]*(?:[-*•]|\d+[.)])[^\S\n])")
_OPENER = re.compile(r"[\"'“‘«(\[]*+(\w+)")
_BEFORE = re.compile(r"[\w.]*$")

_ABBREVIATIONS = """
    mr mrs ms dr prof st mt gen col sgt capt lt rev hon gov sen rep pres fig figs eq eqs ref refs sec ch vol
    pp eds cf vs viz e.g i.e eg ie approx ca resp
"""
_NEVER_LAST = frozenset(_ABBREVIATIONS.split())
"""Abbreviations before a name, a number or an example, which never end a sentence."""

_BEFORE_NUMBERS = frozenset(
    ("no", "nos", "p", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec")
)
"""Words that are abbreviations only before a number: `No. 5`, but not `He said no. Then he left.`"""

_CLOSERS = """
    al etc inc ltd co corp bros jr sr dept est univ u.s u.k u.n e.u a.m p.m ph.d b.sc m.sc
"""
_SOMETIMES_LAST = frozenset(_CLOSERS.split())
"""Abbreviations that may end a sentence: they do if a common first word follows."""

_STARTERS = """
    the this that these those a an it its he she they we you i there here in on at for from with by as if when
    while after before since although though however moreover furthermore therefore thus but and or so yet our
    their his her my your to what which who how why where
"""
_USUAL_FIRST = frozenset(_STARTERS.split())


def word_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of each word: a run without spaces, or one character of a script without spaces."""
    return [match.span() for match in _WORD.finditer(text)]


def count_words(text: str) -> int:
    return len(text.split()) if text.isascii() else len(_WORD.findall(text))


def first_words(text: str, count: int) -> str:
    """The first `count` words of the text."""
    if text.isascii() and len(text) < 2 * count:  # a word takes at least two characters, so the text is short enough
        return text
    end = 0
    for match in islice(_WORD.finditer(text), count):
        end = match.end()
    return text[:end]


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order, each on one line.

    A full stop ends a sentence if a space follows, the next word could start a sentence, and the word before is
    not an abbreviation or initial. Blank lines and list items end sentences too.
    """
    sentences = []
    for paragraph in _PARAGRAPH.split(text):
        start = 0
        for match in _END.finditer(paragraph):
            if _ends(paragraph, match):
                sentences.append(paragraph[start : match.end()])
                start = match.end()
        sentences.append(paragraph[start:])
    return [line for sentence in sentences if (line := " ".join(sentence.split()))]


def _ends(text: str, match: re.Match[str]) -> bool:
    mark = match[0].rstrip()
    if mark[0] in "。！？" or text[match.start() - 1 : match.start()].isspace():
        return True  # " . " occurs in tokenised text, which is often lowercased
    following = _OPENER.match(text, match.end())
    opener = following[1] if following else ""
    if opener[:1].islower():
        return False
    if mark[0] != "." or mark.startswith(".."):
        return True
    word = _BEFORE.search(text, max(0, match.start() - 20), match.start())
    before = word[0] if word else ""
    lower = before.lower()
    if lower in _NEVER_LAST or (lower in _BEFORE_NUMBERS and opener[:1].isdigit()):
        return False
    initial = len(before) == 1 and before.isalpha() and before.isupper()
    if initial or lower in _SOMETIMES_LAST:
        return opener.lower() in _USUAL_FIRST
    return True


def passages(document: Document, most: int) -> list[str]:
    """At most `most` passages of a document: runs of its sentences, about equally many each, after the title. A
    document of one passage has none: the whole text is that already."""
    sentences = split_sentences(document.text)
    count = min(most, len(sentences))
    if count < 2:
        return []
    ends = [round(len(sentences) * part / count) for part in range(count + 1)]
    runs = (" ".join(sentences[start:end]) for start, end in itertools.pairwise(ends))
    return [f"{document.title} {run}".strip() for run in runs]
