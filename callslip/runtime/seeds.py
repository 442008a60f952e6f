"""Seeds: the one place that seeds torch's RNG."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block under a seed, on every device, and give the caller's RNG states back afterwards."""
    import torch

    # `manual_seed` seeds every device, so every device's state has to be saved, not the CPU's alone.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
