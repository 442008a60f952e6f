"""A small index of the shared corpus, served for real: uvicorn, our protocol, a socket on loopback."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from callslip.corpus.documents import Corpus, Document
from callslip.methods import make
from callslip.server.app import create_app
from callslip.server.keys import SCOPES, Keys
from callslip.server.limits import Limits
from callslip.server.run import bound, config
from callslip.server.serving import serve_all

SEARCH, WRITE, ADMIN, ALL = "s" * 32, "w" * 32, "a" * 32, "e" * 32
KEYS = {SEARCH: frozenset({"search"}), WRITE: frozenset({"write"}), ADMIN: frozenset({"admin"}), ALL: SCOPES}
QUICK = {"encoder": "scratch", "epochs": 25, "decoder_width": 64, "batch_size": 64, "width": 4, "leaf": 3, "beam": 4}
HOSTILE = Document(
    "hostile <b>/1",
    'The zither <script>window.hacked = true</script> plays <img src=x onerror="window.hacked=true">.',
    "<script>window.hacked = 1</script> & zither",
)


@dataclass
class Running:
    """A server that runs."""

    url: str
    port: int
    app: Any

    def client(self, key: str | None = None) -> httpx2.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False, verify=False)


@contextmanager
def running(
    paths: list[Path],
    *,
    anonymous: tuple[str, ...] = ("search",),
    limits: Limits | None = None,
    host: str = "127.0.0.1",
) -> Iterator[Running]:
    """Serve folders on a free port of loopback; `host` is the address that the server believes it listens at."""
    limits = limits or Limits()
    keys = Keys(KEYS, anonymous=frozenset(anonymous))
    app = create_app(serve_all(paths), keys, host=host, limits=limits)
    listening = bound("127.0.0.1", 0)
    server = uvicorn.Server(config(app, limits))
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
        assert thread.is_alive()
    try:
        yield Running(f"http://127.0.0.1:{listening.getsockname()[1]}", listening.getsockname()[1], app)
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def fitted_folder(small_corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with codes, and with a document that would like to run a script."""
    corpus = Corpus([*small_corpus.documents, HOSTILE], small_corpus.queries, small_corpus.judgements, name="small")
    path = tmp_path_factory.mktemp("served") / "small"
    make("dsi-semantic", QUICK).fit(corpus).save(path)
    return path


@pytest.fixture(scope="session")
def words_folder(small_corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index without codes."""
    path = tmp_path_factory.mktemp("served") / "words"
    make("bm25").fit(small_corpus).save(path)
    return path


@pytest.fixture
def folder(fitted_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(fitted_folder, tmp_path / "small"))


@pytest.fixture(scope="module")
def served(fitted_folder: Path, words_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two indexes on one server, for tests that change nothing that others look at."""
    place = tmp_path_factory.mktemp("module")
    with running([Path(shutil.copytree(fitted_folder, place / "small")), words_folder]) as found:
        yield found


@pytest.fixture
def anybody(served: Running) -> Iterator[httpx2.Client]:
    """A client without a key."""
    with served.client() as client:
        yield client


@pytest.fixture
def writer(served: Running) -> Iterator[httpx2.Client]:
    """A client that may write, too."""
    with served.client(WRITE) as client:
        yield client
