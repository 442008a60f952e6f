"""Threads: the policy is set before torch is loaded and never over the user's, and one thread is only for a while."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from callslip.runtime import process

CHILD = (
    "import os, sys; from callslip.runtime import process; print(process.prepare_threads(searching={searching}),"
    "os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
)


def child(searching: bool, **environment: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_", "KMP_"))}
    script = CHILD.format(searching=searching)
    return subprocess.run(
        [sys.executable, "-c", script], env=clean | environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_waiting_threads_sleep_while_searching_and_spin_briefly_while_training():
    assert child(True) == "True passive None False"
    assert child(False) == f"True None {process.SHORT_SPIN} False"


def test_the_users_choice_stands():
    assert child(True, OMP_WAIT_POLICY="active") == "True active None False"
    assert child(False, GOMP_SPINCOUNT="7") == "True None 7 False"


def test_too_late_is_said(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    assert process.prepare_threads(searching=True) is False
    assert "OMP_WAIT_POLICY" not in os.environ


def test_one_thread_for_a_while_also_when_entered_twice():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        inside, leave = threading.Event(), threading.Event()

        def other() -> None:
            with process.one_thread():
                inside.set()
                leave.wait(10)

        with process.one_thread():
            assert torch.get_num_threads() == 1
            helper = threading.Thread(target=other)
            helper.start()
            assert inside.wait(10)
        leave.set()
        helper.join()
        assert process._inside == 0
        with pytest.raises(ValueError), process.one_thread():
            raise ValueError
        torch.set_num_threads(2)
        with process.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
