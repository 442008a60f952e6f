"""What became of the files of a folder: how many were read, in which encodings, and which were skipped, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from callslip.corpus.encodings import UTF8

SHOWN = 3
"""Maximum number of file names in one line."""


class SkippedFile(Exception):
    """A file that is not read. `kind` groups such files in the summary, which names each with its `detail`, or only
    their suffixes if they are not `named`."""

    def __init__(self, kind: str, detail: str = "", *, remedy: str = "", named: bool = True) -> None:
        super().__init__(kind)
        self.kind, self.detail, self.remedy, self.named = kind, detail, remedy, named


@dataclass
class Group:
    """Files that were skipped for one reason."""

    remedy: str
    named: bool
    names: list[str] = field(default_factory=list)

    def shown(self) -> str:
        if not self.named:
            suffixes = Counter(PurePosixPath(name).suffix.lower() or "no suffix" for name in self.names)
            return _some([f"{suffix} {count:,}" for suffix, count in suffixes.most_common()])
        return _some(self.names)


@dataclass
class FileTally:
    """Counts of a folder's files."""

    read: int = 0
    encodings: dict[str, list[str]] = field(default_factory=dict)
    """Names of files by encoding, UTF-8 left out."""
    groups: dict[str, Group] = field(default_factory=dict)
    """Files that were skipped, by reason."""

    def add(self, name: str, encoding: str | None) -> None:
        self.read += 1
        if encoding not in (None, UTF8):
            self.encodings.setdefault(str(encoding), []).append(name)

    def skip(self, name: str, why: SkippedFile) -> None:
        group = self.groups.setdefault(why.kind, Group(why.remedy, why.named))
        group.names.append(f"{name} ({why.detail})" if why.detail else name)

    @property
    def skipped(self) -> int:
        return sum(len(group.names) for group in self.groups.values())

    def lines(self) -> list[str]:
        """The counts as lines of text."""
        files = f"{self.read:,} file{'' if self.read == 1 else 's'}"
        said = [f"read {files}, skipped {self.skipped:,}" if self.skipped else f"read {files}"]
        for encoding, names in self.encodings.items():
            said.append(f"  {len(names):,} read as {encoding}: {_some(names)}")
        for kind, group in sorted(self.groups.items(), key=lambda item: -len(item[1].names)):
            said.append(f"  {len(group.names):,} skipped, {kind}: {group.shown()}")
            if group.remedy:
                said.append(f"    {group.remedy}")
        return said


def _some(names: list[str]) -> str:
    more = f", and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
