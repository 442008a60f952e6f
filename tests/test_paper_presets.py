"""The preset `paper` of a method is the paper's system: each is fitted end to end on a tiny checkpoint, with nothing
changed but the names of checkpoints and sizes, while what the paper does not have is made to fail.

A new preset is a row of `PRESETS`.
"""

from __future__ import annotations

import functools
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_bert import save_small_bert
from small_log import small_log
from small_t5 import save_small_t5
from training_spies import Spies

from callslip import api
from callslip.corpus.documents import Corpus
from callslip.encoders.encoder import TextVectors
from callslip.index import readers
from callslip.index.counts import Counts
from callslip.index.generative import GenerativeRetriever
from callslip.index.readers import HistoryReader, T5Reader, TunedReader
from callslip.methods import METHODS, find, make
from callslip.methods.asi import training as asi_training
from callslip.methods.asi.indexers import NetworkIndexer
from callslip.methods.genret import training as genret_training
from callslip.methods.uri import ranker as uri_ranker
from callslip.training import loop

T5 = {"seq2seq": "T5", "batch_size": 8, "epochs": 1, "encoder": "BERT"}
GENERATED = {"doc2query": "T5:count=2"}
PRESETS: dict[str, tuple[type, dict[str, Any]]] = {
    "asi": (TunedReader, GENERATED | {"encoder": "BERT", "decoder_width": 16, "decoder_heads": 2, "batch_size": 8,
                                      "width": 6, "epochs": 1}),
    "asi++": (TunedReader, GENERATED | {"encoder": "BERT", "decoder_width": 16, "decoder_heads": 2, "batch_size": 8,
                                        "width": 6, "epochs": 1}),
    "genret": (T5Reader, T5 | GENERATED | {"width": 8, "length": 2, "warmup_epochs": 1, "level_epochs": 1,
                                           "level_steps": 1, "stop_collapsed": False}),
    "uri": (HistoryReader, {"width": 4, "history_width": 8, "decoder_width": 8, "decoder_heads": 2, "epochs": 1,
                            "level_epochs": 1, "level_steps": 1, "ranker_epochs": 1, "batch_size": 32}),
    "dsi-semantic": (T5Reader, T5 | {"width": 3, "leaf": 4}),
    "nci": (T5Reader, T5 | GENERATED | {"width": 3, "leaf": 4, "adaptor_width": 8}),
    "ultron-pq": (T5Reader, T5 | GENERATED | {"width": 4, "length": 3}),
}  # fmt: skip
"""The reader of each preset, and the sizes that a test can afford."""
ENCODED = {"dsi-semantic", "nci", "ultron-pq"}
"""Their papers make codes from the vectors of a frozen encoder, once; nothing else reads these."""
ITEMS = {"encoder": "scratch", "epochs": 1, "batch_size": 32, "decoder_width": 8, "decoder_heads": 2}
ITEMS |= {"history_width": 8}
LOGS: dict[str, dict[str, Any]] = {
    "tiger": ITEMS | {"width": 6, "rqvae_epochs": 1},
    "deep-retrieval": ITEMS | {"width": 3, "rounds": 1, "round_epochs": 1},
    "recforest": ITEMS | {"width": 4},
}
"""Presets of recommenders whose items are read from a log, and the sizes that a test can afford."""
ELSEWHERE = {"glen", "tied-atomic", "dense-trained"}
"""Presets that `methods/test_glen_tied_readers.py` fits."""


def test_every_preset_of_a_paper_is_fitted_in_a_test():
    papers = {name for name, method in METHODS.items() if method.paper is not None}
    same = {name: find(name).presets()["paper"] == find("dsi-semantic").presets()["paper"] for name in papers}
    assert {name for name in papers if not same[name]} | {"dsi-semantic"} == {*PRESETS, *LOGS, *ELSEWHERE}


