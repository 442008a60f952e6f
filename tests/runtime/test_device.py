"""Seeds: a block under a seed repeats, and the caller's RNG goes on as if it had not been there."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from callslip.runtime.device import seeded


def test_a_block_under_a_seed_repeats():
    found = []
    for seed in (3, 3, 4):
        torch.rand(2)  # wherever the caller's RNG is
        with seeded(seed):
            found.append(torch.rand(5))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    torch.manual_seed(3)
    assert torch.equal(found[0], torch.rand(5))


def test_the_callers_rng_state_is_restored():
    torch.manual_seed(11)
    torch.rand(3)
    state = torch.random.get_rng_state()
    with seeded(5):
        torch.rand(100)
        with seeded(6):
            torch.rand(1)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_callers_rng_state_is_restored_after_an_error():
    state = torch.random.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded(5):
        torch.rand(1)
        _ = 1 / 0
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("available", "devices"), [(True, [0, 1, 2]), (False, [])])
def test_the_state_of_every_cuda_device_is_saved(monkeypatch, available, devices):
    """The seed is set inside the fork, since it seeds all devices."""
    happened: list[object] = []

    @contextmanager
    def fork_rng(devices):
        happened.append(devices)
        yield
        happened.append("restored")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: happened.append(f"seed {seed}"))
    with seeded(9):
        happened.append("block")
    assert happened == [devices, "seed 9", "block", "restored"]
