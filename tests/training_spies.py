"""Spies on a training: the calls of chosen functions, every optimiser step, and the search settings of an index."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from callslip.training import loop


@dataclass
class Call:
    """Arguments and result of one call."""

    arguments: tuple[Any, ...]
    result: Any
    phase: str


@dataclass
class Step:
    """One optimiser step: learning rate and weight decay by parameter, and the terms that were added up."""

    phase: str
    number: int
    """Number of the step within its phase, from 0."""
    total: int
    rates: dict[str, float]
    decays: dict[str, float]
    terms: dict[str, float]

    def share(self, decay: bool = True) -> float:
        """Share of the peak learning rate at this step."""
        return loop.schedule(self.number / self.total, 0.05, decay)


@dataclass
class Spies:
    """What was recorded while the spies were installed."""

    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    steps: list[Step] = field(default_factory=list)
    phases: list[tuple[str, int, int]] = field(default_factory=list)
    """Name, epochs and steps per epoch of each phase."""

    def arguments(self, name: str, position: int) -> list[Any]:
        """One argument of every call of a function."""
        return [call.arguments[position] for call in self.calls[name]]

    def steps_of(self, phase: str) -> list[Step]:
        return [step for step in self.steps if step.phase == phase]

    def spy(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        """Record the calls of `owner.name`; keyword arguments count as further positional ones."""
        inner = getattr(owner, name)

        def spied(*arguments: Any, **more: Any) -> Any:
            result = inner(*arguments, **more)
            phase = self.phases[-1][0] if self.phases else ""
            self.calls[name].append(Call((*arguments, *more.values()), result, phase))
            return result

        patch.setattr(owner, name, spied)

    def spy_steps(self, patch: pytest.MonkeyPatch) -> None:
        """Record every phase of training and every optimiser step."""
        plain_train, plain_step = loop.train, loop._step
        names: dict[int, str] = {}

        def train(module: Any, *arguments: Any, **more: Any) -> Any:
            names.update({id(parameter): name for name, parameter in module.named_parameters()})
            self.phases.append((more["phase"], more["epochs"], more["steps_per_epoch"]))
            return plain_train(module, *arguments, **more)

        def step(optimizer: Any, parameters: Any, terms: Any, *more: Any) -> bool:
            values = {name: float(value.detach()) for name, value in terms.items()}
            done = plain_step(optimizer, parameters, terms, *more)
            phase, epochs, steps = self.phases[-1]
            rates, decays = (
                {names[id(p)]: group[what] for group in optimizer.param_groups for p in group["params"]}
                for what in ("lr", "weight_decay")
            )
            number = sum(one.phase == phase for one in self.steps)
            self.steps.append(Step(phase, number, epochs * steps, rates, decays, values))
            return done

        patch.setattr(loop, "train", train)
        patch.setattr(loop, "_step", step)


def check_search_settings(index: Any, query: str, patch: pytest.MonkeyPatch) -> None:
    """Each search setting of a generative index decides what it names: codes written, scores and order."""
    from callslip.search import decode

    documents = len(index)
    spies = Spies()
    spies.spy(patch, decode, "best_codes")
    for beam in (2, 3):
        index.adjust({"beam": beam, "decoding": "beam"}).search(query, k=1)
        assert spies.calls["best_codes"][-1].arguments[3] == beam
    for decoding in ("beam", "exact"):
        index.adjust({"decoding": decoding}).search(query, k=1)
        assert spies.calls["best_codes"][-1].arguments[5] is (decoding == "exact")
    index.adjust({"decoding": "beam", "beam": documents})

    def hits(**values: Any) -> list[Any]:
        return index.adjust(values).search(query, k=documents, explain=True)

    for weight in (0.0, 7.0):
        for hit in hits(ranking="sum", similarity_weight=weight):
            assert hit.score == pytest.approx(hit.why["code_score"] + weight * hit.why["similarity"], abs=1e-4)
    for hit in hits(ranking="share"):
        assert hit.score == pytest.approx(hit.why["code_score"] - np.log(hit.why["bucket_size"]), abs=1e-4)
    assert any(hit.why["bucket_size"] > 1 for hit in hits(ranking="share"))
    for hit in hits(ranking="union"):
        assert hit.score == pytest.approx(hit.why["similarity"], abs=1e-5)
    ranks = [hit.why["beam_rank"] for hit in hits(ranking="bucket")]
    assert ranks == sorted(ranks) and len(set(ranks)) < len(ranks)
    first = [hit.code for hit in hits(ranking="bucket", bucket_limit=1)][: len(set(ranks))]
    assert len(set(first)) == len(first)
