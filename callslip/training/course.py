"""The progress of a training phase, and how it is saved and resumed: weights, optimiser and RNGs as safetensors."""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from callslip.errors import TrainingStopped
from callslip.training import ranks
from callslip.training.checkpoints import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from callslip.training.checkpoints import Checkpoints


@dataclass
class Position:
    """Progress of a phase between two steps."""

    epoch: int = 0
    batch: int = 0
    """Number of completed batches of this epoch."""
    step: int = 0
    bad: int = 0
    """Number of consecutive skipped steps up to now."""
    skipped: int = 0
    rate: float = 0.0
    count: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    """Sum of each loss term over the epoch's `count` successful steps."""
    seconds: float = 0.0
    """Seconds spent on this epoch before the phase was resumed."""
    records: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = False

    def __post_init__(self) -> None:
        self.began: float = time.perf_counter()

    def count_step(self, terms: Mapping[str, Tensor] | None) -> None:
        """Count a step; `terms` is None if it was skipped."""
        self.step += 1
        self.batch += 1
        if terms is None:
            self.bad += 1
            self.skipped += 1
            return
        self.bad = 0
        self.count += 1
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value.detach())

    def end_epoch(self, phase: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Advance to the next epoch, and return the log record of this one."""
        means = {name: value / max(self.count, 1) for name, value in self.sums.items()}
        seconds = round(self.seconds + time.perf_counter() - self.began, 3)
        record = {"phase": phase, "epoch": self.epoch, **means, "learning_rate": self.rate, "seconds": seconds, **extra}
        self.records.append(record)
        self.epoch += 1
        self.batch = self.count = 0
        self.sums = {}
        self.seconds = 0.0
        self.began = time.perf_counter()
        return record


class Course:
    """Context manager of a phase: its position, and its checkpoints, if any."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        phase: str,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        generators: Sequence[np.random.Generator],
    ) -> None:
        self.checkpoints, self.phase, self.module = checkpoints, phase, module
        self.optimizer, self.generators = optimizer, generators
        self.position = Position()
        self._chance: bytes | None = None
        if checkpoints is not None:
            checkpoints.enter(phase)
            self._clock = Clock(checkpoints.every)
            found = checkpoints.latest(phase)
            if found is not None:
                self._resume(*found)
        # This also waits: rank 0 must not save or remove what others still read.
        ranks.current().agree(f"{phase}: checkpoint and weights", self.position.step, self.position.finished, module)

    def _resume(self, place: Path, position: Mapping[str, Any]) -> None:
        self.position = Position(**position)
        self._chance = (place / "chance.safetensors").read_bytes()
        set_weights(self.module, (place / "weights.safetensors").read_bytes())
        if not self.position.finished and self.optimizer is not None:
            set_optimizer(self.optimizer, (place / "optimizer.safetensors").read_bytes())

    def __enter__(self) -> Self:
        if self.checkpoints is not None:
            self.checkpoints.stop.waiting = True
        return self

    def __exit__(self, *raised: object) -> None:
        if self.checkpoints is not None:
            self.checkpoints.stop.waiting = False

    def rest_of(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The remaining batches of the epoch."""
        rest = iter(batches)
        for _ in range(self.position.batch):
            next(rest, None)
        self._set_chance()  # after creating the batches, which may have advanced the RNG
        yield from rest

    def step_done(self) -> None:
        """Save if a checkpoint is due, and stop if requested."""
        if self.checkpoints is None:
            return
        asked = ranks.current().any(self.checkpoints.stop.signal is not None)
        if self._clock.due() or asked:
            self._save()
        if asked:
            self._stop()

    def finish(self) -> None:
        """Save the end of the phase, or restore the RNG state of an end that was saved before."""
        self._set_chance()
        ranks.current().agree(f"{self.phase}: the trained weights", self.module)
        if self.checkpoints is None or self.position.finished:
            return
        self.position.finished = True
        self._save()
        if ranks.current().any(self.checkpoints.stop.signal is not None):
            self._stop()

    def _set_chance(self) -> None:
        if self._chance is not None:
            set_chance(self._chance, self.generators)
            self._chance = None

    def _save(self) -> None:
        assert self.checkpoints is not None
        at = self.position
        if not ranks.current().first:
            return
        if at.bad or not all_finite(self.module):
            return  # do not replace the last good checkpoint
        files = {"weights": weights_of(self.module), "chance": chance_now(self.generators)}
        if not at.finished and self.optimizer is not None:
            files["optimizer"] = optimizer_of(self.optimizer)
        spent = at.seconds + time.perf_counter() - at.began
        self.checkpoints.save(self.phase, at.step, files, dataclasses.asdict(at) | {"seconds": spent})

    def _stop(self) -> None:
        assert self.checkpoints is not None
        raise TrainingStopped(
            f"{self.phase} was stopped after step {self.position.step} and saved in {self.checkpoints.folder}",
            signal=self.checkpoints.stop.signal or signal.SIGTERM,  # another rank was asked
        )


# State as bytes.


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
