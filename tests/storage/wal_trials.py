"""Damage to SQLite's log after its writer was killed: what was acknowledged is there, or the loss is named."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import word_codes

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import IndexCorrupt
from callslip.storage.check import check

DAMAGES = ("flip", "truncate", "zero", "zero tail", "delete", "header", "swap", "delete ledger")


def left_by_a_kill(path: Path, chance: random.Random) -> dict[str, str]:
    """Make an index, change it in another process that is killed after its last acknowledgement; what it must hold."""
    state = {f"first{n}": f"text {n}" for n in range(chance.randint(5, 40))}
    word_codes.make_index(path, state)
    changes = []
    for _ in range(chance.randint(1, 12)):
        kind = chance.choice(["add", "add", "update", "delete"])
        if kind == "add":
            new = {f"new{chance.randrange(10**9)}": "word " * chance.randint(1, 900) for _ in range(2)}
            state |= new
            changes.append((kind, new))
        elif kind == "update":
            new = {chance.choice(sorted(state)): f"updated {chance.random()}"}
            state |= new
            changes.append((kind, new))
        else:
            changes.append((kind, [gone := chance.choice(sorted(state))]))
            del state[gone]
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            index = api.load(path)
            for kind, what in changes:
                getattr(index, kind)(what if kind == "delete" else [Document(*one) for one in what.items()])
            os.write(write, b"!")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 1) == b"!"
    os.close(read)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return state


def damage(path: Path, kind: str, chance: random.Random) -> None:
    log = next(path.glob("store-*-wal"))
    data = bytearray(log.read_bytes())
    if kind == "flip":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "truncate":
        del data[chance.randrange(len(data)) :]
    elif kind == "zero":
        data = bytearray(len(data))
    elif kind == "zero tail":
        at = chance.randrange(len(data))
        data[at:] = bytes(len(data) - at)
    elif kind == "header":
        data[chance.randrange(32)] ^= 0xFF
    elif kind == "swap":  # two frames of the log: header of 32 bytes, frames of 24 + 4096
        frames = (len(data) - 32) // 4120
        a, b = (32 + 4120 * chance.randrange(frames) for _ in range(2))
        data[a : a + 4120], data[b : b + 4120] = data[b : b + 4120], data[a : a + 4120]
    if kind == "delete":
        log.unlink()
        return
    if kind == "delete ledger":
        for account in path.glob("store-*-ledger"):
            account.unlink()
        data[chance.randrange(len(data)) :] = b""
    log.write_bytes(bytes(data))


def outcome(look, path: Path, expected: dict[str, str]) -> str:
    """`named`, `nothing lost`, or `silent`."""
    try:
        found = look(path)
    except IndexCorrupt as error:
        assert "store-" in str(error)
        return "named"
    if isinstance(found, dict):
        return "nothing lost" if found == expected else "silent"
    return "nothing lost" if found.documents == len(expected) else "silent"


def trial(place: Path, seed: int) -> tuple[str, list[str]]:
    """One log, damaged; the kind of damage, and what opening and `check` make of it."""
    chance, kind = random.Random(seed), DAMAGES[seed % len(DAMAGES)]
    try:
        state = left_by_a_kill(place / "index", chance)
        damage(place / "index", kind, chance)
        shutil.copytree(place / "index", place / "copy")  # opening may repair what the check should see
        return kind, [
            outcome(word_codes.contents, place / "index", state),
            outcome(check, place / "copy", state),
        ]
    finally:
        shutil.rmtree(place / "index", ignore_errors=True)
        shutil.rmtree(place / "copy", ignore_errors=True)
