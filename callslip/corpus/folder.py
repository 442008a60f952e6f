"""Folders: the kind of corpus that one holds; and folders of text files, which are split at their headings, and long
sections by length."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from pathlib import Path

from callslip.corpus.documents import Document
from callslip.corpus.lines import Flaw, Intake, decode, printable
from callslip.corpus.sections import OUTLINES
from callslip.corpus.sentences import count_words, split_sentences, word_spans
from callslip.errors import BadInput

BEIR = "corpus.jsonl"
"""The file that makes a folder a BEIR folder."""
LOGS = ("interactions.txt", "interactions.csv", "interactions.tsv", "interactions.jsonl")
MAX_WORDS = 200
"""Maximum number of words in a part: about as many as fit in an encoder's 256 tokens."""


def folder_format(folder: Path) -> str:
    """The format of a folder, from the files in it: BEIR, an interaction log, or else texts."""
    if find_file(folder, BEIR):
        return "beir"
    return "interactions" if find_log(folder) else "folder"


def find_file(folder: Path, *names: str) -> Path | None:
    """The first of `names` that exists in the folder; a plain file is preferred to a gzipped one."""
    return next(
        (folder / f"{name}{end}" for name in names for end in ("", ".gz") if (folder / f"{name}{end}").is_file()),
        None,
    )


def find_log(folder: Path) -> Path | None:
    """The interaction log in a folder: interactions.*, or RecBole's NAME.inter."""
    named = find_file(folder, *LOGS)
    inter = [path for path in folder.glob("*.inter*") if path.name.removesuffix(".gz").endswith(".inter")]
    return named or min(inter, default=None)


def read_folder(folder: str | Path, intake: Intake, max_words: int = MAX_WORDS) -> list[Document]:
    """Documents `relative/path.md#1`, `#2`, … of all readable files under a folder, or of one file.

    Hidden files and folders are ignored, and links to folders are not followed.
    """
    root = Path(folder)
    files = [root] if root.is_file() else list(_files(root))
    base = root.parent if root.is_file() else root
    documents = []
    for file in files:
        try:
            documents += file_documents(file, file.relative_to(base).as_posix(), max_words)
        except Flaw as flaw:
            intake.refuse(file, None, flaw)
        except OSError as error:
            intake.refuse(file, None, Flaw(f"cannot be read: {error.strerror}", remedy="Check its permissions"))
    if not documents and not files:
        raise BadInput(
            printable(folder), f"no readable file in this folder (supported suffixes: {', '.join(OUTLINES)})",
            remedy="Give a folder of texts, or a corpus file (.jsonl, .csv, .tsv).",
        )  # fmt: skip
    return documents


def _files(root: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(place, name)
            if not name.startswith(".") and file.suffix.lower() in OUTLINES and (file.is_file() or file.is_symlink()):
                yield file


def file_documents(file: Path, name: str, max_words: int = MAX_WORDS) -> list[Document]:
    """The parts of one file as documents `name#1`, `name#2`, …"""
    if printable(name) != name:
        raise Flaw("the file's name is not valid UTF-8", remedy="Rename it")
    outline = OUTLINES[file.suffix.lower()](read_text(file))
    sections = outline.sections()
    first = next((section.headings[0] for section in sections if section.headings), "")
    title = outline.title or first or file.stem
    documents: list[Document] = []
    for section in sections:
        headings = section.headings[1:] if section.headings[:1] == (title,) else section.headings
        for part in cut(section.text, max_words) or [""]:
            doc_id = f"{name}#{len(documents) + 1}"
            documents.append(Document(doc_id, part, " > ".join((title, *headings))))
    return documents


def read_text(file: Path) -> str:
    """Read a whole file as text; a flaw gives the line of the first bad byte."""
    raw = file.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        return decode(raw)
    except Flaw:
        for number, line in enumerate(raw.split(b"\n"), 1):
            try:
                decode(line)
            except Flaw as flaw:
                flaw.line = number
                raise flaw from None
        raise


def cut(text: str, max_words: int) -> list[str]:
    """Split a text into parts of similar size and at most `max_words` words, between paragraphs or sentences."""
    total = count_words(text)
    if total <= max_words:
        return [text] if total else []
    target = total / -(-total // max_words)  # parts of similar size, so that the last one is not a few words long
    parts: list[str] = []
    current, size = "", 0
    for joint, piece, words in _pieces(text, max_words):
        if current and (size + words > max_words or size >= target):
            parts.append(current)
            current, size = "", 0
        current = f"{current}{joint}{piece}" if current else piece
        size += words
    return [*parts, current] if current else parts


def _pieces(text: str, max_words: int) -> Iterator[tuple[str, str, int]]:
    """(separator before the piece, piece, word count): paragraphs; long ones as sentences or runs of words."""
    for paragraph in text.split("\n\n"):
        words = count_words(paragraph)
        if 0 < words <= max_words:
            yield "\n\n", paragraph.strip("\n"), words
            continue
        joint = "\n\n"
        for sentence in split_sentences(paragraph) if words else ():
            spans = word_spans(sentence)
            for start in range(0, len(spans), max_words):
                run = spans[start : start + max_words]
                yield joint, sentence[run[0][0] : run[-1][1]], len(run)
                joint = " "
