"""The only place that seeds torch's RNG."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the RNGs of all devices for a block, and restore the caller's RNG states afterwards."""
    import torch

    # `manual_seed` seeds every device, so the state of every device must be saved, not only the CPU's.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
