"""Encodings are detected and said; PDF, DOCX and notebooks are read; what is not read is counted with its reason."""

from __future__ import annotations

import builtins

import own_files
import pytest

from callslip.corpus import file_types, load_corpus
from callslip.corpus import folder as folders
from callslip.corpus.file_types import SkippedFile, docx, notebook, pdf
from callslip.corpus.folder import NoText, decoded
from callslip.corpus.sections import Section
from callslip.errors import BadInput

TEXTS = {
    "cp1252": "Le remboursement est effectué après réception; délai: cinq jours.",
    "cp1250": "Zwrot towaru jest bezpłatny w ciągu trzydziestu dni, również za granicą.",
    "cp1251": "Возврат товара бесплатный в течение тридцати дней.",
    "koi8_r": "Возврат товара бесплатный в течение тридцати дней.",
    "cp1253": "Η επιστροφή είναι δωρεάν εντός τριάντα ημερών.",
    "shift_jis": "返品は三十日以内であれば無料です。お問い合わせください。",
    "gb18030": "三十天内可以免费退货，请联系客服。",
    "euc_kr": "삼십일 이내에 무료로 반품할 수 있습니다.",
    "utf-8": "Größe, größer, am größten",
    "utf-8-sig": "Größe, größer, am größten",
    "utf-16": "Größe, größer, am größten",
    "utf-32": "Größe, größer, am größten",
}


@pytest.mark.parametrize("encoding", TEXTS)
def test_encodings_are_detected(encoding):
    text, found = decoded(TEXTS[encoding].encode(encoding))
    assert (text, found) == (TEXTS[encoding], "utf-8" if encoding == "utf-8-sig" else encoding)


def test_the_guess_is_made_from_the_lines_that_need_one():
    raw = b"plain ASCII line\n" * 1000 + TEXTS["cp1251"].encode("cp1251")
    assert decoded(raw)[0].endswith(TEXTS["cp1251"])


def test_html_declares_its_encoding():
    page = '<html><head><meta http-equiv="x" content="text/html; charset=koi8-r"></head><body>да</body>'
    assert decoded(page.encode("koi8_r")) == (page, "koi8-r")
    assert folders.declared(b"<meta charset=ISO-8859-1>") == ["cp1252"]
    assert folders.declared(b'<?xml version="1.0" encoding="cp1250"?>') == ["cp1250"]
    assert decoded(b"<meta charset=nonsense>\xe9")[0].endswith("é")


def test_without_a_library_western_text_is_assumed(monkeypatch):
    without(monkeypatch, "charset_normalizer")
    assert decoded("Größe “so”".encode("cp1252")) == ("Größe “so”", "cp1252")
    assert decoded(b"A line of text with one odd byte \x81 in it." + b" And more text." * 20)[1] == "latin-1"


@pytest.mark.parametrize("raw", [b"a\x00b", bytes(range(1, 256)), b"\xff\xfe\x00", b"\x93\x01\x02\x03\xe9" * 9])
def test_what_is_no_text(raw):
    with pytest.raises(NoText):
        decoded(raw)


def test_pages_of_a_pdf(tmp_path):
    outline = pdf(own_files.pdf(["One \\(1\\)", "", "Three"]))
    assert outline.sections() == [Section((), "One (1)", 1), Section((), "Three", 3)]
    corpus = load_corpus(own_files.own_folder(tmp_path / "own"))
    page = next(document for document in corpus if "kettle" in document.text)
    assert (page.doc_id, page.title, page.metadata["page"]) == ("manual.pdf#2", "manual.pdf, page 2", 2)
    assert load_corpus(tmp_path / "own" / "manual.pdf").doc_ids == ["manual.pdf#1", "manual.pdf#2"]


def test_docx_headings_and_tables():
    assert docx(own_files.docx()).sections() == [
        Section((), "Before all headings."),
        Section(("Returns",), "Parcels go back to Leipzig."),
        Section(("Returns", "Fees"), "letter | 2 euros\nparcel | 5 euros"),
    ]


def test_notebooks():
    assert notebook(own_files.notebook()).sections() == [
        Section(("Churn",), "We measure churn.\n\n```\n# not a heading\nprint(rate)\n```"),
        Section(("Churn", "Result"), "A tenth leaves."),
    ]
    old = '{"worksheets": [{"cells": [{"cell_type": "heading", "level": 2, "source": "A"}, {"cell_type": "code", '
    old += '"input": ["x = 1"]}]}]}'
    assert notebook(old).sections() == [Section(("A",), "```\nx = 1\n```")]


