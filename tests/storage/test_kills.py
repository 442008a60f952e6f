"""SIGKILL at random moments: nothing acknowledged is lost, nothing is half done, everything opens."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from word_codes import contents, make_index

from callslip import api
from callslip.corpus.documents import Document
from callslip.storage.check import check

KILLS = int(os.environ.get("CALLSLIP_KILLS", "200"))


def plan(state: dict[str, str], chance: random.Random, steps: int) -> list[tuple[tuple, dict[str, str]]]:
    """Operations that make sense one after another from a state, and the state after each."""
    planned = []
    for _ in range(steps):
        kind = chance.choices(["add", "update", "delete", "delete all", "compact"], [6, 3, 4, 0.3, 2])[0]
        state = dict(state)
        if kind == "add":
            new = {f"d{chance.randrange(10**9)}": f"text {chance.randrange(40)}" for _ in range(chance.randint(1, 4))}
            state |= new
            step = ("add", new)
        elif kind == "update" and state:
            new = {name: f"new {chance.randrange(40)}" for name in chance.sample(sorted(state), min(2, len(state)))}
            state |= new
            step = ("update", new)
        elif kind in ("delete", "delete all") and state:
            gone = sorted(state) if kind == "delete all" else chance.sample(sorted(state), min(3, len(state)))
            for name in gone:
                del state[name]
            step = ("delete", gone)
        else:
            step = ("compact",)
        planned.append((step, state))
    return planned


def perform(index, step: tuple) -> None:
    if step[0] == "delete":
        index.delete(step[1])
    elif step[0] == "compact":
        index.compact()
    else:
        getattr(index, step[0])([Document(doc_id, text) for doc_id, text in step[1].items()])


def run_and_kill(path, planned, after: float) -> int:
    """Carry the plan out in another process, kill it, and count what it acknowledged."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            index = api.load(path)
            for step, _ in planned:
                perform(index, step)
                os.write(write, b"!")
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    os.close(write)
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    acknowledged = b""
    while some := os.read(read, 1 << 16):
        acknowledged += some
    os.close(read)
    return len(acknowledged)


def test_kills_at_random_moments(tmp_path):
    chance, path = random.Random(7), tmp_path / "index"
    state = {f"first{n}": f"text {n}" for n in range(30)}
    make_index(path, state)
    inside = 0
    for number in range(KILLS):
        planned = plan(state, chance, 40)
        done = run_and_kill(path, planned, chance.uniform(0.0, 0.15))
        allowed = [planned[done - 1][1] if done else state, planned[min(done, len(planned) - 1)][1]]
        state = contents(path)
        assert state in allowed, f"kill {number}: {done} acknowledged"
        inside += 0 < done < len(planned)
        if number % 10 == 0:
            assert check(path).documents == len(state)
    assert inside > KILLS / 4  # most kills came while it was at work
    check(path)


@pytest.mark.parametrize("seed", range(8))
def test_killed_while_an_index_is_written_for_the_first_time_or_over_another(tmp_path, seed):
    """There is none, or a whole one; over another one there is that or this."""
    chance, path = random.Random(seed), tmp_path / "index"
    old = {"a": "old"}
    if seed % 2:
        make_index(path, old)
    new = {f"n{n}": f"text {n}" for n in range(50)}
    pid = os.fork()
    if pid == 0:
        make_index(path, new)
        os._exit(0)
    time.sleep(chance.uniform(0, 0.05))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if path.exists():
        assert contents(path) in ([old, new] if seed % 2 else [new])
        check(path)
    else:
        assert not seed % 2
    make_index(path, new)
    assert contents(path) == new
