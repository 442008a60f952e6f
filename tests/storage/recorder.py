"""A recorder of everything that `durable.system` does, and the disks that a power cut could leave after it.

What was written but not synced may be there, be gone, be cut short or be zeros. A name given in a folder that was not
synced may be gone. SQLite writes its own files; they are taken as they are whenever it has finished with them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from callslip.runtime import durable

MODES = ("kept", "dropped", "torn early", "torn late", "zeroed", "names lost")


@dataclass
class Event:
    kind: str
    path: str
    data: bytes = b""
    other: str = ""


@dataclass
class Recorder(durable.System):
    """Does what it is asked and writes it down, with paths relative to `root`."""

    root: Path
    events: list[Event] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def _name(self, path: Path) -> str:
        return Path(path).resolve().relative_to(self.root.resolve()).as_posix()

    def _of(self, descriptor: int) -> str:
        return self._name(Path(f"/proc/self/fd/{descriptor}").readlink())

    def create(self, path):
        descriptor = super().create(path)
        self.known.add(self._name(path))
        self.events.append(Event("create", self._name(path)))
        return descriptor

    def write(self, descriptor, data):
        count = super().write(descriptor, data)
        self.events.append(Event("write", self._of(descriptor), bytes(data[:count])))
        return count

    def write_at(self, descriptor, data, offset):
        super().write_at(descriptor, data, offset)
        self.known.add(self._of(descriptor))
        self.events.append(Event("overwrite", self._of(descriptor), data, str(offset)))

    def sync(self, descriptor):
        name = self._of(descriptor)
        path = self.root / name
        if path.is_file() and name not in self.known:  # a library wrote it: its bytes count from here on
            self.known.add(name)
            self.take_folders(path.parent)
            self.events += [Event("create", name), Event("write", name, path.read_bytes())]
        super().sync(descriptor)
        self.events.append(Event("sync", name))

    def take_folders(self, folder: Path) -> None:
        for place in reversed([folder, *folder.parents]):
            if self.root in place.parents and (name := self._name(place)) not in self.known:
                self.known.add(name)
                self.events.append(Event("folder", name))

    def rename(self, old, new):
        self.events.append(Event("rename", self._name(old), other=self._name(new)))
        super().rename(old, new)
        self.known |= {self._name(new) + name.removeprefix(self._name(old)) for name in self.known
                       if name == self._name(old) or name.startswith(self._name(old) + "/")}  # fmt: skip

    def remove(self, path):
        self.events.append(Event("remove", self._name(path)))
        super().remove(path)

    def make_folder(self, path):
        super().make_folder(path)
        self.known.add(self._name(path))
        self.events.append(Event("folder", self._name(path)))

    def database(self, path: Path) -> None:
        """SQLite has finished a transaction and moved it into the file."""
        self.events.append(Event("database", self._name(path), path.read_bytes()))


def image(base: Path, events: list[Event], mode: str, target: Path) -> None:
    """The disk after these events and a power cut."""
    shutil.copytree(base, target)
    unsynced: dict[str, tuple[bytes, bytes]] = {}
    overwritten: list[tuple[str, bytes, int]] = []
    synced_over: list[tuple[str, bytes, int]] = []
    lasting = _lasting(events) if mode == "names lost" else [True] * len(events)
    for event, lasts in zip(events, lasting, strict=True):
        path = target / event.path
        if event.kind == "database":
            path.write_bytes(event.data)
        elif event.kind == "folder" and lasts:
            path.mkdir(parents=True, exist_ok=True)
        elif event.kind == "create":
            unsynced[event.path] = (b"", b"")
        elif event.kind == "write":
            synced, more = unsynced[event.path]
            unsynced[event.path] = (synced, more + event.data)
        elif event.kind == "overwrite":
            overwritten.append((event.path, event.data, int(event.other)))
        elif event.kind == "sync":
            synced_over += [one for one in overwritten if one[0] == event.path]
            overwritten = [one for one in overwritten if one[0] != event.path]
            if event.path in unsynced:
                synced, more = unsynced[event.path]
                unsynced[event.path] = (synced + more, b"")
        elif event.kind == "rename" and lasts:
            _move(unsynced, event.path, event.other)
            if path.exists():
                path.replace(target / event.other)
        elif event.kind == "remove" and lasts:
            for name in [n for n in unsynced if n == event.path or n.startswith(f"{event.path}/")]:
                del unsynced[name]
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for name, (synced, more) in unsynced.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(synced + _left(more, mode))
    for name, data, offset in [*synced_over, *((name, _left(data, mode), at) for name, data, at in overwritten)]:
        if (target / name).is_file():
            with (target / name).open("r+b") as file:
                file.seek(offset)
                file.write(data)


def _left(more: bytes, mode: str) -> bytes:
    return {
        "kept": more,
        "dropped": b"",
        "torn early": more[: len(more) // 3],
        "torn late": more[:-1],
        "zeroed": bytes(len(more)),
        "names lost": more,
    }[mode]


def _move(unsynced: dict[str, tuple[bytes, bytes]], old: str, new: str) -> None:
    for name in [n for n in unsynced if n == old or n.startswith(f"{old}/")]:
        unsynced[new + name.removeprefix(old)] = unsynced.pop(name)


def _lasting(events: list[Event]) -> list[bool]:
    """Which changes of names are sure to last: those whose folder was synced later."""
    found = []
    for number, event in enumerate(events):
        if event.kind not in ("rename", "remove", "folder"):
            found.append(True)
            continue
        parent = str(Path(event.other or event.path).parent)
        found.append(any(e.kind == "sync" and e.path == parent for e in events[number:]))
    return found
