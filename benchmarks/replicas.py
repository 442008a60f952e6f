"""Two servers on one PostgreSQL behind nginx: an add on one is found on the other, one is killed, no request fails.

    OMP_NUM_THREADS=1 python benchmarks/replicas.py [--seconds 20]      needs nginx and PostgreSQL (Debian's)

The index is one of the standard library's documentation. Clients search through nginx all the time. Meanwhile a
document is added on the first replica and looked for on the second; the first is killed (SIGKILL); a document is added
and one is deleted through nginx; the first is started again from its old copy of the folder, and must know both.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timing import machine, save, show

from callslip import api
from callslip.corpus.demo import demo_corpus

CLIENTS = 4
KEY = secrets.token_hex(32)


@contextmanager
def postgres(place: Path) -> Iterator[str]:
    """A PostgreSQL server of our own, on a socket in a folder; its address."""
    found = shutil.which("initdb") or str(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))[-1])
    place.mkdir()
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(place, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]

    def run(program: str, *arguments: str | Path) -> None:
        command = [*as_user, str(Path(found).parent / program), *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=place)

    run("initdb", "-D", place / "data", "-U", "callslip", "--auth=trust")
    options = f"-c listen_addresses='' -k {place}"
    run("pg_ctl", "-D", place / "data", "-l", place / "log", "-o", options, "-w", "start")
    try:
        yield f"host={place} dbname=postgres user=callslip"
    finally:
        run("pg_ctl", "-D", place / "data", "-m", "immediate", "stop")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Client:
    """One connection to a server, opened again when it breaks."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connection: http.client.HTTPConnection | None = None

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the answer; status 0 if there is none."""
        self.connection = self.connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        try:
            self.connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = self.connection.getresponse()
            contents = answer.read()
            return answer.status, json.loads(contents or b"null") if answer.status < 500 else contents.decode()
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.connection.close()
            self.connection = None
            return 0, repr(error)

    def finds(self, text: str, doc_id: str) -> bool:
        status, answer = self.request("POST", "/v1/search", {"query": text, "k": 3})
        return status == 200 and doc_id in [hit["doc_id"] for hit in answer["results"][0]["hits"]]


class Load:
    """Clients that search until they are stopped."""

    def __init__(self, port: int, queries: list[str]) -> None:
        self.port, self.queries = port, queries
        self.over = threading.Event()
        self.answers: list[tuple[float, float, int, Any]] = []
        self.threads = [threading.Thread(target=self.search, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def search(self, number: int) -> None:
        client = Client(self.port)
        while not self.over.is_set():
            number += CLIENTS
            began = time.perf_counter()
            query = {"query": self.queries[number % len(self.queries)], "k": 5}
            status, answer = client.request("POST", "/v1/search", query)
            self.answers.append((began, time.perf_counter() - began, status, answer if status != 200 else None))

    def figures(self) -> dict[str, Any]:
        seconds = sorted(one[1] for one in self.answers)
        failed = [one for one in self.answers if one[2] != 200]
        return {
            "searches": len(self.answers),
            "failed": len(failed),
            "errors": [str(one[2:])[:200] for one in failed[:5]],
            "median ms": round(1000 * statistics.median(seconds), 1),
            "slowest ms": round(1000 * seconds[-1], 1),
        }


def replica(folder: Path, port: int, store: str, keys: Path) -> subprocess.Popen[bytes]:
    """A server, ready to answer."""
    command = [sys.executable, "-m", "callslip", "serve", str(folder), "--port", str(port), "--keys", str(keys)]
    log = (folder.parent / f"{folder.name}.log").open("ab")
    process = subprocess.Popen([*command, "--store", store], stdout=log, stderr=log)
    client = Client(port)
    while client.request("GET", "/healthz")[0] != 200:
        if process.poll() is not None:
            raise SystemExit((folder.parent / f"{folder.name}.log").read_text())
        time.sleep(0.1)
    return process


@contextmanager
def nginx(place: Path, port: int, ports: tuple[int, int]) -> Iterator[None]:
    place.mkdir()
    text = Path(__file__).with_name("nginx.conf").read_text().replace("PORT_A", str(ports[0]))
    (place / "nginx.conf").write_text(text.replace("PORT_B", str(ports[1])).replace("PORT", str(port)))
    command = [shutil.which("nginx") or "/usr/sbin/nginx", "-p", f"{place}/", "-c", "nginx.conf", "-g", "daemon off;"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while Client(port).request("GET", "/healthz")[0] != 200:
            if process.poll() is not None:
                raise SystemExit((place / "error.log").read_text())
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def until(true: Any, seconds: float = 30.0) -> float:
    """Seconds until something is true."""
    began = time.perf_counter()
    while not true():
        if time.perf_counter() - began > seconds:
            raise SystemExit("it never became true")
        time.sleep(0.01)
    return round(time.perf_counter() - began, 3)


def measure(root: Path, seconds: float, documents: int) -> dict[str, Any]:
    corpus = demo_corpus(documents)
    api.fit(corpus, out=root / "index").close()
    keys = root / "keys"
    keys.write_text(f"{KEY} search,write,admin\n")
    keys.chmod(0o600)
    with postgres(root / "postgres") as store:
        api.share(root / "index", store)
        for name in "ab":  # a replica has its own copy of the folder, as on a machine of its own
            shutil.copytree(root / "index", root / name)
        port, *ports = (free_port() for _ in range(3))
        servers = {name: replica(root / name, one, store, keys) for name, one in zip("ab", ports, strict=True)}
        queries = [query.text for query in corpus.queries.values()]
        try:
            with nginx(root / "nginx", port, (ports[0], ports[1])), Load(port, queries) as load:
                found = happen(root, seconds, store, keys, port, ports, servers)
            return found | {"load": load.figures()}
        finally:
            for server in servers.values():
                server.kill()
                server.wait()


def happen(
    root: Path, seconds: float, store: str, keys: Path, port: int, ports: list[int], servers: dict[str, Any]
) -> dict[str, Any]:
    """What happens under load; returns what was seen."""
    a, b, both = Client(ports[0]), Client(ports[1]), Client(port)
    time.sleep(seconds / 4)
    text = "The zither tuner quells wolf notes."
    status, answer = a.request("PUT", "/v1/documents/zither", {"text": text})
    assert status in (200, 201), (status, answer)
    seen = until(lambda: b.finds("zither tuner", "zither"))
    time.sleep(seconds / 4)
    servers["a"].kill()
    servers["a"].wait()
    statuses = [both.request("PUT", "/v1/documents/theremin", {"text": "A theremin is played without touch."})[0]]
    until(lambda: both.finds("theremin", "theremin"))
    statuses.append(both.request("DELETE", "/v1/documents/zither")[0])
    time.sleep(seconds / 4)
    servers["a"] = replica(root / "a", ports[0], store, keys)
    a = Client(ports[0])  # the old connection died with the old process
    again = a.finds("theremin", "theremin") and not a.finds("zither tuner", "zither")
    time.sleep(seconds / 4)
    return {
        "seconds until an add on one replica was found on the other": seen,
        "status of writes after the kill": statuses,
        "the restarted replica knew the changes that it had missed": again,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--documents", type=int, default=1000)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="callslip-replicas-"))
    place.chmod(0o755)  # PostgreSQL runs as another user
    try:
        found = measure(place, options.seconds, options.documents)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    show("two replicas behind nginx", found)
    save("replicas", {"machine": machine(), "documents": options.documents} | found)
    if found["load"]["failed"] or not found["the restarted replica knew the changes that it had missed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
