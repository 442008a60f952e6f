"""Spies on a training: the calls of chosen functions, every optimiser step, and the search settings of an index."""

from __future__ import annotations

import importlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from callslip.corpus.documents import Corpus, Pair
from callslip.corpus.pseudo_queries import pseudo_queries
from callslip.encoders.encoder import TextVectors
from callslip.methods import make
from callslip.training import loop
from callslip.training.texts import Texts


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
        inner = getattr(owner, name)

        def spied(*arguments: Any, **more: Any) -> Any:
            result = inner(*arguments, **more)
            phase = self.phases[-1][0] if self.phases else ""
            self.calls[name].append(Call((*arguments, *more.values()), result, phase))
            return result

        patch.setattr(owner, name, spied)

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
        asked.append((checkpoint, per_document, more["seed"]))
        return [Pair("a generated query", corpus.doc_ids[0])]

    patch.setattr(importlib.import_module("callslip.corpus.doc2query"), "doc2query", doc2query)

    def count(**changed: Any) -> int:
        make(method, values | {"pseudo_queries": ()} | changed).fit(corpus)
        return len(spies.calls["of_documents"][-1].arguments[1])

    assert count() == 2 * documents
    assert count(train_on_documents=False) == documents
    assert count(train_on_queries=False) == documents
    assert count(query_repeat=3) == 4 * documents
    for kinds in (("title",), ("title", "lead")):
        assert count(pseudo_queries=kinds) == len(pseudo_queries(corpus, kinds=kinds)) + 2 * documents
    assert count(doc2query="some/checkpoint", doc2query_per_document=2, seed=3) == 2 * documents + 1
    assert asked == [("some/checkpoint", 2, 3)]


def check_encoder(corpus: Corpus, method: str, values: dict[str, Any]) -> None:
    """Documents have the vectors of the encoder that the settings name, cut to its length."""
    index: Any = make(method, values | {"encoder": "scratch:dim=16,seed=2", "max_length": 3}).fit(corpus)
    contents = [document.content for document in corpus]
    expected = TextVectors(index.settings).encode([" ".join(text.split()[:3]) for text in contents])
    assert index.vectors.shape == (len(corpus), 16)
    np.testing.assert_allclose(index.vectors, expected, atol=1e-6)


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