def forbidden(*arguments: Any, **more: Any) -> Any:
    pytest.fail("the paper has no such thing")


@pytest.fixture(scope="module")
def fitted(small_corpus, tmp_path_factory):
    """A fit by the preset, and what was called in it."""
    few = [d for n, d in enumerate(small_corpus) if n % 10 < 3]
    judged = {f"t-{d.doc_id}": {d.doc_id: 1} for d in few}
    texts = Corpus(few, {name: small_corpus.queries[name] for name in judged}, {"train": judged}, name="few")
    words = sorted({word.strip(".,") for d in few for word in d.content.split()})
    checkpoints = {
        "BERT": str(save_small_bert(tmp_path_factory.mktemp("bert"), words, num_hidden_layers=6, hidden_size=16)),
        "T5": str(save_small_t5(tmp_path_factory.mktemp("t5"), words)),
    }

    @functools.cache
    def fit(name: str) -> SimpleNamespace:
        spies, encoded = Spies(), []
        values = {
            key: value
            if not isinstance(value, str)
            else re.sub("^(T5|BERT)", lambda found: checkpoints[found[0]], value)
            for key, value in PRESETS[name][1].items()
        }
        index: Any = make(name, values, preset="paper")
        corpus = small_log(users=24) if name == "uri" else texts
        cached = TextVectors.cached
        with pytest.MonkeyPatch.context() as patch:
            spies.spy_steps(patch)
            patch.setattr(uri_ranker, "train", loop.train)
            spies.spy(patch, readers, "with_noise")
            for module in (asi_training, genret_training):
                spies.spy(patch, module, "with_noise")
            spies.spy(patch, genret_training, "reassigned")
            spies.spy(patch, genret_training, "retrieval")
            patch.setattr(TextVectors, "encode", forbidden)
            patch.setattr(NetworkIndexer, "begin", forbidden)
            if index.settings.ranking == "code":
                patch.setattr(GenerativeRetriever, "rank", forbidden)

            def once(self: Any, some: list[str], progress: str, kind: str) -> np.ndarray:
                encoded.append(len(some))
                return cached(self, some, progress, kind)

            patch.setattr(TextVectors, "cached", once if name in ENCODED else forbidden)
            index.fit(corpus)
            queries = list(corpus.queries.values())[:3]
            hits = index.search_batch(queries, k=4)
        return SimpleNamespace(index=index, corpus=corpus, spies=spies, encoded=encoded, hits=hits, queries=queries)

    return fit


@pytest.mark.parametrize("name", PRESETS)
class TestPresets:
    def test_the_reader_is_trained_and_no_frozen_vector_is_read(self, fitted, name):
        made = fitted(name)
        reader, index = made.index.reader, made.index
        assert type(reader) is PRESETS[name][0] and not reader.reads_vectors
        assert index.vectors.shape == (len(made.corpus), 0)
        assert made.encoded == ([len(made.corpus)] if name in ENCODED else [])
        trained = {parameter for step in made.spies.steps for parameter in step.rates}
        part = {T5Reader: "t5.encoder.block", TunedReader: "encoder.model.encoder.layer.0.", HistoryReader: "items."}
        assert any(part[type(reader)] in parameter for parameter in trained)

    def test_there_is_no_noise_and_no_sum(self, fitted, name):
        made = fitted(name)
        assert made.index.settings.noise == 0
        assert not any(made.spies.arguments("with_noise", 1))
        assert made.index.settings.ranking == ("union" if name == "uri" else "code")
        assert all(len(hits) == 4 for hits in made.hits)

    def test_saved_and_loaded_it_finds_the_same(self, fitted, tmp_path, name):
        made = fitted(name)
        made.index.save(tmp_path / "index")
        again = api.load(tmp_path / "index").search_batch(made.queries, k=4)
        assert [hits.doc_ids for hits in again] == [hits.doc_ids for hits in made.hits]


