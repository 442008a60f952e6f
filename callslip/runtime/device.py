"""Which device to compute on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callslip.errors import BadSetting

if TYPE_CHECKING:
    import torch


def best_device(device: str | None = None) -> torch.device:
    """The device asked for, or the best there is: CUDA, then Apple's MPS, then the CPU."""
    import torch

    if device is not None:
        try:
            torch.empty(0, device=device)
            return torch.device(device)
        except (RuntimeError, AssertionError, NotImplementedError, ValueError):
            raise BadSetting(
                f"there is no device {device!r} here", "Use one that this machine has, or none for the best there is."
            ) from None
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
