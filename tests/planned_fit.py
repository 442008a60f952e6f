"""Fits without training: the training loop records what it is asked to do, so that a test can look at it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from callslip.corpus.documents import Corpus
from callslip.methods import make
from callslip.training import loop


@dataclass
class Phase:
    """What the training loop was asked to do."""

    module: torch.nn.Module
    batches: Callable[[int], Any]
    objective: Callable[[Any, float], dict[str, torch.Tensor]]
    epochs: int
    steps: int
    learning_rate: float
    more: dict[str, Any]

    def first(self, epoch: int = 0) -> Any:
        """The first batch of an epoch."""
        return next(iter(self.batches(epoch)))


@dataclass
class Plan:
    """An index that was fitted without training, and the phases that the training would have had, by name."""

    index: Any
    corpus: Corpus
    phases: dict[str, Phase] = field(default_factory=dict)

    @property
    def codes(self) -> np.ndarray:
        return self.index.identifiers.in_row_order()[1].astype(np.int64)

    @functools.cached_property
    def examples(self) -> Any:
        return self.index.examples(self.corpus)


def plan(method: str, corpus: Corpus, values: Mapping[str, Any], preset: str | None = None) -> Plan:
    made = Plan(make(method, values, preset=preset), corpus)

    def record(module, batches, objective, *, epochs, steps_per_epoch, learning_rate, phase, **more):
        made.phases[phase] = Phase(module, batches, objective, epochs, steps_per_epoch, learning_rate, more)

    own = [module for name, module in sys.modules.items() if name.startswith("callslip.")]
    with pytest.MonkeyPatch.context() as patched:
        for module in [module for module in own if vars(module).get("train") is loop.train]:
            patched.setattr(module, "train", record)
        made.index.fit(corpus)
    if made.index.model is not None:
        made.index.model.eval()
    return made