@pytest.mark.parametrize("name", ["asi", "asi++"])
def test_asi_is_one_joint_phase_of_encoder_indexer_and_a_decoder_that_reads_states(fitted, name):
    made = fitted(name)
    writer = made.index.indexed.writer
    assert (
        writer.reads == "states" and len(writer.layers) == 6 and len(made.index.model.encoder.model.encoder.layer) == 6
    )
    assert len({step.phase for step in made.spies.steps}) == 1
    names = set(made.spies.steps[0].rates)
    for part in ("encoder.", "writer.head.", "writer.indexer.", "writer.writer.layers.5."):
        assert any(parameter.startswith(part) for parameter in names), part
    rates = {round(rate, 12) for rate in made.spies.steps[-1].rates.values()}
    assert len(rates) == 1  # one learning rate for all
    terms = set(made.spies.steps[-1].terms)
    assert terms == {"contrastive", "generation"} | (
        {"density", "bottleneck", "information"} if name == "asi++" else set()
    )
    assert made.index.settings.decoding == "free" and made.index.settings.beam == 10


def test_genret_reassigns_inside_the_softmax_and_has_unique_codes(fitted):
    made = fitted("genret")
    assert len(made.spies.calls["reassigned"]) == sum(step.phase in ("level 1", "level 2") for step in made.spies.steps)
    assert not [call for call in made.spies.calls["retrieval"] if "warm-up" in call.phase]
    codes = made.index.identifiers.codes
    assert len(np.unique(codes, axis=0)) == len(codes)


@pytest.mark.parametrize("name", ["dsi-semantic", "nci"])
def test_codes_by_clusters_are_unique(fitted, name):
    codes = fitted(name).index.identifiers.codes
    assert len(np.unique(codes, axis=0)) == len(codes)


def test_uri_trains_its_ranker_after_the_decoder_with_an_encoder_of_its_own(fitted):
    made = fitted("uri")
    phases = list(dict.fromkeys(step.phase for step in made.spies.steps))
    assert phases == ["level 1", "level 2", "training the decoder", "training the ranker"]
    ranked = {step.phase for step in made.spies.steps if "ranking" in step.terms}
    assert ranked == {"training the ranker"}
    reader = made.index.reader
    assert reader.ranking_encoder is not None and reader.ranking_encoder is not reader.model.encoder
    assert made.index.settings.items == "id"


@pytest.mark.parametrize("name", LOGS)
def test_recommenders_learn_from_the_log_alone_and_begin_at_nothing(monkeypatch, tmp_path, name):
    """No counts, no similarity beside the codes, and, where the paper has none, no loss that ranks items."""
    spies, log = Spies(), small_log(users=24)
    spies.spy_steps(monkeypatch)
    monkeypatch.setattr(Counts, "of", forbidden)
    index: Any = make(name, LOGS[name], preset="paper")
    by_codes = index.settings.ranking == "bucket"
    assert index.settings.ranking == ("union" if name == "deep-retrieval" else "bucket")
    index.fit(log)
    parts = getattr(index, "parts", [index])
    assert len(parts) == (2 if name == "recforest" else 1)
    assert all(part.reader.start is None and isinstance(part.reader, HistoryReader) for part in parts)
    terms = {term for step in spies.steps for term in step.terms}
    assert terms == ({"generation"} if by_codes else {"generation", "ranking"})
    codes = [part.identifiers.codes for part in parts]
    assert all(code.shape[1] == (4 if name == "tiger" else 3) for code in codes)
    if by_codes:  # a code is one item, so that codes alone order all hits
        assert all(len(np.unique(code, axis=0)) == len(log) for code in codes)
    asked = list(log.queries.values())[:3]
    expected = [hits.doc_ids for hits in index.search_batch(asked, k=4)]
    index.save(tmp_path / "index")
    assert [hits.doc_ids for hits in api.load(tmp_path / "index").search_batch(asked, k=4)] == expected
