"""An index that comes from a stranger, or lies where it must not be changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest
from word_codes import contents, make_index, state_of

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import CallslipError
from callslip.runtime import consent
from callslip.storage.copies import copy_index
from callslip.storage.folder import read_manifest, write_manifest

TEXTS = {f"d{n}": f"text {n}" for n in range(12)}


@pytest.fixture(autouse=True)
def nobody_trusted(monkeypatch):
    monkeypatch.setattr(consent, "_trusted", {consent.STORE: set(), consent.HUB: set()})
    monkeypatch.setattr(consent, "_from_manifests", set())
    monkeypatch.delenv(consent.STORE, raising=False)
    monkeypatch.delenv(consent.HUB, raising=False)


class FalseDatabase:
    """Listens as PostgreSQL does, asks for a password in clear text, writes down what comes and refuses the login."""

    def __init__(self):
        self.heard, self.logins = b"", 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"host=127.0.0.1 port={self.socket.getsockname()[1]} dbname=x user=me sslmode=disable"
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                one, _ = self.socket.accept()
            except OSError:
                return
            self.logins += 1
            with one:
                one.recv(4096)
                one.sendall(b"R\0\0\0\x08\0\0\0\x03")  # AuthenticationCleartextPassword
                self.heard += one.recv(4096)
                message = b'SFATAL\0C28P01\0Mpassword authentication failed for user "me"\0\0'
                one.sendall(b"E" + (4 + len(message)).to_bytes(4, "big") + message)


@pytest.fixture
def stolen(tmp_path, monkeypatch):
    """An index whose manifest names a database that collects passwords."""
    pytest.importorskip("psycopg")
    database = FalseDatabase()
    monkeypatch.setenv("PGPASSWORD", "my secret")
    make_index(tmp_path / "index", TEXTS)
    manifest = read_manifest(tmp_path / "index")
    del manifest["digest"]
    write_manifest(tmp_path / "index", manifest | {"store": {"kind": "postgres", "address": database.address}})
    yield tmp_path / "index", database
    database.socket.close()


def test_a_manifest_alone_sends_no_password(stolen, monkeypatch):
    path, database = stolen
    with pytest.raises(CallslipError, match="may send your password") as caught:
        api.load(path)
    assert "--store" in caught.value.remedy and consent.STORE in caught.value.remedy
    monkeypatch.setenv(consent.STORE, "postgresql://somewhere/else")
    with pytest.raises(CallslipError, match="may send your password"):
        api.load(path)
    assert (database.logins, database.heard) == (0, b"")


def test_a_refused_login_is_not_tried_again(stolen, monkeypatch):
    path, database = stolen
    monkeypatch.setenv(consent.STORE, database.address)
    with pytest.raises(CallslipError, match="refuses the login") as caught:
        api.load(path)
    assert caught.value.remedy and b"my secret" in database.heard  # now the user has said so
    assert database.logins == 1


def test_a_manifest_alone_downloads_no_encoder(monkeypatch, tmp_path):
    import huggingface_hub

    from callslip.encoders.pretrained import open_checkpoint

    asked = []

    def download(name, *, local_files_only=False, **options):
        asked.append((name, local_files_only))
        raise OSError("not here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    make_index(tmp_path / "index", TEXTS)
    manifest = read_manifest(tmp_path / "index")
    del manifest["digest"]
    write_manifest(tmp_path / "index", manifest | {"settings": {"parts": [{"encoder": "stranger/model"}]}})
    with pytest.raises(CallslipError):
        api.load(tmp_path / "index")  # this method has no such setting; but the name has been seen
    with pytest.raises(CallslipError, match=r"stranger/model.*has not been downloaded") as caught:
        open_checkpoint("stranger/model")
    assert consent.HUB in caught.value.remedy
    assert asked.pop() == ("stranger/model", True)
    monkeypatch.setenv(consent.HUB, "stranger/model other/model")
    with pytest.raises(CallslipError, match="could not be downloaded"):
        open_checkpoint("stranger/model")
    with pytest.raises(CallslipError, match="could not be downloaded"):
        open_checkpoint("mine/model")  # the user's own choice
    assert asked == [("stranger/model", False), ("mine/model", False)]


def test_a_model_that_the_user_chose_stays_the_users_when_the_index_is_saved(tmp_path):
    corpus = [Document(doc_id, text) for doc_id, text in TEXTS.items()]
    api.fit(corpus, "dense", tmp_path / "index", settings={"encoder": "scratch:dim=8"}).close()
    assert consent.may_download("scratch:dim=8")
    api.load(tmp_path / "index").close()
    assert not consent.may_download("scratch:dim=8")


def as_hub_cache(index: Path, cache: Path) -> Path:
    """The files of an index as the Hugging Face cache keeps them: blobs by hash, and links to them."""
    (cache / "blobs").mkdir(parents=True)
    for path in sorted(p for p in index.rglob("*") if p.is_file() and p.name != "lock"):
        blob = cache / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copyfile(path, blob)
        link = cache / "snapshots" / "revision" / path.relative_to(index)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return cache / "snapshots" / "revision"


def test_a_hub_cache_is_never_changed(tmp_path):
    make_index(tmp_path / "index", TEXTS)
    folder = as_hub_cache(tmp_path / "index", tmp_path / "cache")

    def state():
        return {
            p: (p.is_symlink(), p.read_bytes() if p.is_file() else b"") for p in sorted((tmp_path / "cache").rglob("*"))
        }

    before = state()
    index = api.load(folder)
    assert state_of(index) == TEXTS
    for change in (
        lambda: index.add([Document("new", "text")]),
        lambda: index.delete(["d1"]),
        index.compact,
        lambda: index.save(folder),
    ):
        with pytest.raises(CallslipError, match="symbolic link") as caught:
            change()
        assert "callslip snapshot" in caught.value.remedy
    assert state_of(index) == TEXTS
    index.close()
    assert state() == before
    copy_index(folder, tmp_path / "copy")
    assert state() == before
    copy = api.load(tmp_path / "copy")
    copy.add([Document("new", "text")])
    copy.close()
    assert contents(tmp_path / "copy") == TEXTS | {"new": "text"}
