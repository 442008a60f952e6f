"""Choice of the compute device."""

from __future__ import annotations

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
