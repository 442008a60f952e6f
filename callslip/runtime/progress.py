"""Progress of long work: a bar on a terminal, and elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

EVERY = 15.0
"""Seconds between two lines where there is no terminal; shorter work prints none."""
FIRST_LOOK = 0.5
"""Seconds of work before the first estimate."""


def interactive() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr.isatty()


def duration(seconds: float) -> str:
    """A readable duration: 0.42 ms, 18 ms, 3.1 s, 4 min 05 s, 2 h 10 min."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _about(seconds: float) -> str:
    """A rough duration: an estimate has no tenths of a second."""
    return f"{seconds:.0f} s" if seconds < 59.5 else duration(seconds)


class Lines:
    """Progress as lines of text, with the part of rich's Progress that is used here.

    The first line is an estimate, as soon as the first steps allow one, if the work will take longer than `EVERY`
    seconds; then comes a line every `EVERY` seconds. The output of a redirected fit thus ends at what it is doing.
    """

    def __init__(self, write: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self.write, self.clock = write, clock
        self.add_task("")

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_task(self, description: str, total: float | None = None, completed: float = 0, note: str = "") -> int:
        """Begin work of `total` steps, of which a resumed run has done `completed` before."""
        self._description, self._total = description, total
        self._begun_at = self._done = completed
        self._began = self._last = self.clock()
        self._estimated = False
        return 0

    def advance(self, task: int, steps: float = 1) -> None:
        self.update(task, advance=steps)

    def update(self, task: int, *, advance: float = 0, note: str = "") -> None:
        """Count steps, and print a line if one is due."""
        self._done += advance
        now = self.clock()
        left = self._seconds_left(now)
        if not self._estimated and now - self._began >= FIRST_LOOK and left is not None:
            self._estimated = True
            if left > EVERY:
                self._last = now
                self.write(f"{self._description}: {self._total:,}, about {_about(left)}\n")
        elif now - self._last >= EVERY:
            self._last = now
            self.write(self._line(left, note))

    def _seconds_left(self, now: float) -> float | None:
        """Estimated from the steps of this run; None if it is not known how many there will be."""
        steps = self._done - self._begun_at
        if self._total is None or steps <= 0:
            return None
        return (now - self._began) / steps * max(0.0, self._total - self._done)

    def _line(self, left: float | None, note: str) -> str:
        line = f"{self._description}: {self._done:,}"
        if self._total:
            line += f" of {self._total:,} ({self._done / self._total:.0%})"
        if left is not None:
            line += f", about {_about(left)} left"
        return line + (f"  {note.strip()}" if note.strip() else "") + "\n"


_quiet = False


@contextmanager
def quiet(really: bool = True) -> Iterator[None]:
    """Show no progress in this block: another process of the same work does."""
    global _quiet
    before, _quiet = _quiet, _quiet or really
    try:
        yield
    finally:
        _quiet = before


def bar(transient: bool = True) -> Any:
    """A display of progress on standard error; use it as a context manager."""
    if _quiet:
        return Lines(lambda text: None)
    if not interactive():
        return Lines(_write_line)
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(file=getattr(sys.stderr, "unguarded", sys.stderr)),  # a bar moves the cursor
        transient=transient,
    )


def _write_line(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


@contextmanager
def counting(progress: str | Callable[[int], Any] | None, total: int) -> Iterator[Callable[[int], Any]]:
    """A function that counts finished work: on a display of this description, by the caller's function, or nowhere."""
    if not isinstance(progress, str):
        yield progress or (lambda count: None)
        return
    with bar() as display:
        task = display.add_task(progress, total=total, note="")
        yield lambda count: display.advance(task, count)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, and show the progress."""
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    with bar() as progress:
        task = progress.add_task(description, total=total, note="")
        for item in items:
            yield item
            progress.advance(task)
