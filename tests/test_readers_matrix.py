"""Every method of the papers on every reader: frozen vectors, a fine-tuned encoder whose vector or whose token states
the decoder reads, and T5. Each pair is fitted, stopped and resumed, saved, loaded, searched and extended.

A new method is a row of `METHODS`, a new reader a row of `READERS`.
"""

from __future__ import annotations

import dataclasses
import functools
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_bert import save_small_bert
from small_t5 import save_small_t5
from training_spies import before_step, found, weights

from callslip import api
from callslip.corpus.documents import Corpus, Document
from callslip.errors import TrainingStopped
from callslip.index.readers import T5Reader, TunedReader, VectorReader
from callslip.methods import find, make
from callslip.training.checkpoints import Checkpoints

TINY: dict[str, Any] = {
    "epochs": 1, "batch_size": 8, "width": 4, "length": 2, "decoder_width": 16, "decoder_heads": 2, "decoder_layers": 1,
    "training_texts": (), "seq2seq_length": 12, "backend": "torch", "ranking": "code",
    "writing_epochs": 1, "level_epochs": 1, "level_steps": 1, "stop_collapsed": False, "ranker_epochs": 1,
    "adaptor_width": 8, "learning_rate": 1e-2, "encoder_learning_rate": 1e-2,
}  # fmt: skip
"""Settings that make a fit a few steps; a method takes those that it has."""

METHODS: dict[str, dict[str, Any]] = {
    "dsi-semantic": {},
    "dsi-qg": {},
    "nci": {},
    "ultron-pq": {},
    "asi": {},
    "asi++": {},
    "genret": {},
    "uri": {"ranking": "union"},
}
"""Methods, with what differs from `TINY`."""

READERS: dict[str, tuple[type, dict[str, Any]]] = {
    "vectors": (VectorReader, {"encoder": "BERT"}),
    "tuned": (TunedReader, {"encoder": "BERT", "train_encoder": "top"}),
    "states": (TunedReader, {"encoder": "BERT", "train_encoder": "all", "encoder_memory": "states"}),
    "t5": (T5Reader, {"encoder": "BERT", "seq2seq": "T5"}),
    "mt5": (T5Reader, {"encoder": "BERT", "seq2seq": "mT5"}),
}
"""Readers, with the settings that choose them; BERT, T5 and mT5 stand for the folders of tiny checkpoints."""

PAIRS = [
    *((method, reader) for method in METHODS for reader in READERS if reader != "mt5"),
    *((method, "mt5") for method in ("dsi-semantic", "nci", "asi++", "genret")),  # each joins a T5 in its own way
]


@pytest.fixture(scope="module")
def corpus(small_corpus) -> Corpus:
    """Twelve documents with a query each."""
    some = [d for n, d in enumerate(small_corpus) if n % 10 < 3]
    judged = {f"t-{d.doc_id}": {d.doc_id: 1} for d in some}
    return Corpus(some, {name: small_corpus.queries[name] for name in judged}, {"train": judged}, name="few")


@pytest.fixture(scope="module")
def folders(corpus, tmp_path_factory) -> dict[str, str]:
    words = sorted({word.strip(".,") for d in corpus for word in d.content.split()})
    words += [word for word in ("which", "has", "the", "mark") if word not in words]
    return {
        "BERT": str(save_small_bert(tmp_path_factory.mktemp("bert"), words)),
        "T5": str(save_small_t5(tmp_path_factory.mktemp("t5"), words)),
        "mT5": str(save_small_t5(tmp_path_factory.mktemp("mt5"), words, multilingual=True)),
    }


@pytest.fixture(scope="module")
def fitted(corpus, folders):
    """The index of a method and a reader, made and fitted."""

    def new(method: str, reader: str) -> Any:
        known = {field.name for field in dataclasses.fields(find(method).load().Settings)}
        values = TINY | METHODS[method] | READERS[reader][1]
        return make(method, {name: folders.get(str(v), v) for name, v in values.items() if name in known})

    return SimpleNamespace(new=new, index=functools.cache(lambda method, reader: new(method, reader).fit(corpus)))


@pytest.mark.parametrize(("method", "reader"), PAIRS)
class TestPairs:
    def test_it_is_read_by_that_reader_and_trained(self, fitted, corpus, method, reader):
        index = fitted.index(method, reader)
        assert type(index.reader) is READERS[reader][0]
        trained = {name for name, p in index.model.named_parameters() if p.requires_grad}
        if reader in ("tuned", "states"):
            assert any(name.startswith("encoder.") for name in trained)
            assert index.model.reads == ("states" if reader == "states" else "vector")
        if reader in ("t5", "mt5"):
            t5 = getattr(index.model, "writer", index.model).t5
            assert t5.config.model_type == reader
            assert any("t5.encoder" in name for name in trained)
        assert all(torch.isfinite(value).all() for value in weights(index).values() if value.is_floating_point())

    def test_the_reader_itself_is_trained(self, fitted, corpus, method, reader):
        """The encoder's top layer moves, and with T5 its encoder and its decoder; with vectors, the decoder."""
        index = fitted.index(method, reader)
        t5 = ("t5.encoder.block", "t5.decoder.block")
        parts = {"t5": t5, "mt5": t5, "vectors": ("layers.0.",)}.get(reader, ("encoder.model.encoder.layer.2",))
        fresh = fitted.new(method, reader)
        fresh.reader = type(index.reader)(fresh.settings, fresh.texts, fresh.rows)
        fresh.vectors = index.vectors
        fresh.new_model(index.model.widths, index.model.with_end)
        before, after = weights(fresh), weights(index)
        for part in parts:
            assert any(part in name and not torch.equal(before[name], after[name]) for name in before), part

    def test_saved_and_loaded_it_finds_the_same(self, fitted, corpus, tmp_path, method, reader):
        index = fitted.new(method, reader).fit(corpus)
        expected = found(index, corpus)
        assert all(expected)
        index.save(tmp_path / "index")
        loaded = api.load(tmp_path / "index")
        assert type(loaded.reader) is READERS[reader][0] and found(loaded, corpus) == expected
        held, kept = weights(loaded), weights(index)
        assert set(held) == set(kept) and all(torch.equal(held[name], kept[name]) for name in kept)
        loaded.add([Document("new/1", "The violin is a music. It bears the mark music0.", "About violin music0")])
        assert "new/1" in loaded.search("violin", k=13).doc_ids
        again = api.load(tmp_path / "index")
        assert "new/1" in again.search("violin", k=13).doc_ids
        again.compact()
        assert "new/1" in api.load(tmp_path / "index").search("violin", k=13).doc_ids

    def test_stopped_and_resumed_it_has_the_same_weights(self, fitted, corpus, tmp_path, monkeypatch, method, reader):
        expected = weights(fitted.index(method, reader))
        first = Checkpoints(tmp_path / "training", every=1e9)
        with monkeypatch.context() as patched:
            before_step(patched, 2, lambda: first.stop.request(signal.SIGTERM))
            with pytest.raises(TrainingStopped):
                fitted.new(method, reader).fit(corpus, first)
        index = fitted.new(method, reader).fit(corpus, Checkpoints(tmp_path / "training", resume=True))
        resumed = weights(index)
        assert set(resumed) == set(expected)
        assert all(torch.equal(resumed[name], expected[name]) for name in expected)
        codes = (one.identifiers.in_row_order()[1] for one in (index, fitted.index(method, reader)))
        assert np.array_equal(*codes)
