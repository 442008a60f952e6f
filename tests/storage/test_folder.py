"""The saved folder: whole or not at all, and every damage is seen and named."""

from __future__ import annotations

import json
import os

import pytest

from callslip.errors import CallslipError, IndexCorrupt, NotAnIndex
from callslip.storage.folder import MANIFEST, check_writable, read_manifest, writing

ABOUT = {"method": "test", "settings": {}}


@pytest.fixture
def saved(tmp_path):
    with writing(tmp_path / "index", ABOUT) as folder:
        (folder / "a.bin").write_bytes(os.urandom(10_000))
        (folder / "part").mkdir()
        (folder / "part" / "b.json").write_text('{"x": 1}')
    return tmp_path / "index"


def test_round_trip(saved):
    manifest = read_manifest(saved)
    assert manifest["method"] == "test"
    assert set(manifest["files"]) == {"a.bin", "part/b.json"}
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
    damage(saved / name)
    with pytest.raises(IndexCorrupt) as caught:
        read_manifest(saved)
    assert name.split("/")[-1] in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "[" * 100_000])
def test_an_unreadable_manifest_is_named(saved, text):
    (saved / MANIFEST).write_text(text)
    with pytest.raises(IndexCorrupt, match=MANIFEST):
        read_manifest(saved)


def test_another_format_is_refused(saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    (saved / MANIFEST).write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(NotAnIndex, match="99"):
        read_manifest(saved)


def test_a_manifest_cannot_name_files_outside(saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["files"]["../secret"] = {"bytes": 1, "sha256": "0"}
    (saved.parent / "secret").write_text("x")
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(IndexCorrupt, match="outside"):
        read_manifest(saved)


def test_a_failed_write_leaves_the_earlier_index(saved):
    before = read_manifest(saved)
    with pytest.raises(RuntimeError), writing(saved, ABOUT) as folder:
        (folder / "c.bin").write_text("new")
        raise RuntimeError
    assert read_manifest(saved) == before
    assert [p.name for p in saved.parent.iterdir()] == ["index"]


def test_a_second_write_replaces_the_first(saved):
    with writing(saved, ABOUT) as folder:
        (folder / "c.bin").write_text("new")
    assert set(read_manifest(saved)["files"]) == {"c.bin"}
    assert [p.name for p in saved.parent.iterdir()] == ["index"]


def test_other_folders_are_never_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CallslipError, match="other files"), writing(tmp_path, ABOUT):
        pass
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
    with pytest.raises(CallslipError, match=r"notes\.txt"), writing(saved, ABOUT):
        pass
    assert (saved / "notes.txt").read_text() == "mine"