@pytest.mark.parametrize(
    ("name", "raw", "kind"),
    [
        ("a.pdf", b"%PDF-1.4 junk", "damaged PDF"),
        ("a.pdf", b"", "damaged PDF"),
        ("a.pdf", own_files.pdf(["x"] * 3)[:300], "damaged PDF"),
        ("a.pdf", own_files.pdf(["", ""]), "PDF without text (scanned pages?)"),
        ("a.docx", b"junk", "damaged DOCX"),
        ("a.docx", b"\xd0\xcf\x11\xe0junk", "encrypted DOCX"),
        ("a.docx", own_files.archive(), "damaged DOCX"),
        ("a.ipynb", b"{", "damaged notebook"),
        ("a.ipynb", b"[]", "damaged notebook"),
        ("a.ipynb", b'{"cells": [3]}', "damaged notebook"),
        ("a.ipynb", b'{"cells": []}', "empty"),
        ("a.md", b" \n", "empty"),
        ("a.xlsx", b"PK", "office file that is not read"),
        ("a.py", b"pass", "type not known"),
        ("a", b"text", "type not known"),
    ],
)
def test_what_is_skipped_and_why(tmp_path, name, raw, kind):
    (tmp_path / name).write_bytes(raw)
    (tmp_path / "good.txt").write_text("good")
    corpus = load_corpus(tmp_path)
    assert corpus.doc_ids == ["good.txt#1"]
    assert (corpus.files.read, list(corpus.files.groups)) == (1, [kind])
    (tmp_path / "good.txt").unlink()
    with pytest.raises(BadInput, match="no file with text in this folder") as refusal:
        load_corpus(tmp_path)
    assert kind in refusal.value.problem


def test_an_encrypted_pdf_is_named_with_its_remedy(tmp_path):
    (tmp_path / "a.pdf").write_bytes(own_files.encrypted_pdf(["secret"]))
    with pytest.raises(BadInput, match=r"a\.pdf: not read: encrypted PDF\n  Save a copy without its password\."):
        load_corpus(tmp_path / "a.pdf")


def test_limits(monkeypatch, tmp_path):
    monkeypatch.setattr(file_types, "MAX_UNPACKED", 10_000)
    packed = own_files.archive(20_000)
    assert len(packed) < 1000
    with pytest.raises(SkippedFile, match="unpacked"):
        docx(packed)
    monkeypatch.setattr(file_types, "MAX_CHARACTERS", 5)
    with pytest.raises(SkippedFile, match="more than 5 characters"):
        pdf(own_files.pdf(["four", "four"]))
    monkeypatch.setattr(folders, "MAX_FILE", 3)
    (tmp_path / "big.txt").write_text("four")
    with pytest.raises(BadInput, match="larger than"):
        load_corpus(tmp_path / "big.txt")


def test_without_the_extra_the_files_are_named_with_the_remedy(monkeypatch, tmp_path):
    own_files.own_folder(tmp_path / "own")
    (tmp_path / "own" / "letter.docx").write_bytes(own_files.docx())
    without(monkeypatch, "pypdf", "docx")
    corpus = load_corpus(tmp_path / "own")
    said = corpus.files.lines()
    assert "  1 skipped, PDF: manual.pdf" in said
    assert "  1 skipped, DOCX: letter.docx" in said
    assert said.count("    Install the libraries that read them: pip install 'callslip[files]'") == 2


def test_the_summary_names_what_was_read_and_skipped(tmp_path):
    folder = own_files.own_folder(tmp_path / "own")
    for number in range(5):
        (folder / f"{number}.txt").write_bytes(b"")
    assert load_corpus(folder).files.lines() == [
        "read 5 files, skipped 7",
        "  1 read as cp1252: alt.txt",
        "  5 skipped, empty: 0.txt, 1.txt, 2.txt, and 2 more",
        "  1 skipped, image: .png 1",
        "  1 skipped, archive: .zip 1",
    ]


def without(monkeypatch, *names):
    """Let imports of packages fail."""
    found = builtins.__import__

    def refused(name, *rest):
        if name.partition(".")[0] in names:
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refused)
