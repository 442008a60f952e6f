"""Devices: which one computes, and the RNGs of all of them. The only place that seeds torch's RNG."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from callslip.errors import BadSetting

if TYPE_CHECKING:
    import torch


def best_device(device: str | None = None) -> torch.device:
    """The requested device, or the best available one: CUDA, then Apple's MPS, then the CPU."""
    import torch

    if device is not None:
        try:
            torch.empty(0, device=device)
            return torch.device(device)
        except (RuntimeError, AssertionError, NotImplementedError, ValueError):
            raise BadSetting(
                f"device {device!r} is not available", "Use a device of this machine, or none for the best available."
            ) from None
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the RNGs of all devices for a block, and restore the caller's RNG states afterwards."""
    import torch

    # `manual_seed` seeds every device, so the state of every device must be saved, not only the CPU's.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
