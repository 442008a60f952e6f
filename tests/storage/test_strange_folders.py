"""Folders made by hand, whose every digest fits: refused by name when they are opened, and by `check`; no traceback."""

from __future__ import annotations

import shutil

import pytest
import strange_folders
from word_codes import make_index

from callslip import api
from callslip.corpus.documents import Corpus, Document
from callslip.errors import CallslipError
from callslip.methods import make

TINY = {"encoder": "scratch", "epochs": 1, "decoder_width": 32, "width": 4}
CHANGES = dict(strange_folders.changes())


def words(path):
    documents = [Document(f"d{n}", f"the text number {n} of words", "t", {"year": 2000 + n}) for n in range(30)]
    make("bm25").fit(Corpus(documents)).save(path)


def codes(path):
    documents = [Document(f"d{n}", f"the text number {n} of words", "t", {"year": 2000 + n}) for n in range(30)]
    make("dsi-semantic", TINY).fit(Corpus(documents)).save(path)


def plain(path):
    make_index(path, {f"d{n}": f"text {n}" for n in range(30)})


@pytest.mark.parametrize("kind", [words, codes, plain])
def test_strange_folders_are_refused(kind, memory):
    kind(memory / "first")
    api.check(memory / "first")
    opened = []
    for name, change in CHANGES.items():
        shutil.copytree(memory / "first", memory / "index", symlinks=True)
        change(memory / "index")
        loaded = True
        try:
            index = api.load(memory / "index")
            index.search("the text number 3 of words", k=30)
            index.close()
        except CallslipError as error:
            loaded = False
            assert error.remedy or error.problem, name
        try:
            api.check(memory / "index")
        except CallslipError as error:
            assert error.exit_code in (2, 3), name
        else:
            assert loaded, f"{name}: check passes, and it cannot be opened"
            opened.append(name)
        shutil.rmtree(memory / "index")
    # A method that has no files of a kind is not harmed by strange ones.
    assert all("every" in name for name in opened), opened
    assert len(CHANGES) >= 80


def test_inspect_names_files_that_make_no_sense(memory, monkeypatch):
    from typer.testing import CliRunner

    from callslip.cli import app, inspect  # noqa: F401

    codes(memory / "first")
    for name, change in CHANGES.items():
        shutil.copytree(memory / "first", memory / "index", symlinks=True)
        change(memory / "index")
        done = CliRunner().invoke(app, ["inspect", str(memory / "index")])
        assert done.exit_code == 0 or isinstance(done.exception, CallslipError), (name, done.exception)
        shutil.rmtree(memory / "index")
