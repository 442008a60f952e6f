"""GLEN, Tied-Atomic and the trained dual encoder on every reader: fit, stop and resume, save, load, search and add; and
the preset `paper` of each, fitted end to end on tiny checkpoints while what the paper does not have is made to fail."""

from __future__ import annotations

import functools
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from training_spies import Spies, before_step, found, weights

from callslip import api
from callslip.corpus.documents import Corpus, Document
from callslip.encoders.encoder import TextVectors
from callslip.errors import TrainingStopped
from callslip.index.generative import GenerativeRetriever
from callslip.index.readers import T5Reader, TunedReader, VectorReader
from callslip.methods import find, make
from callslip.methods.glen import model as glen_model
from callslip.methods.glen import training as glen_training
from callslip.methods.tied_atomic import training as tied_training
from callslip.training import loop
from callslip.training.checkpoints import Checkpoints

SHORT = {
    "epochs": 1, "batch_size": 8, "training_texts": (), "seq2seq_length": 12, "backend": "torch", "learning_rate": 1e-2,
    "encoder_learning_rate": 1e-2, "decoder_width": 16, "decoder_heads": 2, "decoder_layers": 1,
}  # fmt: skip
GLEN = {"length": 2, "keyword_learning_rate": 1e-2, "epochs": 2}
READERS: dict[str, tuple[type, dict[str, Any]]] = {
    "vectors": (VectorReader, {"encoder": "BERT"}),
    "tuned": (TunedReader, {"encoder": "BERT", "train_encoder": "top"}),
    "t5": (T5Reader, {"encoder": "BERT", "seq2seq": "T5"}),
    "mt5": (T5Reader, {"encoder": "BERT", "seq2seq": "mT5"}),
}
PAIRS = [
    *(("tied-atomic", reader) for reader in READERS),
    *(("dense-trained", reader) for reader in READERS if reader != "vectors"),  # which leave nothing to train
    *(("glen", reader) for reader in READERS),
]


@pytest.fixture(scope="module")
def few(small_corpus) -> Corpus:
    """Twelve documents with a query each."""
    some = [document for number, document in enumerate(small_corpus) if number % 10 < 3]
    judged = {f"t-{document.doc_id}": {document.doc_id: 1} for document in some}
    return Corpus(some, {name: small_corpus.queries[name] for name in judged}, {"train": judged}, name="few")


@pytest.fixture(scope="module")
def fitted(few, tiny):
    """The index of a method and a reader: made, or made and fitted."""

    def new(method: str, reader: str) -> Any:
        values = SHORT | (GLEN if method == "glen" else {}) | READERS[reader][1]
        if method == "dense-trained" and READERS[reader][0] is T5Reader:
            values |= {"train_encoder": "none"}
        return make(method, {name: tiny.get(str(value), value) for name, value in values.items()})

    return SimpleNamespace(new=new, index=functools.cache(lambda method, reader: new(method, reader).fit(few)))


@pytest.mark.parametrize(("method", "reader"), PAIRS)
class TestPairs:
    def test_it_is_read_by_that_reader_and_finds_what_it_learned(self, fitted, few, method, reader):
        index = fitted.index(method, reader)
        assert type(index.reader) is READERS[reader][0]
        assert all(torch.isfinite(value).all() for value in weights(index).values() if value.is_floating_point())
        hits = index.search_batch(few.queries.values(), k=len(few))
        assert all(set(one.doc_ids) == set(few.doc_ids) for one in hits)

    def test_saved_and_loaded_it_finds_the_same_and_takes_new_documents(self, fitted, few, tmp_path, method, reader):
        index = fitted.new(method, reader).fit(few)
        expected = found(index, few)
        index.save(tmp_path / "index")
        loaded = api.load(tmp_path / "index")
        assert type(loaded.reader) is READERS[reader][0] and found(loaded, few) == expected
        before = weights(loaded)
        new = Document("new/1", "The violin is a music. It bears the mark music0.", "About violin music0")
        loaded.add([new])
        assert all(torch.equal(before[name], value) for name, value in weights(loaded).items())
        assert "new/1" in loaded.search(new.content, k=13).doc_ids
        again = api.load(tmp_path / "index")
        assert "new/1" in again.search(new.content, k=13).doc_ids
        again.delete(["fruit/0"])
        again.compact()
        last = api.load(tmp_path / "index").search(new.content, k=13).doc_ids
        assert "new/1" in last and "fruit/0" not in last

    def test_stopped_and_resumed_it_has_the_same_weights(self, fitted, few, tmp_path, monkeypatch, method, reader):
        expected = fitted.index(method, reader)
        first = Checkpoints(tmp_path / "training", every=1e9)
        with monkeypatch.context() as patched:
            before_step(patched, 2, lambda: first.stop.request(signal.SIGTERM))
            with pytest.raises(TrainingStopped):
                fitted.new(method, reader).fit(few, first)
        index = fitted.new(method, reader).fit(few, Checkpoints(tmp_path / "training", resume=True))
        resumed, whole = weights(index), weights(expected)
        assert set(resumed) == set(whole) and all(torch.equal(resumed[name], whole[name]) for name in whole)
        assert found(index, few) == found(expected, few)


