"""Spies on a fit: calls of chosen functions, every optimiser step, and the phases of a fit that takes no steps; and the
checks that several methods share."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from half_precision import HALF

from callslip.corpus.documents import Corpus, Pair
from callslip.corpus.pseudo_queries import pseudo_queries
from callslip.encoders.encoder import TextVectors
from callslip.methods import make
from callslip.settings import describe
from callslip.training import loop
from callslip.training.batches import Texts


def watch(
    patch: pytest.MonkeyPatch, owner: Any, name: str, record: Callable[[tuple[Any, ...], dict[str, Any], Any], None]
) -> None:
    """After each call of `owner.name`, give its positional arguments, keyword arguments and result to `record`."""
    inner = getattr(owner, name)

    def watched(*arguments: Any, **more: Any) -> Any:
        result = inner(*arguments, **more)
        record(arguments, more, result)
        return result

    patch.setattr(owner, name, watched)


def spy_on(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[dict[str, Any]]:
    """A list that gets the arguments of each call of `owner.name`, by their names, with its `result`."""
    calls: list[dict[str, Any]] = []
    signature = inspect.signature(getattr(owner, name))

    def record(arguments: tuple[Any, ...], more: dict[str, Any], result: Any) -> None:
        bound = signature.bind(*arguments, **more)
        bound.apply_defaults()
        calls.append(bound.arguments | {"result": result})

    watch(patch, owner, name, record)
    return calls


class Killed(Exception):
    """A fit that ends without a chance to save anything."""


def before_step(patch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Call `act` before an optimiser step, counted from 1 over the whole fit."""
    plain, steps = loop._step, itertools.count(1)

    def step(*arguments: Any) -> bool:
        if next(steps) == number:
            act()
        return plain(*arguments)

    patch.setattr(loop, "_step", step)


def kill_at(patch: pytest.MonkeyPatch, number: int) -> None:
    """Raise `Killed` before an optimiser step, counted from 1 over the whole fit."""

    def die() -> None:
        raise Killed

    before_step(patch, number, die)


@dataclass
class Phase:
    """What the training loop was asked to do."""

    name: str
    module: torch.nn.Module
    batches: Callable[[int], Any]
    objective: Callable[[Any, float], dict[str, torch.Tensor]]
    epochs: int
    steps: int
    learning_rate: float
    more: dict[str, Any]
    batch_lists: list[list[Any]] = field(default_factory=list)
    """The batches of each epoch, if the phase was run through."""
    terms: list[dict[str, float]] = field(default_factory=list)
    """The terms of the first batch of each epoch, if the phase was run through."""

    @property
    def weight_decay(self) -> float:
        decay = self.more["weight_decay"]
        return decay("any") if callable(decay) else decay

    def first(self, epoch: int = 0) -> Any:
        """The first batch of an epoch."""
        return next(iter(self.batches(epoch)))

    def run_through(self) -> None:
        """Draw the batches of every epoch and compute the terms of the first, without a step."""
        for epoch in range(self.epochs):
            self.batch_lists.append(list(self.batches(epoch)))
            with torch.no_grad():
                terms = self.objective(self.batch_lists[-1][0], epoch / self.epochs)
            self.terms.append({name: float(value) for name, value in terms.items()})
        self.module.eval()


def without_steps(patch: pytest.MonkeyPatch, see: Callable[[Phase], None] = lambda phase: None) -> list[Phase]:
    """Replace the training loop by one that takes no steps; a list that gets the phases. `see` is called in the place
    of the training, with its phase."""
    phases: list[Phase] = []

    def record(module, batches, objective, *, epochs, steps_per_epoch, learning_rate, phase="", log=None, **more):
        phases.append(Phase(phase, module, batches, objective, epochs, steps_per_epoch, learning_rate, more))
        see(phases[-1])
        return loop.TrainingLog() if log is None else log

    train = loop.train
    own = [module for name, module in sys.modules.items() if name.startswith("callslip.")]
    for module in [module for module in own if vars(module).get("train") is train]:
        patch.setattr(module, "train", record)
    return phases


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
    """Fit without training."""
    made = Plan(make(method, values, preset=preset), corpus)
    with pytest.MonkeyPatch.context() as patch:
        phases = without_steps(patch)
        made.index.fit(corpus)
    made.phases = {phase.name: phase for phase in phases}
    if made.index.model is not None:
        made.index.model.eval()
    return made


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
        return loop.rate_factor(self.number / self.total, 0.05, "cosine" if decay else "constant")


