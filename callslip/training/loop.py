"""The training loop, shared by all methods. It sums and logs the named terms of an objective, whatever they are.

Two ways to train on batches that do not fit into memory: an objective that is a mean over the examples of a batch has
its gradients accumulated over micro-batches, by the loop; one that compares the examples of a batch encodes them with
`gradcache.in_chunks`. The same two divide a batch among several processes: see `ranks`.

A phase is one call of `train`. `Course` keeps its position and, with checkpoints, saves and resumes it bit for bit:
weights, optimiser and RNGs as safetensors.
"""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from callslip.errors import BadSetting, TrainingFailed, TrainingStopped
from callslip.runtime import progress
from callslip.training import batches as sampling
from callslip.training import ranks
from callslip.training.checkpoints import Clock
from callslip.training.log import TrainingLog

if TYPE_CHECKING:
    from pathlib import Path

    from callslip.training.checkpoints import Checkpoints

Objective = Callable[[Any, float], Mapping[str, Tensor]]
"""objective(batch, progress from 0 to 1) -> named, already weighted loss terms. An ablation leaves a term out."""

Schedule = Literal["cosine", "linear", "constant"]
"""Learning rates after the warm-up: falling to zero along a cosine or a line, or constant."""
BAD_STEPS_ALLOWED = 3


def train(
    module: nn.Module,
    batches: Callable[[int], Iterable[Any]],
    objective: Objective,
    *,
    epochs: int,
    steps_per_epoch: int,
    learning_rate: float,
    weight_decay: float | Callable[[str], float] = 0.01,
    warmup: float = 0.05,
    decay: bool = True,
    schedule: Schedule = "cosine",
    clip: float = 1.0,
    micro_batch: int | None = None,
    by_example: bool = False,
    autocast: bool = False,
    phase: str = "training",
    log: TrainingLog | None = None,
    after_epoch: Callable[[int], Mapping[str, Any]] | None = None,
    share: Callable[[str], float] | None = None,
    checkpoints: Checkpoints | None = None,
    generators: Sequence[np.random.Generator] = (),
) -> TrainingLog:
    """Train the module's parameters with AdamW. `batches(epoch)` returns the epoch's batches.

    The learning rate warms up over a share of all steps, then follows the schedule (`decay=False`: constant). `share`
    maps a parameter's name to a factor on its learning rate; `weight_decay` may be a function of it. `by_example` (or a
    `micro_batch`): the objective is a mean over examples, which ranks may divide. Steps with a non-finite loss are
    skipped; the third in a row ends the training. With `checkpoints` a phase resumes at its next step, bit for bit, if
    `batches` depends on the epoch alone, NumPy's `generators` are listed, and what `after_epoch` needs is remembered.
    """
    log = log if log is not None else TrainingLog()
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    parameters, watched, total = list(named.values()), "", max(1, epochs * steps_per_epoch)
    optimizer = torch.optim.AdamW(_groups(named, share, weight_decay), lr=learning_rate) if epochs else None
    with Course(checkpoints, phase, module, optimizer, generators) as course, progress.bar() as display:
        at, skipped = course.position, log.skipped_steps
        log.add_earlier(at.records, at.skipped)
        task = display.add_task(phase, total=total, completed=at.step, note="")
        module.train()
        for epoch in range(at.epoch, 0 if at.finished else epochs):
            for batch in course.rest_of(batches(epoch)):
                done = at.step / total
                at.rate = learning_rate * rate_factor(done, warmup, schedule if decay else "constant")
                with _share(batch, by_example, micro_batch) as parts:
                    own = _gradients(objective, parts, done, parameters, autocast)
                terms = _averaged(own, parameters)
                at.count_step(terms if _step(optimizer, parameters, terms, at.rate, clip) else None)
                log.skipped_steps = skipped + at.skipped
                _give_up_after(at.bad, phase, epoch, terms)
                display.update(task, advance=1, note=_note(at.sums, at.count) + watched)
                course.step_done()
            extra = dict(after_epoch(epoch)) if after_epoch else {}
            shown = {name: value for name, value in extra.items() if not isinstance(value, Mapping)}
            watched = "".join(f"  {name} {_short(value)}" for name, value in shown.items())
            module.train()
            log.add(**at.end_epoch(phase, extra))
        course.finish()
    module.eval()
    return log


@contextmanager
def alone(module: nn.Module, part: nn.Module) -> Iterator[None]:
    """Context manager that freezes the module except for one part."""
    own = {id(parameter) for parameter in part.parameters()}
    fixed = [p for p in module.parameters() if p.requires_grad and id(p) not in own]
    for parameter in fixed:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in fixed:
            parameter.requires_grad_(True)


