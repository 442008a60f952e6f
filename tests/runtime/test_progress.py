"""Progress where there is no terminal: an estimate, then a line now and then."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from callslip.encoders.encoder import load_encoder
from callslip.encoders.vector_cache import FeatureCache, cached_encode
from callslip.runtime import progress
from callslip.runtime.progress import Lines, counting, track


class Clock:
    """A clock that goes on by `step` seconds at each look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def work(steps: int, seconds: float, total: int | None, completed: int = 0, note: str = "") -> list[str]:
    lines: list[str] = []
    display = Lines(lines.append, Clock(seconds))
    task = display.add_task("encoding", total=total, completed=completed)
    for _ in range(steps):
        display.update(task, advance=1, note=note)
    return [line.rstrip("\n") for line in lines]


def test_long_work_begins_with_an_estimate_and_prints_a_line_every_15_seconds():
    assert work(60, 1.0, 60) == [
        "encoding: 60, about 59 s",
        "encoding: 16 of 60 (27%), about 44 s left",
        "encoding: 31 of 60 (52%), about 29 s left",
        "encoding: 46 of 60 (77%), about 14 s left",
    ]


def test_short_work_prints_nothing():
    assert work(14, 1.0, 14) == []
    assert work(10_000, 0.001, 10_000) == []


def test_the_first_step_is_not_the_estimate_if_it_is_too_short_to_measure():
    lines = work(1000, 0.1, 1000)
    assert lines[0] == "encoding: 1,000, about 1 min 39 s"  # after half a second
    assert lines[1] == "encoding: 157 of 1,000 (16%), about 1 min 24 s left"


def test_work_that_is_resumed_is_estimated_by_this_run_alone():
    assert work(20, 1.0, 100, completed=80)[0] == "encoding: 100, about 19 s"


def test_without_a_total_the_count_is_shown_and_no_estimate():
    assert work(31, 1.0, None) == ["encoding: 15", "encoding: 30"]


def test_the_note_of_a_training_is_part_of_the_line():
    assert work(20, 1.0, 20, note="  loss 0.31")[1].endswith("about 4 s left  loss 0.31")


def test_a_redirected_process_prints_lines_to_standard_error_and_no_escape_sequences():
    code = (
        "from callslip.runtime import progress\n"
        "progress.EVERY, progress.FIRST_LOOK = 0.05, 0.0\n"
        "import time\n"
        "for _ in progress.track(range(10), 'working'): time.sleep(0.02)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "" and "working: 10, about" in done.stderr and " left" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.fixture
def advanced(monkeypatch):
    """All displays of a test, as (description, total, steps) when they advance."""
    seen: list[tuple[str, int, int]] = []

    class Recorder:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def add_task(self, description, total=None, note=""):
            self.about = (description, total)
            return 0

        def advance(self, task, steps=1):
            seen.append((*self.about, steps))

    monkeypatch.setattr(progress, "bar", Recorder)
    return seen


def test_a_display_advances_with_every_batch_even_inside_one_chunk_of_the_cache(tmp_path, advanced):
    encoder, texts = load_encoder("scratch:dim=8"), [f"text {n}" for n in range(70)]
    encoder.worth_caching = True
    found = cached_encode(encoder, texts, FeatureCache(tmp_path), "encoding", batch_size=32)
    assert advanced == [("encoding", 70, 32), ("encoding", 70, 32), ("encoding", 70, 6)]
    np.testing.assert_array_equal(found, encoder.encode(texts))
    advanced.clear()
    cached_encode(encoder, [*texts, "new"], FeatureCache(tmp_path), "encoding")
    assert advanced == [("encoding", 1, 1)]  # only what is not in the cache


def test_counting_uses_a_display_the_callers_function_or_nothing(advanced):
    mine: list[int] = []
    with counting(mine.append, 5) as count:
        count(3)
    with counting(None, 5) as count:
        count(3)
    assert mine == [3] and advanced == []
    with counting("counting", 5) as count:
        count(2)
    assert advanced == [("counting", 5, 2)]


def test_track_yields_the_items_and_counts_each(advanced):
    assert list(track(iter("abc"), "letters", total=3)) == ["a", "b", "c"]
    assert advanced == [("letters", 3, 1)] * 3
