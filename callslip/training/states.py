"""Training state as safetensors bytes: weights, optimiser, RNGs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn


def weights_of(module: nn.Module) -> bytes:
    """All parameters and buffers. Tensors that share memory are each written in full."""
    return save({name: _plain(value) for name, value in module.state_dict().items()})


def set_weights(module: nn.Module, contents: bytes) -> None:
    module.load_state_dict(load(contents))


def all_finite(module: nn.Module) -> bool:
    """Whether all weights are finite; others are not worth saving."""
    return all(bool(torch.isfinite(p).all()) for p in module.parameters() if p.is_floating_point())


def optimizer_of(optimizer: torch.optim.Optimizer) -> bytes:
    """The optimiser's state of each parameter. Learning rates and other options are taken from the settings."""
    found = {
        f"{number}.{name}": _plain(value)
        for number, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    return save(found)


def set_optimizer(optimizer: torch.optim.Optimizer, contents: bytes) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in load(contents).items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def chance_now(generators: Sequence[np.random.Generator] = ()) -> bytes:
    """The RNG states of torch and of NumPy generators."""
    states = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda.{n}": state for n, state in enumerate(torch.cuda.get_rng_state_all())}
    for number, generator in enumerate(generators):
        text = json.dumps(generator.bit_generator.state, default=_list)
        states[f"numpy.{number}"] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return save(states)


def set_chance(contents: bytes, generators: Sequence[np.random.Generator] = ()) -> None:
    """Restore the RNG states saved by `chance_now`."""
    states = load(contents)
    torch.set_rng_state(states["torch"])
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in range(devices):
        if f"cuda.{number}" in states:
            torch.cuda.set_rng_state(states[f"cuda.{number}"], number)
    for number, generator in enumerate(generators):
        generator.bit_generator.state = json.loads(states[f"numpy.{number}"].numpy().tobytes())


def _plain(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True).contiguous()


def _list(value: Any) -> Any:
    return value.tolist()
