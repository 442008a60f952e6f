"""SIGKILL for a server and for a second process that changes and compacts the same index, both at work.

The server is changed over HTTP (documents `s/…`), the other process changes the folder itself (`c/…`). After every kill
the folder must hold what each of the two acknowledged, and at most the one change more that was under way.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parent.parent / "storage"))

import uvicorn
import word_codes

from callslip import api
from callslip.corpus.documents import Document
from callslip.server.app import create_app
from callslip.server.keys import SCOPES, Keys
from callslip.server.limits import Limits
from callslip.server.run import bound, config
from callslip.server.serving import serve_all
from callslip.storage.check import check

KEY = "k" * 32
MOST = 60
"""Documents of each of the two: all of them are searched for after every kill."""
State = dict[str, str]


def serve(path: Path, listening) -> None:
    app = create_app(serve_all([path]), Keys({KEY: SCOPES}, anonymous=frozenset()), limits=Limits())
    listening.listen(64)
    uvicorn.Server(config(app, Limits())).run(sockets=[listening])


def plan(state: State, chance: random.Random, steps: int) -> list[tuple[tuple, State]]:
    """Changes of the second process, and its documents after each."""
    planned = []
    for _ in range(steps):
        kind = chance.choices(["add", "update", "delete", "compact"], [5 if len(state) < MOST else 0, 3, 5, 3])[0]
        state = dict(state)
        if kind == "add":
            new = {f"c/{chance.randrange(10**9)}": f"text {chance.randrange(40)}" for _ in range(2)}
            state |= new
            step: tuple = ("add", new)
        elif kind == "update" and state:
            new = {chance.choice(sorted(state)): f"new {chance.randrange(40)}"}
            state |= new
            step = ("update", new)
        elif kind == "delete" and state:
            gone = chance.choice(sorted(state))
            del state[gone]
            step = ("delete", [gone])
        else:
            step = ("compact",)
        planned.append((step, state))
    return planned


def change(path: Path, planned: list[tuple[tuple, State]], write: int) -> None:
    index = api.load(path)
    for number, (step, _) in enumerate(planned):
        if step[0] == "compact":
            index.compact()
        elif step[0] == "delete":
            index.delete(step[1])
        else:
            getattr(index, step[0])([Document(doc_id, text) for doc_id, text in step[1].items()])
        os.write(write, b"!")
        if number % 5 == 4:  # as commands do: every one opens and closes the folder
            index.close()
            index = api.load(path)


def forked(run, *arguments) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run(*arguments)
            os._exit(0)
        except BaseException as error:
            print(f"{run.__name__}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    return pid


class Client:
    """Changes documents over HTTP, one request after another, and keeps what was acknowledged."""

    def __init__(self, port: int, state: State, chance: random.Random) -> None:
        self.port, self.state, self.chance = port, state, chance
        self.allowed = [state]
        self.acknowledged = self.version = 0
        self.problems: list[str] = []

    def run(self, over: threading.Event) -> None:
        while not over.is_set():
            after = dict(self.state)
            if after and self.chance.random() < (0.3 if len(after) < MOST else 0.9):
                name = self.chance.choice(sorted(after))
                del after[name]
                request = "DELETE", None
            else:
                name = self.chance.choice([*sorted(after)[:5], f"s/{self.chance.randrange(10**9)}"])
                after[name] = f"served {self.chance.randrange(40)}"
                request = "PUT", json.dumps({"text": after[name]})
            self.allowed = [self.state, after]
            try:
                answer = self._ask(*request, name)
            except (OSError, http.client.HTTPException):
                return
            if answer["status"] != 200:
                self.problems.append(f"{request[0]} {name}: {answer}")
                return
            self.state, self.allowed = after, [after]
            self.version, self.acknowledged = answer["version"], self.acknowledged + 1

    def _ask(self, method: str, body: str | None, name: str) -> dict:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
            connection.request(method, f"/v1/documents/{quote(name)}", body, headers)
            answer = connection.getresponse()
            return {**json.loads(answer.read()), "status": answer.status}
        finally:
            connection.close()


def wait_for(port: int) -> None:
    for _ in range(2000):
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                connection.close()
                return
        time.sleep(0.005)
    raise TimeoutError("the server does not answer")


def kills(path: Path, rounds: int, seed: int, longest: float = 0.5) -> dict[str, int]:
    """Kill both processes so many times; counts of what happened. AssertionError at the first loss."""
    chance = random.Random(seed)
    word_codes.make_index(path, {f"first{n}": f"text {n}" for n in range(20)})
    first = word_codes.contents(path)
    served: State = {}
    changed: State = {}
    counts = {
        "rounds": 0,
        "kills": 0,
        "acknowledged by the server": 0,
        "acknowledged by the other": 0,
        "compactions": 0,
    }
    for number in range(rounds):
        listening = bound("127.0.0.1", 0)
        port = listening.getsockname()[1]
        planned = plan(changed, chance, 600)
        read, write = os.pipe()
        server = forked(serve, path, listening)
        listening.close()
        wait_for(port)
        other = forked(change, path, planned, write)
        os.close(write)
        client, over = Client(port, served, chance), threading.Event()
        asking = threading.Thread(target=client.run, args=(over,))
        asking.start()
        # Every tenth time long enough for the server to find a new generation, which it looks for once a second.
        time.sleep(chance.uniform(0.02, longest) if number % 10 else chance.uniform(1.0, 5 * longest))
        for pid in chance.sample([server, other], 2):
            os.kill(pid, signal.SIGKILL)
            if chance.random() < 0.5:
                time.sleep(chance.uniform(0, 0.02))
        over.set()
        ended = [os.waitpid(pid, 0)[1] for pid in (server, other)]
        asking.join()
        done = 0
        while some := os.read(read, 1 << 16):
            done += len(some)
        os.close(read)
        assert all(not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0 for status in ended), f"round {number}"
        assert not client.problems, f"round {number}: {client.problems}"
        found = word_codes.contents(path)
        now = {name: text for name, text in found.items() if name.startswith("s/")}
        assert now in client.allowed, f"round {number}: the server's"
        allowed = [planned[done - 1][1] if done else changed, planned[min(done, len(planned) - 1)][1]]
        theirs = {name: text for name, text in found.items() if name.startswith("c/")}
        assert theirs in allowed, f"round {number}: the other's, {done} acknowledged"
        assert {name: text for name, text in found.items() if name.startswith("first")} == first
        served, changed = now, theirs
        if number % 10 == 0 or number + 1 == rounds:
            assert check(path).version >= client.version
        counts["rounds"] += 1
        counts["kills"] += sum(os.WIFSIGNALED(status) for status in ended)
        counts["acknowledged by the server"] += client.acknowledged
        counts["acknowledged by the other"] += done
        counts["compactions"] += sum(step[0] == "compact" for step, _ in planned[:done])
    return counts
