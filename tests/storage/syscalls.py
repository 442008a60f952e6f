"""System calls recorded by strace, and the disks that a power cut could leave after any of them.

What a file system owes a program after a power cut: bytes of a file that were there when it was last synced, and names
that were in a folder when the folder was last synced. Everything else may be gone, or there in part.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CALLS = "openat,pwrite64,pwritev,write,fsync,fdatasync,ftruncate,unlink,rename"
MODES = ("dropped", "in part")
"""What becomes of bytes that were not synced: none of them is there, or every other write."""
_LINE = re.compile(r"^\d+ +(\d+\.\d+) (\w+)\((.*)\) += (-?\d+)(<[^>]*>)?")
_FILE = re.compile(r"^\d+<((?:\\x[0-9a-f]{2})*)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def needs_strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.skip("needs strace(1) to record system calls")
    done = subprocess.run([found, "-o", "/dev/null", "true"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("strace(1) may not trace processes here")
    return found


def options(out: Path) -> list[str]:
    return ["-f", "-ttt", "-y", "-xx", "-s", "100000", "-o", str(out), "-e", f"trace={CALLS}"]


@dataclass
class Call:
    time: float
    name: str
    path: str = ""
    data: bytes = b""
    offset: int = 0


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def read(trace: Path) -> Iterator[Call]:
    """What a trace tells of files. Lines of calls that were interrupted by another process are put together."""
    begun: dict[str, str] = {}
    for line in trace.read_text().splitlines():
        pid = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix(" <unfinished ...>")
            continue
        if " resumed>" in line:
            line = begun.pop(pid, "") + line.split(" resumed>", 1)[1]
        found = _LINE.match(line)
        if found is None or int(found[4]) < 0:
            continue
        time, name, given = float(found[1]), found[2], found[3]
        if name == "openat":
            if "O_CREAT" in given:
                yield Call(time, "create", _bytes(_TEXT.search(given)[1]).decode(errors="replace"))
            continue
        if name in ("unlink", "rename"):
            texts = [_bytes(one) for one in _TEXT.findall(given)]
            yield Call(time, name, texts[0].decode(errors="replace"), texts[-1])
            continue
        file = _FILE.match(given)
        path = _bytes(file[1]).decode(errors="replace") if file else ""
        if name in ("fsync", "fdatasync"):
            yield Call(time, "sync", path)
        elif name == "ftruncate":
            yield Call(time, name, path, offset=int(given.rsplit(",", 1)[1]))
        elif name == "write":
            yield Call(time, name, path, _bytes(_TEXT.search(given)[1]))
        else:
            data = b"".join(_bytes(one) for one in _TEXT.findall(given))
            assert len(data) == int(found[4]), "a write longer than strace keeps"
            yield Call(time, "write at", path, data, int(given.rsplit(",", 1)[1]))


@dataclass
class Disk:
    """A folder as the system sees it, and as it would be after a power cut."""

    root: Path
    """Where the recorded program had it."""
    base: Path
    """What was there, all of it synced, before the recording began."""
    now: dict[str, bytearray] = field(default_factory=dict)
    synced: dict[str, bytes] = field(default_factory=dict)
    since: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Writes to a file since it was last synced."""
    names: set[str] = field(default_factory=set)
    """Names that last."""

    def __post_init__(self) -> None:
        for path in sorted(p for p in self.base.rglob("*") if p.is_file()):
            name = path.relative_to(self.base).as_posix()
            self.now[name], self.synced[name] = bytearray(path.read_bytes()), path.read_bytes()
            self.names.add(name)

    def do(self, call: Call) -> bool:
        """Take a call in; whether it was one on this disk."""
        try:
            name = Path(call.path).relative_to(self.root).as_posix()
        except ValueError:
            return False
        if name.endswith("-shm"):  # shared memory, made anew by the first process that opens the store
            return False
        if call.name == "create":
            self.now.setdefault(name, bytearray())
        elif call.name == "write at" and name in self.now:
            file = self.now[name]
            file.extend(bytes(max(0, call.offset + len(call.data) - len(file))))
            file[call.offset : call.offset + len(call.data)] = call.data
            self.since.setdefault(name, []).append((call.offset, call.data))
        elif call.name == "ftruncate" and name in self.now:
            file = self.now[name]
            del file[call.offset :]
            file.extend(bytes(call.offset - len(file)))
        elif call.name == "unlink":
            self.now.pop(name, None)
        elif call.name == "rename":
            other = Path(call.data.decode()).relative_to(self.root).as_posix()
            for table in (self.now, self.synced):
                if name in table:
                    table[other] = table.pop(name)
        elif call.name == "sync":
            if name in self.now:
                self.synced[name] = bytes(self.now[name])
                self.since[name] = []
            else:  # a folder
                inside = {one for one in self.now if Path(one).parent.as_posix() == name}
                gone = {one for one in self.names if Path(one).parent.as_posix() == name} - inside
                self.names = (self.names | inside) - gone
        return True

    def leave(self, target: Path, mode: str) -> None:
        """Write the disk that is left, over a copy of the base that is there already."""
        for name in {*self.names, *self.now}:
            path = target / name
            if name not in self.names:
                path.unlink(missing_ok=True)
                continue
            data = bytearray(self.synced.get(name, b""))
            if mode == "in part":
                for offset, written in self.since.get(name, [])[1::2]:
                    data.extend(bytes(max(0, offset + len(written) - len(data))))
                    data[offset : offset + len(written)] = written
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
