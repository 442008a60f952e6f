"""The saved folder: whole or not at all, and every damage is seen and named."""

from __future__ import annotations

import json
import os

import pytest

from callslip.corpus.documents import Document
from callslip.errors import CallslipError, IndexCorrupt, NotAnIndex
from callslip.storage.folder import MANIFEST, check_writable, read_manifest, write_index, write_manifest
from callslip.storage.home import Home
from callslip.storage.rows import NewRow

ABOUT = {"method": "test", "settings": {}}


def fill(folder):
    (folder / "a.bin").write_bytes(os.urandom(10_000))
    (folder / "part").mkdir()
    (folder / "part" / "b.json").write_text('{"x": 1}')


def rows(*names):
    return [(NewRow(Document(name, f"text of {name}")), True) for name in names]


@pytest.fixture
def saved(tmp_path):
    write_index(tmp_path / "index", ABOUT, fill, rows("one", "two"))
    return tmp_path / "index"


def test_round_trip(saved):
    manifest = read_manifest(saved)
    assert manifest["method"] == "test"
    assert set(manifest["files"]) == {f"generation-000001/{n}" for n in ("a.bin", "part/b.json", "sequence.npy")}
    assert sorted(p.name for p in saved.parent.iterdir()) == ["index"]  # nothing left beside it


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"\x00"),
        lambda path: path.write_bytes(b"\x00" * len(path.read_bytes())),
        lambda path: flip(path, 0),
        lambda path: flip(path, -1),
    ],
)
@pytest.mark.parametrize("name", ["a.bin", "part/b.json"])
def test_damage_is_seen_and_the_file_named(saved, name, damage):
    damage(saved / "generation-000001" / name)
    with pytest.raises(IndexCorrupt) as caught:
        read_manifest(saved)
    assert name.split("/")[-1] in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', "[" * 100_000])
def test_an_unreadable_manifest_is_named(saved, text):
    (saved / MANIFEST).write_text(text)
    with pytest.raises(IndexCorrupt, match=MANIFEST):
        read_manifest(saved)


def changed(saved, **change):
    """Write a manifest with something changed that is otherwise in order."""
    manifest = json.loads((saved / MANIFEST).read_text())
    del manifest["digest"]
    write_manifest(saved, manifest | change)


def test_another_format_is_refused(saved):
    changed(saved, format=99)
    with pytest.raises(NotAnIndex, match="99"):
        read_manifest(saved)
    (saved / MANIFEST).write_text(json.dumps({"callslip": "index", "format": 1, "files": {}}))
    with pytest.raises(NotAnIndex, match="format 1"):
        read_manifest(saved)


def test_a_manifest_cannot_name_files_outside(saved):
    (saved.parent / "secret").write_text("x")
    changed(saved, files={"../secret": {"bytes": 1, "sha256": "0"}})
    with pytest.raises(IndexCorrupt, match="outside"):
        read_manifest(saved)
    changed(saved, files={}, store={"kind": "sqlite", "file": "../secret"})
    with pytest.raises(IndexCorrupt, match="not the name of a store in the folder"):
        Home.open(saved)


def test_a_failed_write_leaves_the_earlier_index(saved):
    before = read_manifest(saved)

    def fail(folder):
        (folder / "c.bin").write_text("new")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_index(saved, ABOUT, fail, rows("three"))
    assert read_manifest(saved) == before
    home = Home.open(saved)
    assert home.store.read([1, 2]) == [Document("one", "text of one"), Document("two", "text of two")]
    home.close()
    assert [p.name for p in saved.parent.iterdir()] == ["index"]
    assert len(list(saved.glob("store-*.sqlite"))) == 1  # the unfinished one was removed on opening
    assert not list(saved.glob(".new-*"))


def test_a_second_write_replaces_the_first_and_closes_its_store(saved):
    first = Home.open(saved)
    write_index(saved, ABOUT, lambda folder: (folder / "c.bin").write_text("new"), rows("three"))
    assert set(read_manifest(saved)["files"]) == {"generation-000002/c.bin", "generation-000002/sequence.npy"}
    assert [p.name for p in saved.parent.iterdir()] == ["index"]
    with pytest.raises(CallslipError, match="replaced"):  # or an acknowledged document would be lost
        first.commit([NewRow(Document("late", "text"))])
    assert (saved / "generation-000001").is_dir()  # somebody reads it
    first.close()
    Home.open(saved).close()
    assert [p.name for p in saved.glob("generation-*")] == ["generation-000002"]


def test_a_store_whose_successor_was_never_finished_takes_writes_again(saved):
    home = Home.open(saved)
    home.store.retire()
    with pytest.raises(CallslipError, match="replaced"):
        home.commit([NewRow(Document("late", "text"))])
    home.close()
    again = Home.open(saved)
    again.commit([NewRow(Document("late", "text"))])
    again.close()


def test_other_folders_are_never_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CallslipError, match="other files"):
        write_index(tmp_path, ABOUT, fill, [])
    with pytest.raises(CallslipError, match="is a file"):
        check_writable(tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_not_an_index(tmp_path):
    with pytest.raises(NotAnIndex, match="callslip fit"):
        read_manifest(tmp_path)
    with pytest.raises(NotAnIndex):
        read_manifest(tmp_path / "nowhere")


def test_a_strangers_file_in_an_index_folder_is_not_deleted(saved):
    (saved / "notes.txt").write_text("mine")
    write_index(saved, ABOUT, fill, rows("three"))
    assert (saved / "notes.txt").read_text() == "mine"
