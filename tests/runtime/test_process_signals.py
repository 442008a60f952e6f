"""Signals and imports: nothing is interrupted while it is loaded, and no signal is lost for it."""

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from callslip.errors import TrainingStopped
from callslip.runtime.process import outside_imports
from callslip.training.checkpoints import Stop

NUMBERS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A module that is interrupted while it is loaded, and loads another one afterwards."""
    (tmp_path / "loaded_slowly.py").write_text("import os, loaded_inside\nend = True\n")
    (tmp_path / "loaded_inside.py").write_text("import os\nos.kill(os.getpid(), int(os.environ['NUMBER']))\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("loaded_slowly", "loaded_inside"):
        sys.modules.pop(name, None)


def wait(seconds=30.0):
    """Until something raises; in short sleeps, so that it can."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.001)
    pytest.fail("the signal was lost")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_stop_waits_for_the_import_and_is_not_lost(library, monkeypatch, number):
    monkeypatch.setenv("NUMBER", str(int(number)))
    loaded = []
    with pytest.raises(TrainingStopped, match="between two checkpoints") as stopped, Stop().on_signals("Go on."):
        loaded.append(importlib.import_module("loaded_slowly").end)
        wait()
    assert loaded == [True]
    assert stopped.value.exit_code == 128 + number


def test_a_phase_that_was_asked_once_while_a_library_was_loaded_still_saves(library, monkeypatch):
    """The delay must not count as a second request, which would stop the phase before it saves."""
    monkeypatch.setenv("NUMBER", str(int(signal.SIGTERM)))
    stop = Stop()
    stop.waiting = True
    with stop.on_signals("Go on."):
        importlib.import_module("loaded_slowly")
        assert stop.signal is None
        until = time.monotonic() + 30
        while stop.signal is None and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.2)  # a second one would raise here
    assert stop.signal == signal.SIGTERM


def test_outside_an_import_a_signal_is_handled_at_once():
    got = []
    before = signal.signal(signal.SIGTERM, outside_imports(lambda number, frame: got.append(number)))
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        assert got == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_program_that_works_inside_an_import_can_be_stopped(tmp_path):
    """A script that is itself imported: the imports that were under way from the start do not count."""
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        import os, signal
        from callslip.runtime.process import outside_imports
        signal.signal(signal.SIGINT, outside_imports(signal.default_int_handler))
        try:
            os.kill(os.getpid(), signal.SIGINT)
            print("went on")
        except KeyboardInterrupt:
            print("stopped")
        """)
    )
    command = [sys.executable, "-c", "import script"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "stopped\n"


def test_the_command_line_is_interrupted_after_its_imports(library):
    """Ctrl-C while a command loads its libraries: a message and 130, not what half a library makes of it."""
    program = (  # the tests may run where Ctrl-C is ignored, in the background of a shell
        "import signal, sys; from callslip import cli; sys.argv = ['callslip', 'late'];\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "@cli.app.command()\ndef late():\n import loaded_slowly, time\n time.sleep(30)\n"
        "cli.main()"
    )
    place = {"NUMBER": str(int(signal.SIGINT)), "PYTHONPATH": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr and "Traceback" not in done.stderr