@pytest.mark.parametrize("reader", ["tuned", "t5"])
def test_a_saved_glen_is_fed_as_it_was(few, tiny, tmp_path, reader):
    values = {"feedback": "token", **SHORT, **GLEN, **READERS[reader][1]}
    index = make("glen", {name: tiny.get(str(value), value) for name, value in values.items()}).fit(few)
    index.save(tmp_path / "index")
    loaded = api.load(tmp_path / "index")
    assert loaded.model.feedback == "token" and found(loaded, few) == found(index, few)


# The presets `paper`.


PAPERS: dict[str, tuple[type, dict[str, Any]]] = {
    "glen": (T5Reader, {"seq2seq": "T5", "doc2query": "T5", "batch_size": 8,
                        "keyword_epochs": 1, "epochs": 2}),
    "tied-atomic": (T5Reader, {"seq2seq": "T5", "batch_size": 8, "epochs": 1}),
    "dense-trained": (TunedReader, {"encoder": "BERT", "seq2seq_length": 32, "batch_size": 8, "epochs": 1}),
}  # fmt: skip
"""The reader of each preset, and what a test changes: checkpoints and sizes."""


def forbidden(*arguments: Any, **more: Any) -> Any:
    pytest.fail("the paper has no such thing")


@pytest.fixture(scope="module")
def paper(few, tiny):
    """A fit by the preset, and what was called in it."""

    @functools.cache
    def fit(name: str) -> SimpleNamespace:
        spies = Spies()
        values = {key: tiny.get(str(value), value) for key, value in PAPERS[name][1].items()}
        index: Any = make(name, values, preset="paper")
        with pytest.MonkeyPatch.context() as patch:
            spies.spy_steps(patch)
            patch.setattr(tied_training, "train", loop.train)
            for owner, function in (
                (glen_training, "with_noise"), (tied_training, "with_noise"), (glen_training, "identifier_embedding"),
                (glen_training, "prefix_negatives"), (glen_training, "pairwise_ranking"),
                (tied_training, "contrastive"), (tied_training, "draw"),
            ):  # fmt: skip
                spies.spy(patch, owner, function)
            for used in ("encode", "cached"):
                patch.setattr(TextVectors, used, forbidden)
            patch.setattr(glen_model.LexicalWriter, "__init__", forbidden)
            patch.setattr(GenerativeRetriever, "rank", forbidden)
            index.fit(few)
            queries = list(few.queries.values())[:3]
            hits = index.search_batch(queries, k=4)
        return SimpleNamespace(index=index, spies=spies, hits=hits, queries=queries)

    return fit


@pytest.mark.parametrize("name", PAPERS)
class TestPapers:
    def test_the_whole_model_is_trained_and_no_frozen_vector_is_read(self, paper, name):
        made = paper(name)
        assert type(made.index.reader) is PAPERS[name][0]
        assert made.index.texts._encoder is None
        trained = {parameter for step in made.spies.steps for parameter in step.rates}
        parts = {T5Reader: ("t5.shared", "t5.encoder.block.0", "t5.decoder.block.0"),
                 TunedReader: ("encoder.model.encoder.layer.0", "encoder.model.embeddings")}  # fmt: skip
        for part in parts[PAPERS[name][0]]:
            assert any(part in parameter for parameter in trained), part

    def test_there_is_no_noise(self, paper, name):
        made = paper(name)
        assert made.index.settings.noise == 0
        assert made.spies.calls["with_noise"] and not any(made.spies.arguments("with_noise", 1))

    def test_saved_and_loaded_it_finds_the_same(self, paper, tmp_path, name):
        made = paper(name)
        made.index.save(tmp_path / "index")
        again = api.load(tmp_path / "index").search_batch(made.queries, k=4)
        assert [hits.doc_ids for hits in again] == [hits.doc_ids for hits in made.hits]
        assert all(len(hits) == 4 for hits in made.hits)

    def test_the_preset_is_the_recipe_and_names_the_papers_checkpoint(self, name):
        from callslip.recipes import read_recipe

        assert find(name).presets()["paper"] == read_recipe(f"{name}-paper").settings
        settings = make(name, preset="paper").settings
        distilbert = "distilbert/distilbert-base-uncased"
        assert (settings.seq2seq or settings.encoder) == (distilbert if name == "dense-trained" else "t5-base")