@contextmanager
def _share(batch: Any, by_example: bool, micro_batch: int | None) -> Iterator[list[Any]]:
    """The parts of a batch that this rank computes, with their weights. Gradients are averaged over the ranks, so the
    weights of a share are multiplied by their number."""
    world, count = ranks.current(), sampling.size(batch) if by_example or micro_batch is not None else 0
    if not world.divides(count):
        yield sampling.parts(batch, micro_batch)
        return
    own = world.slice_of(count)
    weight = (own.stop - own.start) * world.count / count
    with world.own_share():
        yield [(part, weight * each) for part, each in sampling.parts(sampling.cut(batch, own), micro_batch)]


def _averaged(terms: Mapping[str, Tensor], parameters: list[nn.Parameter]) -> dict[str, Tensor]:
    """The terms of the whole batch, and its gradients, of those that each rank has of its share."""
    whole = ranks.current().average_terms(terms)
    if _finite(whole):  # on every rank or on none
        ranks.current().average_gradients(parameters)
    return whole


def _groups(
    named: Mapping[str, nn.Parameter],
    share: Callable[[str], float] | None,
    weight_decay: float | Callable[[str], float],
) -> list[dict[str, Any]]:
    """Parameter groups of the optimiser, by learning-rate factor and weight decay."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        decay = weight_decay(name) if callable(weight_decay) else weight_decay
        groups.setdefault((1.0 if share is None else share(name), decay), []).append(parameter)
    return [{"params": some, "share": part, "weight_decay": decay} for (part, decay), some in groups.items()]


def rate_factor(done: float, warmup: float, schedule: Schedule) -> float:
    """Learning-rate factor after a share `done` (0 to 1) of the steps: linear warm-up, then the schedule."""
    if done < warmup:
        return (done + 1e-3) / (warmup + 1e-3)
    if schedule == "constant":
        return 1.0
    left = (done - warmup) / max(1e-9, 1.0 - warmup)
    return 1.0 - left if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * left))


def _gradients(
    objective: Objective,
    parts: list[tuple[Any, float]],
    done: float,
    parameters: list[nn.Parameter],
    autocast: bool,
) -> dict[str, Tensor]:
    """Accumulate the gradient of the terms' sum over the parts of a batch, up to the first loss that is not finite.
    Returns the terms of the batch."""
    whole: dict[str, Tensor] = {}
    for parameter in parameters:
        parameter.grad = None
    for part, weight in parts:
        with precision(parameters[0].device, autocast) if parameters else nullcontext():
            terms = objective(part, done)
            if not terms:
                raise BadSetting("the training has no loss terms", "Set at least one loss weight above 0.")
            if weight != 1.0:
                terms = {name: weight * value for name, value in terms.items()}
            loss = torch.stack(list(terms.values())).sum()
        for name, value in terms.items():
            whole[name] = whole[name] + value.detach() if name in whole else value.detach()
        if not torch.isfinite(loss):
            break
        loss.backward()
    return whole


def precision(device: torch.device, autocast: bool) -> AbstractContextManager[Any]:
    """bfloat16 on a GPU that has it. Never on a CPU, where it is several times slower than float32."""
    if autocast and device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", torch.bfloat16)
    return nullcontext()


def _step(
    optimizer: torch.optim.Optimizer | None,
    parameters: list[nn.Parameter],
    terms: Mapping[str, Tensor],
    rate: float,
    clip: float,
) -> bool:
    """One step along the accumulated gradient; False, without a step, if the loss or gradient is not finite."""
    assert optimizer is not None
    if not _finite(terms):
        return False
    if not torch.isfinite(nn.utils.clip_grad_norm_(parameters, clip)):
        return False
    for group in optimizer.param_groups:
        group["lr"] = rate * group["share"]
    optimizer.step()
    return True


def _finite(terms: Mapping[str, Tensor]) -> bool:
    return bool(torch.isfinite(torch.stack(list(terms.values())).sum()))


def _give_up_after(bad: int, phase: str, epoch: int, terms: Mapping[str, Tensor]) -> None:
    if bad < BAD_STEPS_ALLOWED:
        return
    values = ", ".join(f"{name}={float(value.detach()):g}" for name, value in terms.items())
    raise TrainingFailed(
        f"{phase}, epoch {epoch + 1}: the loss or its gradient was not finite in {bad} consecutive steps ({values})",
        "Lower the learning rate (--set learning_rate=…), and look for texts that give NaN vectors.",
    )


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _note(sums: Mapping[str, float], count: int) -> str:
    return "  ".join(f"{name} {value / max(count, 1):.3f}" for name, value in sums.items())


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
