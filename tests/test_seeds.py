"""The setting `seed` reaches every random choice of the tied methods, of the starts that a model may begin at, and of
codes that are made without training: one test for each place that reads it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from callslip import api
from callslip.corpus.documents import Corpus
from callslip.index.code_table import code_table
from callslip.index.counts import Counts
from callslip.index.start import HeldOut
from callslip.index.tied_start import TiedStart
from callslip.methods import make, tied_log
from callslip.methods.tied_residual import correction, weights
from callslip.runtime import device
from callslip.training import batches, held_out

FAST = {"encoder": "scratch:dim=32", "length": 12}


def fit(corpus: Corpus, **values):
    return make("tied-residual", FAST | values).fit(corpus)


def blind(corpus: Corpus) -> Corpus:
    return dataclasses.replace(corpus, judgements={"test": corpus.judgements["test"]})


def differ(choices: list) -> bool:
    """Of three choices, by the seeds 1, 1 and 2: the first two are the same, and the third is another."""
    first, same, other = choices
    return first == same != other


def test_judged_queries_that_fit_the_weights(small_corpus, spy):
    calls = spy(weights, "left_out")
    for seed in (1, 1, 2):
        fit(small_corpus, seed=seed, held_out=30)
    assert differ([call["texts"] for call in calls])


def test_remembered_queries_that_fit_the_weights(small_corpus, spy):
    """More have been learned than `held_out` allows."""
    learned = [(f"mark {document.doc_id}", document.doc_id) for document in small_corpus]
    calls = spy(weights, "left_out")
    for seed in (1, 1, 2):
        api.learn(fit(blind(small_corpus), seed=seed, held_out=30), learned)
    assert [len(call["texts"]) for call in calls] == [30, 30, 30]
    assert differ([call["texts"] for call in calls])


def test_sentences_that_fit_the_weights(small_corpus, monkeypatch, spy):
    monkeypatch.setattr(weights, "SENTENCE_WORDS", 3)
    index = fit(blind(small_corpus), held_out=0)
    cached = spy(type(index.texts), "cached")
    for seed in (1, 1, 2):
        index.settings = dataclasses.replace(index.settings, seed=seed)
        weights.taken_sentences(index, blind(small_corpus))
    assert differ([call["texts"] for call in cached if call["kind"] == "query"])


def test_queries_that_decide_about_the_correction(small_corpus, monkeypatch, spy):
    """The same seed chooses what is held out and what is left for training."""
    monkeypatch.setattr(held_out, "LEAST", 4)
    monkeypatch.setattr(correction, "EPOCHS", 1)
    decided, trained = spy(correction, "chosen"), spy(correction, "trained")
    for seed in (1, 1, 2):
        fit(small_corpus, seed=seed, correction=True)
    held = [sorted(query.text for query in call["held"].queries) for call in decided]
    assert differ(held)
    assert all(not set(texts) & set(call["texts"]) for texts, call in zip(held, trained, strict=True))


def test_training_of_the_correction(small_corpus, monkeypatch, spy):
    """Weights at the beginning, batches and candidates."""
    monkeypatch.setattr(correction, "EPOCHS", 2)
    monkeypatch.setattr(correction, "SIBLINGS", 1)
    index = fit(small_corpus)
    index.settings = dataclasses.replace(index.settings, seed=5)
    texts = [query.text for query in small_corpus.split("train")[0].values()]
    seeded, shuffled = spy(device, "seeded"), spy(batches, "shuffled")
    correction.trained(index, texts, [{row: 1} for row in range(40)])
    assert [call["seed"] for call in seeded] == [5] and {call["seed"] for call in shuffled} == {5}


def test_siblings_among_the_candidates(small_corpus, monkeypatch):
    monkeypatch.setattr(correction, "SIBLINGS", 2)
    monkeypatch.setattr(correction, "CANDIDATES", 2)
    index = fit(small_corpus)
    shared = np.zeros((40, 1), np.int64)
    monkeypatch.setattr(index, "codes_by_row", lambda: shared)  # all in one leaf
    texts = [query.text for query in small_corpus.split("train")[0].values()]
    lists = []
    for seed in (1, 1, 2):
        index.settings = dataclasses.replace(index.settings, seed=seed)
        found = correction.candidate_lists(index, texts, index.texts.training(texts), [{row: 1} for row in range(40)])
        lists.append([rows.tolist() for rows, _ in found])
    assert differ(lists)


@pytest.mark.parametrize("seed", [0, 5])
def test_factors_and_codebooks_of_a_log(log, spy, seed):
    counted, made = spy(Counts, "of"), spy(tied_log, "TiedQuantizer")
    make("tied-log", {"encoder": "scratch", "length": 8, "seed": seed}).fit(log)
    assert {call["seed"] for call in counted} == {seed} == {call["seed"] for call in made}


@pytest.mark.parametrize("seed", [0, 5])
def test_a_start_at_similarities(small_corpus, spy, seed):
    learned = spy(TiedStart, "of")
    values = {"encoder": "scratch", "width": 4, "length": 2, "decoder_width": 16, "epochs": 0}
    make("dsi-semantic", values | {"start": "tied", "seed": seed}).fit(small_corpus)
    assert [call["seed"] for call in learned] == [seed]


@pytest.mark.parametrize("seed", [0, 5])
def test_a_start_at_counts(log, spy, seed):
    """What is held out is the same for the training and for the choice of the trust."""
    counted, held = spy(Counts, "of"), spy(HeldOut, "of")
    values = {"encoder": "scratch", "width": 4, "length": 2, "decoder_width": 16, "history_width": 16, "epochs": 1}
    make("dsi-semantic", values | {"batch_size": 64, "start": "counts", "seed": seed}).fit(log)
    assert {call["seed"] for call in counted} == {seed} == {call["seed"] for call in held} and len(held) >= 2


def test_codes_without_training(small_corpus):
    tables = []
    for seed in (1, 1, 2):
        values = {"encoder": "scratch", "length": 2, "width": 4, "seed": seed}
        tables.append(code_table(make("dsi-random", values), small_corpus).identifiers.in_row_order()[1].tolist())
    assert differ(tables)
