"""Progress bars for long work, shown only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def interactive() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr.isatty()


def bar(transient: bool = True) -> Any:
    """A rich progress display on standard error; use it as a context manager. Silent when nobody watches."""
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
        disable=not interactive(),
    )


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the items, with a progress bar."""
    if total is None and hasattr(items, "__len__"):
        total = len(items)  # type: ignore[arg-type]
    with bar() as progress:
        task = progress.add_task(description, total=total, note="")
        for item in items:
            yield item
            progress.advance(task)