def test_glen_has_two_phases_by_t5_and_none_of_our_start(paper):
    made = paper("glen")
    index, spies = made.index, made.spies
    assert [phase for phase, _, _ in spies.phases] == ["learning keywords", "refining codes"]
    terms = {step.phase: set(step.terms) for step in spies.steps}
    assert terms["learning keywords"] == {"query keywords", "document keywords"}
    assert terms["refining codes"] == {"pairwise", "pointwise"}
    assert index.settings.start == () and index.settings.feedback == "hidden" and index.settings.length == 3
    assert index.vectors.shape == (12, 0) and index.settings.ranking == "bucket" and index.settings.decoding == "beam"
    temperatures = {call.arguments[2] for call in spies.calls["identifier_embedding"]}
    assert temperatures == {1.0, float(np.exp(-1))}, "annealed"
    assert all(call.arguments[3] is None for call in spies.calls["identifier_embedding"]), "over all words"
    assert {call.arguments[1] for call in spies.calls["prefix_negatives"]} == {8}
    assert len(spies.calls["prefix_negatives"]) == 2, "new negatives in each epoch"
    assert index.settings.ranking_temperature == 1.0 and index.settings.pointwise_weight == 0.5
    plain = make("glen", preset="paper").settings
    assert (plain.keyword_epochs, plain.keyword_learning_rate) == (20, 2e-4)
    assert (plain.epochs, plain.learning_rate, plain.weight_decay, plain.batch_size) == (12, 5e-5, 1e-4, 128)
    assert plain.epoch_pairs * plain.epochs == 30_000 * plain.batch_size, "30,000 steps of refinement"


def test_glen_ranks_by_codes_and_collisions_by_identifier_weights(paper):
    made = paper("glen")
    hits = made.index.search(made.queries[0], k=12, explain=True)
    assert [hit.why["beam_rank"] for hit in hits] == sorted(hit.why["beam_rank"] for hit in hits)
    assert hits.scores == pytest.approx([hit.why["code_score"] for hit in hits])


@pytest.mark.parametrize("name", ["tied-atomic", "dense-trained"])
def test_tied_atomic_is_contrastive_with_bm25_negatives_and_plain_products(paper, name):
    made = paper(name)
    settings = made.index.settings
    assert {frozenset(step.terms) for step in made.spies.steps} == {frozenset({"contrastive"})}
    assert {call.arguments[3] for call in made.spies.calls["contrastive"]} == {1.0}, "no temperature"
    assert {call.arguments[2].shape[1] for call in made.spies.calls["contrastive"]} == {1}
    assert settings.negatives_from == 100 and settings.products == "dot"
    assert [epochs * steps for _, epochs, steps in made.spies.phases] == [2], "the twelve judged queries, and no others"
    lengths = np.linalg.norm(made.index.vectors, axis=1)
    assert not np.allclose(lengths, 1, atol=1e-2), "states are not normalised"
    state = made.index.query_vectors(made.queries[:1])[0]
    best = np.sort(made.index.vectors @ state)[::-1][:4]
    assert made.index.search(made.queries[0], k=4).scores == pytest.approx(best.tolist(), rel=1e-4)


def test_the_marco_recipe_distils_a_cross_encoder():
    from callslip.recipes import read_recipe

    settings = make("tied-atomic", read_recipe("tied-atomic-msmarco").settings).settings
    assert settings.contrastive_weight == 0 and settings.teacher.startswith("cross-encoder/")
    assert settings.seq2seq == "t5-small" and settings.teacher_scale == 1.0 and settings.temperature == 1.0
