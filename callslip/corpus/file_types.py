"""Files that are not text by themselves, as outlines: PDF and DOCX (extra `files`), Jupyter notebooks; and the types of
files that are not read."""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Callable
from typing import Any

from callslip.corpus.sections import Outline, markdown

INSTALL = "Install the libraries that read them: pip install 'callslip[files]'"
MAX_UNPACKED = 256 * 2**20
"""Maximum size of a DOCX file's parts in bytes, unpacked: a few kilobytes can hold gigabytes."""
MAX_CHARACTERS = 64 * 2**20
"""Maximum number of characters that are read from one PDF."""

TYPES = {
    "image": ".avif .bmp .gif .heic .ico .jpeg .jpg .png .psd .svg .tif .tiff .webp",
    "audio or video": ".aac .avi .flac .m4a .mkv .mov .mp3 .mp4 .mpeg .ogg .opus .wav .webm .wmv",
    "archive": ".7z .bz2 .gz .jar .rar .tar .tgz .xz .zip .zst",
    "table or data, which is a corpus by itself": ".csv .json .jsonl .ndjson .parquet .tsv",
    "office file that is not read": ".doc .epub .key .numbers .odp .ods .odt .pages .ppt .pptx .rtf .xls .xlsx",
}
KINDS = {suffix: kind for kind, suffixes in TYPES.items() for suffix in suffixes.split()}


class SkippedFile(Exception):
    """A file that is not read. `kind` groups such files in the summary, which names each with its `detail`, or only
    their suffixes if they are not `named`."""

    def __init__(self, kind: str, detail: str = "", *, remedy: str = "", named: bool = True) -> None:
        super().__init__(kind)
        self.kind, self.detail, self.remedy, self.named = kind, detail, remedy, named


def other_type(suffix: str) -> SkippedFile:
    """The reason why files with a suffix are not read."""
    remedy = "Save them as PDF or DOCX" if KINDS.get(suffix, "").startswith("office") else ""
    return SkippedFile(KINDS.get(suffix, "type not known"), remedy=remedy, named=False)


def pdf(raw: bytes) -> Outline:
    """A section per page."""
    try:
        import pypdf
        from pypdf.errors import DependencyError, FileNotDecryptedError
    except ImportError:
        raise SkippedFile("PDF", remedy=INSTALL) from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # a page of warnings about each odd file
    outline, length = Outline(), 0
    try:
        reader = pypdf.PdfReader(io.BytesIO(raw))
        if reader.is_encrypted and not reader.decrypt(""):
            raise FileNotDecryptedError
        for number, page in enumerate(reader.pages, start=1):
            text = page.extract_text().replace("\x00", "")
            length += len(text)
            if length > MAX_CHARACTERS:
                raise SkippedFile(f"PDF with more than {MAX_CHARACTERS:,} characters", remedy="Split it")
            outline.page(number, text.encode("utf-8", "replace").decode())
    except SkippedFile:
        raise
    except (FileNotDecryptedError, DependencyError):  # AES without its library: the password would be missing anyway
        raise SkippedFile("encrypted PDF", remedy="Save a copy without its password") from None
    except Exception as error:  # pypdf meets damage with errors of many kinds
        raise SkippedFile("damaged PDF", _said(error), remedy="Open it in a viewer and save it again") from None
    if not length or not any(section.text for section in outline.sections()):
        raise SkippedFile("PDF without text (scanned pages?)", remedy="Run OCR on it first")
    return outline


def docx(raw: bytes) -> Outline:
    """Paragraphs and tables, split at headings."""
    try:
        import docx as library
        from docx.table import Table
    except ImportError:
        raise SkippedFile("DOCX", remedy=INSTALL) from None
    outline = Outline()
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as parts:
            if sum(part.file_size for part in parts.infolist()) > MAX_UNPACKED:
                raise SkippedFile(f"DOCX of more than {MAX_UNPACKED // 2**20} MiB unpacked", remedy="Split it")
        document = library.Document(io.BytesIO(raw))
        outline.title = " ".join((document.core_properties.title or "").split())
        for block in document.iter_inner_content():
            if isinstance(block, Table):
                for row in block.rows:
                    outline.line(" | ".join(_distinct([cell.text.strip() for cell in row.cells])))
                outline.line("")
                continue
            level = _level(block)
            if level is None or not block.text.strip():
                outline.line(block.text)
                outline.line("")
            else:
                outline.heading(level, block.text)
    except SkippedFile:
        raise
    except Exception as error:  # errors of zipfile, lxml and python-docx
        encrypted = raw.startswith(b"\xd0\xcf\x11\xe0")  # an OLE file, which a password makes of a DOCX
        kind, detail = ("encrypted DOCX", "") if encrypted else ("damaged DOCX", _said(error))
        raise SkippedFile(kind, detail, remedy="Open it in a word processor and save a copy") from None
    return outline


def _level(paragraph: Any) -> int | None:
    """The level of a heading; None for other paragraphs."""
    style = paragraph.style.name if paragraph.style is not None else ""
    if style == "Title":
        return 1
    name, _, number = style.rpartition(" ")
    return int(number) + 1 if name == "Heading" and number.isdecimal() else None


def _distinct(cells: list[str]) -> list[str]:
    """The texts of a row's cells without the repetitions that merged cells are read as."""
    return [cell for at, cell in enumerate(cells) if at == 0 or cell != cells[at - 1]]


def notebook(text: str) -> Outline:
    """The Markdown and the code of a Jupyter notebook, split at the headings of the Markdown; outputs are left out."""
    try:
        data = json.loads(text)
        sheets = data.get("worksheets") or [data]  # before version 4
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        lines = []
        for cell in cells:
            source = cell.get("source", cell.get("input", ""))
            source = source if isinstance(source, str) else "".join(source)
            if cell["cell_type"] == "code":
                lines += ["```", source, "```", ""] if source.strip() else []
            elif cell["cell_type"] == "heading":
                lines += [f"{'#' * int(cell.get('level', 1))} {source}", ""]
            else:
                lines += [source, ""]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SkippedFile("damaged notebook", _said(error), remedy="Open it in Jupyter and save it again") from None
    return markdown("\n".join(lines).encode("utf-8", "replace").decode().replace("\x00", ""))


def _said(error: Exception) -> str:
    """What a library says, in a few words."""
    text = " ".join(str(error).split())
    return (text[:77] + "…" if len(text) > 78 else text) or type(error).__name__


BINARY: dict[str, Callable[[bytes], Outline]] = {".pdf": pdf, ".docx": docx}
"""Readers of files that are not text."""
