"""Folders: the kind of corpus that one holds, BEIR folders, and folders of files, whose texts are split at headings and
pages, and long sections by length."""

from __future__ import annotations

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from callslip.corpus.documents import Corpus, Document
from callslip.corpus.file_types import BINARY, SkippedFile, notebook, other_type
from callslip.corpus.lines import Flaw, Intake, printable
from callslip.corpus.queries import judgements_from, queries_from
from callslip.corpus.rows import Columns, read_documents, read_rows
from callslip.corpus.sections import OUTLINES, Outline
from callslip.corpus.sentences import count_words, split_sentences, word_spans
from callslip.errors import BadInput

BEIR = "corpus.jsonl"
"""The file that makes a folder a BEIR folder."""
LOGS = ("interactions.txt", "interactions.csv", "interactions.tsv", "interactions.jsonl")
MAX_WORDS = 200
"""Maximum number of words in a part: about as many as fit in an encoder's 256 tokens."""
MAX_FILE = 256 * 2**20
"""Maximum size of a file in bytes, so that a single one cannot exhaust the memory."""
NOTEBOOK = ".ipynb"
SUFFIXES = (*OUTLINES, NOTEBOOK, *BINARY)
"""The suffixes of files that are read."""
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
SHOWN = 3
"""Maximum number of file names in one line of the tally."""


@dataclass
class Group:
    """Files that were skipped for one reason."""

    remedy: str
    named: bool
    names: list[str] = field(default_factory=list)

    def shown(self) -> str:
        if not self.named:
            suffixes = Counter(PurePosixPath(name).suffix.lower() or "no suffix" for name in self.names)
            return _some([f"{suffix} {count:,}" for suffix, count in suffixes.most_common()])
        return _some(self.names)


@dataclass
class FileTally:
    """What became of the files of a folder: how many were read, in which encodings, and which were skipped, and why."""

    read: int = 0
    encodings: dict[str, list[str]] = field(default_factory=dict)
    """Names of files by encoding, UTF-8 left out."""
    groups: dict[str, Group] = field(default_factory=dict)
    """Files that were skipped, by reason."""

    def add(self, name: str, encoding: str | None) -> None:
        self.read += 1
        if encoding not in (None, UTF8):
            self.encodings.setdefault(str(encoding), []).append(name)

    def skip(self, name: str, why: SkippedFile) -> None:
        group = self.groups.setdefault(why.kind, Group(why.remedy, why.named))
        group.names.append(f"{name} ({why.detail})" if why.detail else name)

    @property
    def skipped(self) -> int:
        return sum(len(group.names) for group in self.groups.values())

    def lines(self) -> list[str]:
        """The counts as lines of text."""
        files = f"{self.read:,} file{'' if self.read == 1 else 's'}"
        said = [f"read {files}, skipped {self.skipped:,}" if self.skipped else f"read {files}"]
        for encoding, names in self.encodings.items():
            said.append(f"  {len(names):,} read as {encoding}: {_some(names)}")
        for kind, group in sorted(self.groups.items(), key=lambda item: -len(item[1].names)):
            said.append(f"  {len(group.names):,} skipped, {kind}: {group.shown()}")
            if group.remedy:
                said.append(f"    {group.remedy}")
        return said


def _some(names: list[str]) -> str:
    more = f", and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


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


def read_beir(folder: str | Path, intake: Intake, columns: Columns | None = None, *, judged: bool = True) -> Corpus:
    """Read a BEIR folder: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, each plain or gzipped. Only documents are
    read if `judged` is false or there are no queries."""
    folder = Path(folder)
    file = find_file(folder, BEIR)
    if file is None:
        raise BadInput(folder, "no corpus.jsonl or corpus.jsonl.gz in this folder", remedy="Give a BEIR folder.")
    corpus = Corpus(read_documents(file, read_rows(file, "jsonl", intake), intake, columns))
    queries = find_file(folder, "queries.jsonl")
    if not judged or not queries:
        return corpus
    corpus.queries = queries_from(queries, intake, "jsonl")
    if (folder / "qrels").is_dir():
        known = {doc_id: doc_id for doc_id in corpus.doc_ids}
        corpus.judgements = judgements_from(folder / "qrels", intake, corpus.queries, known)
    return corpus


