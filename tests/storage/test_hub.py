"""Indexes on the hub: a local stand-in for its two calls keeps blobs and links, as the hub's cache does."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import callslip
from callslip import api
from callslip.errors import BadSetting, CallslipError, IndexCorrupt, NotAnIndex
from callslip.storage.folder import read_manifest
from callslip.storage.hub import card, fetch_index


@pytest.fixture(params=["links", "copies"])
def hub(tmp_path, monkeypatch, request):
    """Repositories in a folder: name -> commits -> files."""
    import huggingface_hub

    place, calls = tmp_path / "hub", []

    class Api:
        def __init__(self, **options):
            calls.append(("api", options))

        def create_repo(self, name, **options):
            calls.append(("create", name, options))

        def upload_folder(self, repo_id, folder_path, commit_message):
            oid = f"{len(list(place.glob('*/*/*'))) + 1:040x}"
            shutil.copytree(folder_path, place / repo_id / oid)
            calls.append(("upload", repo_id, commit_message))
            return SimpleNamespace(oid=oid)

    def snapshot_download(name, revision=None, allow_patterns=None):
        commits = sorted((place / name).iterdir()) if (place / name).is_dir() else []
        if not commits:
            raise ConnectionError("404: no such repository\nlong")
        source = place / name / revision if revision else commits[-1]
        out = tmp_path / "cache" / name / source.name
        for path in source.rglob("*"):
            if path.is_file() and any(path.relative_to(source).match(p.replace("/**", "/*")) for p in allow_patterns):
                to = out / path.relative_to(source)
                to.parent.mkdir(parents=True, exist_ok=True)
                blob = tmp_path / "blobs" / hashlib.sha256(str(path).encode()).hexdigest()
                blob.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, blob)
                to.unlink(missing_ok=True)
                to.symlink_to(blob) if request.param == "links" else shutil.copyfile(blob, to)
        out.mkdir(parents=True, exist_ok=True)
        return str(out)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return SimpleNamespace(place=place, calls=calls)


@pytest.fixture
def saved(small_corpus, tmp_path):
    settings = {"encoder": "scratch", "epochs": 1, "decoder_width": 16}
    callslip.fit(small_corpus, "dsi-semantic", tmp_path / "index", settings=settings).close()
    return tmp_path / "index"


def test_pushed_loaded_and_read_only(hub, saved, tmp_path):
    address = api.push(saved, "me/my-index")
    assert (
        address.startswith("hf://me/my-index@")
        and ("create", "me/my-index", {"private": True, "exist_ok": True}) in hub.calls
    )
    wanted = callslip.load(saved).search("violin", 5)
    for name in (address, "hf://me/my-index", Path(address)):  # the command line makes paths of its arguments
        index = callslip.load(name)
        assert [(h.doc_id, h.score) for h in index.search("violin", 5)] == [(h.doc_id, h.score) for h in wanted]
        with pytest.raises(CallslipError):
            index.delete(["music/0"])
        with pytest.raises(CallslipError):
            index.add([callslip.Document("new", "x")])
    api.snapshot(address, tmp_path / "copy")
    mine = callslip.load(tmp_path / "copy")
    mine.delete(["music/0"])
    assert len(mine) == 39 and len(callslip.load(address)) == 40


def test_a_revision_is_the_index_of_that_commit(hub, saved):
    first = api.push(saved, "me/it")
    api.delete(saved, ["music/0"])
    second = api.push(saved, "me/it", private=False, message="without one")
    assert (len(callslip.load(first)), len(callslip.load(second))) == (40, 39)
    assert ("upload", "me/it", "without one") in hub.calls


def test_the_card_comes_from_the_manifest(hub, saved):
    api.push(saved, "me/it")
    (text,) = [path.read_text() for path in hub.place.rglob("README.md")]
    manifest = read_manifest(saved)
    assert text == card(manifest, "me/it")
    assert text.startswith("---\nlibrary_name: callslip\n") and 'callslip.load("hf://me/it")' in text
    assert "40 documents" in text and "`dsi-semantic`" in text and "| `decoder_width` | `16` |" in text
    assert manifest["corpus"]["sha256"] in text
    hidden = manifest | {"settings": {"encoder": "/home/somebody/models/mine"}}
    assert "somebody" not in card(hidden, "me/it") and "`mine`" in card(hidden, "me/it")


def test_damage_and_mistakes_are_named(hub, saved, tmp_path):
    address = api.push(saved, "me/it")
    (vectors,) = hub.place.rglob("vectors-by-code.npy")
    raw = bytearray(vectors.read_bytes())
    raw[-1] ^= 1
    vectors.write_bytes(raw)
    with pytest.raises(IndexCorrupt, match=r"vectors-by-code\.npy"):
        callslip.load(address)
    with pytest.raises(CallslipError, match="could not be downloaded") as caught:
        callslip.load("hf://me/nowhere")
    assert "long" not in str(caught.value)
    for wrong in ("hf://me", "hf://a/b/c", "hf://me/it@"):
        with pytest.raises(BadSetting, match="not an address"):
            fetch_index(wrong)
    with pytest.raises(BadSetting, match="not the name of a repository"):
        api.push(saved, "it")
    (hub.place / "me" / "other" / ("0" * 40)).mkdir(parents=True)
    with pytest.raises(NotAnIndex):
        callslip.load("hf://me/other")


def test_the_command_says_what_it_would_push(saved):
    command = [sys.executable, "-m", "callslip", "push", str(saved), "me/it"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=None)
    assert done.returncode == 2 and "with all its documents" in done.stderr and "Traceback" not in done.stderr
    assert "hf auth login" in done.stderr and Path(saved).is_dir()
