"""Every file of an index, damaged in every way: seen, and the file named."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys

import pytest
from word_codes import contents, make_index

from callslip import api
from callslip.corpus.documents import Corpus, Document
from callslip.errors import IndexCorrupt
from callslip.methods import make
from callslip.storage.check import check

TEXTS = {f"d{n}": f"text {n} " + "word " * n for n in range(60)}


SWAPPED = "of another index"


def damages(size: int, other: bytes | None):
    """(name, what becomes of the bytes; None for a deleted file)."""
    chance = random.Random(size)
    for cut in sorted({0, 1, size // 2, size - 1} - {size}):
        yield f"truncated to {cut}", lambda data, cut=cut: data[:cut]
    for start in range(0, size, 4096):
        at, bit = chance.randrange(start, min(start + 4096, size)), 1 << chance.randrange(8)
        yield (
            f"bit {bit} of byte {at} flipped",
            lambda data, at=at, bit=bit: data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :],
        )
    yield "zeroed", lambda data: bytes(len(data))
    yield "a byte appended", lambda data: data + b"\x00"
    yield "deleted", lambda data: None
    if other is not None:
        yield SWAPPED, lambda data: other


def put(path, data):
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


def files_of(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "lock" and not p.name.endswith("-shm"))


def slot(path, folder):
    """The place of a file in any index; stores are named after theirs."""
    return path.relative_to(folder).as_posix().partition("store-")[0]


def make_bm25(path, texts):
    index = make("bm25").fit(Corpus([Document(doc_id, text) for doc_id, text in texts.items()]))
    index.save(path)
    index.close()


@pytest.mark.parametrize("make_one", [make_index, make_bm25])
def test_every_damage_is_seen_and_the_file_named(memory, make_one):
    make_one(memory / "index", TEXTS)
    make_one(memory / "other", {key: value + "!" for key, value in TEXTS.items()})
    check(memory / "index")
    count = 0
    others = {p.relative_to(memory / "other").as_posix().partition("store-")[0]: p for p in files_of(memory / "other")}
    for path in files_of(memory / "index"):
        whole = path.read_bytes()
        like = others.get(slot(path, memory / "index"))
        other = like.read_bytes() if like is not None and like.read_bytes() != whole else None
        for name, damage in damages(len(whole), other):
            put(path, damage(whole))
            for look in (check, api.load):
                try:
                    look(memory / "index")
                except IndexCorrupt as error:
                    # A manifest of another index is whole: what does not fit to it is named instead.
                    whose = "generation-|store-" if (path.name, name) == ("manifest.json", SWAPPED) else path.name
                    assert re.search(whose, str(error)), f"{path.name} {name}: {error}"
                else:
                    # One of a ledger's two slots may be torn at any time; the other one says what is needed.
                    assert path.name.endswith("-ledger"), f"{path.name} {name}: not seen"
                    assert name not in ("zeroed", "deleted", SWAPPED)
                    if make_one is make_index:
                        assert contents(memory / "index") == TEXTS
            for left in memory.glob("index/*-wal"):
                left.unlink()
            path.write_bytes(whole)
            count += 1
    check(memory / "index")
    assert count > 60


def test_a_store_that_has_changed_since_it_was_sealed(memory):
    """Then a bit in a row is found by the row's digest, and one that is found by nothing changes nothing."""
    make_index(memory / "index", TEXTS)
    index = api.load(memory / "index")
    index.add([Document(f"new{n}", f"new text {n}", metadata={"n": n}) for n in range(40)])
    index.delete(["d1", "new3"])
    index.close()
    store = next((memory / "index").glob("store-*.sqlite"))
    whole, expected = store.read_bytes(), contents(memory / "index")
    chance, seen = random.Random(1), 0
    flips = [(chance.randrange(len(whole)), 1 << chance.randrange(8)) for _ in range(150)]
    for at, bit in flips:
        store.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        try:
            check(memory / "index")
        except IndexCorrupt as error:
            assert store.name in str(error)
            seen += 1
        else:
            assert contents(memory / "index") == expected, f"bit {bit} of byte {at}"
        for left in (memory / "index").glob("*-wal"):
            left.unlink()
    assert seen > 75
    for name, damage in damages(len(whole), None):
        if "flipped" in name or "appended" in name:
            continue
        put(store, damage(whole))
        with pytest.raises(IndexCorrupt, match=store.name):
            check(memory / "index")
        for left in (memory / "index").glob("*-wal"):
            left.unlink()


def test_parts_of_two_indexes_are_refused_together(tmp_path):
    """Every file whole by itself, and codes that mean nothing under the other's model."""
    make_index(tmp_path / "a", TEXTS)
    make_index(tmp_path / "b", {key: value + "!" for key, value in TEXTS.items()})
    store_a = next((tmp_path / "a").glob("store-*.sqlite"))
    store_b = next((tmp_path / "b").glob("store-*.sqlite"))
    shutil.copy(store_b, store_a)
    with pytest.raises(IndexCorrupt, match=store_a.name):
        api.load(tmp_path / "a")
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    generation = tmp_path / "c" / "generation-000001"
    shutil.rmtree(generation)
    shutil.copytree(tmp_path / "a" / "generation-000001", generation)
    with pytest.raises(IndexCorrupt, match="generation-000001"):
        api.load(tmp_path / "c")


def test_an_older_store_is_refused(tmp_path):
    make_index(tmp_path / "index", TEXTS)
    store = next((tmp_path / "index").glob("store-*.sqlite"))
    old = store.read_bytes()
    index = api.load(tmp_path / "index")
    index.add([Document("new", "new")])
    index.compact()
    index.close()
    store.write_bytes(old)
    with pytest.raises(IndexCorrupt, match="older"):
        api.load(tmp_path / "index")


def test_an_older_manifest_is_refused(tmp_path):
    """Its snapshot lacks what the store has dropped since."""
    make_index(tmp_path / "index", TEXTS)
    shutil.copytree(tmp_path / "index", tmp_path / "old")
    index = api.load(tmp_path / "index")
    index.delete(["d1"])
    index.compact()
    index.close()
    for name in ("manifest.json", "generation-000001"):
        old, new = tmp_path / "old" / name, tmp_path / "index" / name
        shutil.copytree(old, new) if old.is_dir() else shutil.copy(old, new)
    with pytest.raises(IndexCorrupt, match=r"manifest\.json"):
        api.load(tmp_path / "index")


def test_the_command_exits_with_3_and_the_name(tmp_path):
    make_bm25(tmp_path / "index", TEXTS)
    command = [sys.executable, "-c", "from callslip.cli import main; main()", "check", str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "is intact" in done.stdout, done.stderr
    victim = next((tmp_path / "index").rglob("sequence.npy"))
    victim.write_bytes(victim.read_bytes()[:-1])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "sequence.npy" in done.stderr and "Traceback" not in done.stderr