def read_folder(
    folder: str | Path, intake: Intake, max_words: int = MAX_WORDS, tally: FileTally | None = None
) -> list[Document]:
    """Documents `relative/path.md#1`, `#2`, … of all readable files under a folder, or of one file.

    Hidden files and folders are ignored, and links to folders are not followed. Files of other types, and files that
    cannot be understood, are counted in `tally` with the reason; one such file alone is an error.
    """
    root, tally = Path(folder), FileTally() if tally is None else tally
    files = [root] if root.is_file() else list(_files(root))
    base = root.parent if root.is_file() else root
    documents: list[Document] = []
    for file in files:
        name = file.relative_to(base).as_posix()
        try:
            found, encoding = file_documents(file, name, max_words)
            documents += found
            tally.add(name, encoding)
        except SkippedFile as why:
            if root.is_file():
                reason = f"{why.kind} ({why.detail})" if why.detail else why.kind
                raise BadInput(printable(file), f"not read: {reason}", remedy=why.remedy and f"{why.remedy}.") from None
            tally.skip(printable(name), why)
        except Flaw as flaw:
            intake.refuse(file, None, flaw)
        except OSError as error:
            intake.refuse(file, None, Flaw(f"cannot be read: {error.strerror}", remedy="Check its permissions"))
    if not documents and not intake.skipped.count:
        reasons = "".join(f"\n  {line.strip()}" for line in tally.lines()[1:])
        raise BadInput(
            printable(folder), f"no file with text in this folder (types: {', '.join(SUFFIXES)}){reasons}",
            remedy="Give a folder of texts, or a corpus file (.jsonl, .csv, .tsv).",
        )  # fmt: skip
    return documents


def _files(root: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(place, name)
            if not name.startswith(".") and (file.is_file() or file.is_symlink()):
                yield file


def file_documents(file: Path, name: str, max_words: int = MAX_WORDS) -> tuple[list[Document], str | None]:
    """The parts of one file as documents `name#1`, `name#2`, …, and the file's encoding, if it is text."""
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise other_type(suffix)
    if printable(name) != name:
        raise Flaw("the file's name is not valid UTF-8", remedy="Rename it")
    about = file.stat()
    if about.st_size > MAX_FILE:
        raise SkippedFile(f"larger than {MAX_FILE // 2**20} MiB", remedy="Split it")
    outline, encoding = _outline(file, suffix)
    sections = outline.sections()
    first = next((section.headings[0] for section in sections if section.headings), "")
    title = outline.title or first or file.stem
    metadata: dict[str, Any] = {
        "path": name,
        "folder": PurePosixPath(name).parent.as_posix(),
        "type": suffix[1:],
        "date": datetime.fromtimestamp(about.st_mtime, UTC).date().isoformat(),
    }
    documents: list[Document] = []
    for section in sections:
        headings = section.headings[1:] if section.headings[:1] == (title,) else section.headings
        shown, known = " > ".join((title, *headings)), metadata
        if section.page is not None:
            shown, known = f"{file.name}, page {section.page}", metadata | {"page": section.page}
        for part in cut(section.text, max_words) or [""]:
            documents.append(Document(f"{name}#{len(documents) + 1}", part, shown, known))
    if not documents:
        raise SkippedFile("empty")
    return documents, encoding


def _outline(file: Path, suffix: str) -> tuple[Outline, str | None]:
    """The outline of a file, and its encoding, if it is text."""
    raw = file.read_bytes()
    if suffix in BINARY:
        return BINARY[suffix](raw), None
    try:
        text, encoding = decoded(raw)
    except NoText:
        raise SkippedFile("binary, whatever its suffix says") from None
    return (notebook if suffix == NOTEBOOK else OUTLINES[suffix])(text), encoding


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


# Text in an unknown encoding: UTF-8, a byte order mark, what the file declares, or what its bytes suggest.


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