@dataclass
class Spies:
    """What was recorded while the spies were installed."""

    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    steps: list[Step] = field(default_factory=list)
    phases: list[tuple[str, int, int]] = field(default_factory=list)
    """Name, epochs and steps per epoch of each phase."""
    first: dict[str, dict[str, Any]] = field(default_factory=dict)
    last: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Weights of the model when a phase began and when it ended, by phase and parameter."""

    def arguments(self, name: str, position: int) -> list[Any]:
        """One argument of every call of a function."""
        return [call.arguments[position] for call in self.calls[name]]

    def steps_of(self, phase: str) -> list[Step]:
        return [step for step in self.steps if step.phase == phase]

    def spy(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        """Record the calls of `owner.name`; keyword arguments count as further positional ones."""

        def record(arguments: tuple[Any, ...], more: dict[str, Any], result: Any) -> None:
            phase = self.phases[-1][0] if self.phases else ""
            self.calls[name].append(Call((*arguments, *more.values()), result, phase))

        watch(patch, owner, name, record)

    def spy_steps(self, patch: pytest.MonkeyPatch, weights: bool = False) -> None:
        """Record every phase of training and every optimiser step; with `weights`, the model around each phase."""
        plain_train, plain_step = loop.train, loop._step
        names: dict[int, str] = {}

        def train(module: Any, *arguments: Any, **more: Any) -> Any:
            names.update({id(parameter): name for name, parameter in module.named_parameters()})
            self.phases.append((more["phase"], more["epochs"], more["steps_per_epoch"]))
            if not weights:
                return plain_train(module, *arguments, **more)
            self.first[more["phase"]] = {name: value.clone() for name, value in module.state_dict().items()}
            log = plain_train(module, *arguments, **more)
            self.last[more["phase"]] = {name: value.clone() for name, value in module.state_dict().items()}
            return log

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


def spy_batches(patch: pytest.MonkeyPatch, spies: Spies) -> None:
    """Record the texts of a training, and what `Texts.drawn` is asked for with the batches that it gives."""
    drawn = Texts.drawn
    patch.setattr(Texts, "drawn", lambda self, *arguments: list(drawn(self, *arguments)))
    spies.spy(patch, Texts, "drawn")
    spies.spy(patch, Texts, "of_documents")


def check_training_texts(corpus: Corpus, method: str, values: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    """The settings of training texts decide how many there are: `corpus` has a judged query for each document."""
    spies, asked, documents = Spies(), [], len(corpus)
    spy_batches(patch, spies)

    def doc2query(corpus: Corpus, checkpoint: str, per_document: int, **more: Any) -> list[Pair]:
        asked.append((checkpoint, per_document, more["seed"], more["sampling"]))
        return [Pair("a generated query", corpus.doc_ids[0])]

    patch.setattr(importlib.import_module("callslip.corpus.doc2query"), "doc2query", doc2query)

    def count(**changed: Any) -> int:
        make(method, values | {"training_texts": ("document",)} | changed).fit(corpus)
        return len(spies.calls["of_documents"][-1].arguments[1])

    assert count() == 2 * documents
    assert count(training_texts=()) == documents
    assert count(query_repeat=0) == documents
    assert count(query_repeat=3) == 4 * documents
    for kinds in (("title",), ("title", "lead")):
        assert count(training_texts=("document", *kinds)) == len(pseudo_queries(corpus, kinds=kinds)) + 2 * documents
    assert count(doc2query="some/checkpoint:count=2", seed=3) == 2 * documents + 1
    count(doc2query="some/checkpoint:sampling=nucleus")
    assert asked == [("some/checkpoint", 2, 3, "top-k"), ("some/checkpoint", 5, 0, "nucleus")]


def check_encoder(corpus: Corpus, method: str, values: dict[str, Any]) -> None:
    """Documents have the vectors of the encoder that the settings name, cut to its length."""
    index: Any = make(method, values | {"encoder": "scratch:dim=16,seed=2,max_length=3"}).fit(corpus)
    contents = [document.content for document in corpus]
    expected = TextVectors(index.settings).encode([" ".join(text.split()[:3]) for text in contents])
    assert index.vectors.shape == (len(corpus), 16)
    np.testing.assert_allclose(index.vectors, expected, **HALF)


def check_search_settings(index: Any, query: str, patch: pytest.MonkeyPatch) -> None:
    """Each search setting of a generative index decides what it names: codes written, scores and order."""
    from callslip.search import candidates

    documents = len(index)
    spies = Spies()
    spies.spy(patch, candidates, "best_codes")
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
    for hit in hits(ranking="code"):
        assert hit.score == pytest.approx(hit.why["code_score"], abs=1e-5) and "similarity" not in hit.why
    ranks = [hit.why["beam_rank"] for hit in hits(ranking="bucket")]
    assert [hit.why["beam_rank"] for hit in hits(ranking="code")] == ranks
    index.adjust({"ranking": "bucket"})
    assert ranks == sorted(ranks) and len(set(ranks)) < len(ranks)
    first = [hit.code for hit in hits(ranking="bucket", bucket_limit=1)][: len(set(ranks))]
    assert len(set(first)) == len(first)


def weights(index: Any) -> dict[str, torch.Tensor]:
    """A copy of all weights of an index's model."""
    return {name: value.clone() for name, value in index.model.state_dict().items()}


def found(index: Any, corpus: Corpus) -> list[list[tuple[str, float]]]:
    """The first hits of a few queries, with scores that rounding does not change."""
    queries = list(corpus.queries.values())[:4]
    return [[(hit.doc_id, round(hit.score, 3)) for hit in hits] for hits in index.search_batch(queries, k=5)]


def not_named(settings: type, *files: Path) -> list[str]:
    """Settings that no test in these files names, as `name=` or `"name"`."""
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    names = [setting.name for setting in describe(settings)]
    return [name for name in names if f"{name}=" not in source and f'"{name}"' not in source]
