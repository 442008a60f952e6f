"""GLEN's wiring: every preset and every setting changes the quantity that it names.

Most tests replace the training loop by one that takes no steps and records what the settings decide: the phases, the
batches of each epoch, and the terms of each epoch's first batch.
"""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import glen as plain
from training_spies import Phase, not_named, plan, without_steps

from callslip.corpus.documents import Document, Pair
from callslip.corpus.on_disk import TextTable
from callslip.encoders import encoder as encoders
from callslip.encoders.word_pieces import spread
from callslip.errors import BadSetting, CallslipError
from callslip.identifiers import Identifiers
from callslip.identifiers.keywords import corpus_vocabulary, keyword_codes
from callslip.index.readers import T5Reader, TunedReader, VectorReader
from callslip.methods import find, make
from callslip.methods.glen import method, model, search, training
from callslip.methods.glen.equations import (
    identifier_embedding,
    identifier_weights,
    keyword_loss,
    pairwise_ranking,
    relevance,
)
from callslip.methods.glen.pretrained import LexicalT5, LexicalTuned
from callslip.methods.glen.settings import GLENSettings
from callslip.runtime import device as devices
from callslip.runtime.device import seeded
from callslip.search.bm25 import WordIndex
from callslip.training import batches, loop
from callslip.training.negatives import draw, prefix_negatives

pytestmark = pytest.mark.usefixtures("whole_precision")

SMALL = {
    "encoder": "scratch:dim=32", "length": 2, "decoder_width": 16, "decoder_heads": 2, "dropout": 0, "batch_size": 64,
    "epochs": 2, "support": 3,
}  # fmt: skip
UNTRAINED = {"keyword_epochs": 0, "epochs": 0}
KEYWORDS, REFINEMENT = "learning keywords", "refining codes"
QUESTION = "which violin has the mark music0"


@pytest.fixture
def phases(monkeypatch) -> list[Phase]:
    """The phases of a fit, by a loop that takes no steps. It gives the decoder's output random weights instead: they
    start at zero, where it makes no difference what the decoder is fed."""

    def see(phase: Phase) -> None:
        if not phase.module.out.weight.any():
            torch.nn.init.normal_(phase.module.out.weight, std=0.3)
        phase.run_through()

    return without_steps(monkeypatch, see)


def fit(corpus, preset=None, **values):
    """A fitted index. What a preset sets, SMALL leaves alone."""
    given = {} if preset is None else find("glen").presets()[preset]
    small = {name: value for name, value in SMALL.items() if name not in given}
    return make("glen", small | values, preset=preset).fit(corpus)


def texts_of(corpus, **values) -> list[tuple[str, str]]:
    """The training texts of an index with such settings, each with the doc_id of its document."""
    index = fit(corpus, **UNTRAINED | values)
    seen, distinct = [], TextTable.distinct
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextTable, "distinct", lambda table: seen.append(distinct(table)) or seen[-1])
        found = training.Training(index, corpus).texts
    (distinct, _), ids = seen[0], corpus.doc_ids
    return [(distinct[text], ids[row]) for text, row in zip(found.text, found.row, strict=True)]


def common_prefix(one, other) -> int:
    same = [a == b for a, b in zip(one, other, strict=True)]
    return same.index(False) if False in same else len(same)


def test_every_setting_is_named_in_this_file_or_that_of_training_sizes():
    here = Path(__file__)
    assert not_named(GLENSettings, here, here.with_name("test_training_sizes.py")) == []


# The presets.


def test_the_keyword_phase_comes_first_and_the_presets_leave_either_out(small_corpus, phases):
    def trained(preset=None):
        phases.clear()
        fit(small_corpus, preset)
        return [phase.name for phase in phases if phase.epochs]

    assert trained() == [KEYWORDS, REFINEMENT]
    assert trained("no-keyword") == [REFINEMENT]
    assert trained("no-refinement") == [KEYWORDS]


def test_the_presets_leave_a_term_out(small_corpus, phases):
    def terms(preset=None):
        phases.clear()
        fit(small_corpus, preset)
        return set(phases[1].terms[0])

    assert terms() == {"pairwise", "pointwise"}
    assert terms("no-pairwise") == {"pointwise"}
    assert terms("no-pointwise") == {"pairwise"}


@pytest.mark.parametrize("preset", [None, "no-annealing"])
def test_the_temperature_falls_epoch_by_epoch_unless_annealing_is_off(small_corpus, phases, spy, preset):
    calls = spy(training, "identifier_embedding")
    fit(small_corpus, preset, epochs=3)
    expected = [1e-5] * 3 if preset else [1, np.exp(-1), np.exp(-2)]
    assert [call["temperature"] for call in calls] == pytest.approx(expected)


def test_annealing_ends_at_a_hard_choice(small_corpus, phases, spy):
    calls = spy(training, "identifier_embedding")
    fit(small_corpus, epochs=13, annealing=True)
    assert calls[-1]["temperature"] == 1e-5


@pytest.mark.parametrize(
    ("preset", "values"), [(None, {}), ("random-negatives", {}), (None, {"negatives_by": "random"})]
)
def test_negatives_share_the_longest_prefixes_unless_they_are_random(small_corpus, phases, spy, preset, values):
    calls, random = spy(training.Training, "words_and_negatives"), bool(preset or values)
    fit(small_corpus, preset, vocabulary=6, negatives=2, seed=5, **values)
    assert [call["epoch"] for call in calls] == [0, 1]
    for call in calls:
        words, negatives = call["result"]
        codes, rng = words[:, :, 0], np.random.default_rng([5, 1, call["epoch"]])
        assert negatives.shape == (40, 2)
        if random:
            np.testing.assert_array_equal(negatives, rng.integers(0, 40, (40, 2)))
        else:
            np.testing.assert_array_equal(negatives, prefix_negatives(Identifiers(small_corpus.doc_ids, codes), 2, rng))
        hardest = sorted(
            sorted((common_prefix(codes[row], codes[other]) for other in range(40) if other != row), reverse=True)[:2]
            for row in range(40)
        )
        shared = sorted(
            sorted((common_prefix(codes[row], codes[other]) for other in negatives[row]), reverse=True)
            for row in range(40)
        )
        assert (shared == hardest) != random


@pytest.mark.parametrize(("preset", "values"), [("bm25-negatives", {}), (None, {"negatives_by": "bm25"})])
def test_negatives_may_be_the_best_of_bm25_without_the_answers(small_corpus, phases, spy, preset, values):
    calls, ranked = spy(training.Training, "words_and_negatives"), spy(training.Training, "ranking_terms")
    index = fit(small_corpus, preset, negatives=3, seed=5, **values)
    trained = training.Training(index, small_corpus)
    texts, distinct = trained.texts, [document.content for document in small_corpus]
    scores = np.stack(list(WordIndex().index(distinct).scores_of(list(texts_by_number(index, small_corpus)))))
    for call in calls:
        negatives, rng = call["result"][1], np.random.default_rng([5, 1, call["epoch"]])
        np.testing.assert_array_equal(negatives, draw(texts.candidates, 3, 40, rng))
    drawn = calls[0]["result"][1]
    for text in range(len(drawn)):
        answers = set(texts.answers.of(text).tolist())
        if (scores[text] > 0).sum() > len(answers):
            assert not answers & set(drawn[text].tolist()) and (scores[text][drawn[text]] > 0).all()
    chosen = phases[1].batch_lists[0][0]
    rows = np.unique(np.concatenate([texts.row[chosen], drawn[texts.text[chosen]].ravel()]))
    np.testing.assert_array_equal(ranked[0]["docs"], index.vectors[rows])


def texts_by_number(index, corpus) -> list[str]:
    """The training texts, each once, in the order of their numbers."""
    texts = [pair.query for pair in index.training_pairs(corpus)]
    if "document" in index.settings.training_texts:
        texts += [document.content for document in corpus]
    return list(dict.fromkeys(texts))


def test_without_negatives_a_batch_ranks_its_own_documents(small_corpus, phases, spy):
    ranked = spy(training.Training, "ranking_terms")
    index = fit(small_corpus, "no-negatives", batch_size=24, epochs=1)
    texts, chosen = training.Training(index, small_corpus).texts, phases[1].batch_lists[0][0]
    np.testing.assert_array_equal(ranked[0]["docs"], index.vectors[np.unique(texts.row[chosen])])


@pytest.mark.parametrize(
    ("values", "times"),
    [
        ({"support": None, "negatives_by": "random"}, 0),
        ({"support": None, "negatives": 0}, 0),
        ({"support": None}, 2),
        ({"support": 2, "negatives": 0}, 2),
    ],
)
def test_documents_are_coded_every_epoch_only_if_something_goes_by_it(small_corpus, phases, spy, values, times):
    calls = spy(model.LexicalWriter, "likeliest_words")
    fit(small_corpus, start=PARTS[:2], **values)
    assert len(calls) == times + 1, "and once more at the end"


def test_token_input_feeds_back_words_instead_of_states(small_corpus, phases):
    hidden, token = fit(small_corpus, feedback="hidden"), fit(small_corpus, "token-input")
    vectors = torch.from_numpy(hidden.vectors[:4])
    for index, same in ((hidden, True), (token, False)):
        code = torch.from_numpy(index.codes[:4]).long()
        with torch.no_grad():
            given, other = index.model.states(vectors, code), index.model.states(vectors, (code + 1) % 36)
        assert torch.allclose(given, other) == same


def test_the_quick_preset_has_shorter_codes_fewer_words_and_fewer_texts(small_corpus, phases, spy):
    calls = spy(method, "corpus_vocabulary")
    index = fit(small_corpus, "quick", batch_size=500, query_repeat=40)  # 1800 texts
    assert calls[0]["size"] == 2048
    assert index.codes.shape[1] == 8
    assert [phase.steps for phase in phases] == [2, 2]


# The words of a code.


def test_length_and_vocabulary_bound_the_codes(small_corpus, phases):
    index = fit(small_corpus, length=3, vocabulary=7)
    assert index.codes.shape == (40, 3) and index.model.length == 3
    assert index.vocabulary == corpus_vocabulary(small_corpus, None, 7)
    assert index.codes.max() < 7 and index.model.embeddings.shape[0] == 7
    assert fit(small_corpus, vocabulary=None).vocabulary == corpus_vocabulary(small_corpus)


class WholeWords:
    """Word pieces of an encoder: whole words in capitals."""

    def __init__(self, spec: str) -> None:
        self.spec = spec

    def __call__(self, text: str) -> list[str]:
        return text.upper().split()


def test_word_pieces_are_those_of_the_encoder(small_corpus, phases, monkeypatch):
    seen = []
    monkeypatch.setattr(method, "encoder_pieces", lambda spec: seen.append(spec) or WholeWords(spec))
    index = fit(small_corpus, encoder="scratch:dim=48")
    assert seen == ["scratch:dim=48"] and index.vectors.shape[1] == 48
    assert "KNOWS" in index.vocabulary and "knows" not in index.vocabulary


def test_words_start_as_encoded_texts(small_corpus, phases, monkeypatch):
    monkeypatch.setattr(method, "encoder_pieces", WholeWords)
    index = fit(small_corpus)
    np.testing.assert_allclose(index.model.embeddings, spread(index.texts.encode(index.vocabulary)), atol=1e-5)
    assert torch.equal(index.model.skip.weight, torch.eye(32))


def test_texts_start_centred_where_the_words_are(small_corpus):
    index = fit(small_corpus, **UNTRAINED)
    with torch.no_grad():
        centred = index.model.skip(torch.from_numpy(np.asarray(index.vectors))).numpy()
    np.testing.assert_allclose(centred, np.asarray(index.vectors) - np.asarray(index.vectors).mean(axis=0), atol=1e-5)


PARTS = ("residual", "pursuit", "strengths")


@pytest.mark.parametrize("strengths", [False, True])
def test_levels_start_with_the_strength_of_the_documents_words_or_have_none(small_corpus, strengths):
    index = fit(small_corpus, start=PARTS if strengths else PARTS[:2], length=4, **UNTRAINED)
    start = index.model.strengths.detach().clone()
    index.model.begin_strengths(index.vectors)
    expected = index.model.strengths.detach() if strengths else torch.ones(4)
    torch.testing.assert_close(start, expected)
    assert not torch.allclose(index.model.strengths, torch.ones(4))
    assert index.model.strengths.requires_grad == strengths


@pytest.mark.parametrize("pursuit", [False, True])
def test_a_documents_words_are_taken_out_of_its_state_only_in_a_pursuit(small_corpus, phases, pursuit):
    index = fit(small_corpus, start="residual,pursuit" if pursuit else "residual", length=4)
    vectors = torch.from_numpy(np.asarray(index.vectors))
    with torch.no_grad():
        query, document = index.model.states(vectors), index.model.states(vectors, documents=True)
    torch.testing.assert_close(query[:, 0], document[:, 0])
    assert torch.allclose(query, document) != pursuit, "without a pursuit documents are read as queries are"


@pytest.mark.parametrize("residual", [False, True])
def test_untrained_the_states_are_the_centred_vector_only_with_the_residual_connection(small_corpus, residual):
    index = fit(small_corpus, start="residual" if residual else "", **UNTRAINED)
    centred = torch.from_numpy(np.asarray(index.vectors) - np.asarray(index.vectors).mean(axis=0))
    with torch.no_grad():
        states = index.model.states(torch.from_numpy(np.asarray(index.vectors)))
    same = torch.nn.functional.cosine_similarity(states, centred[:, None], dim=-1)
    assert bool((same > 0.999).all()) == residual and (index.model.skip is None) != residual


def test_all_parts_of_the_start_are_there_by_default_and_each_is_saved(small_corpus):
    assert make("glen").settings.start == PARTS
    shape = fit(small_corpus, start="pursuit", **UNTRAINED).reader.shape
    assert {part: shape[part] for part in PARTS} == {"residual": False, "pursuit": True, "strengths": False}
    with pytest.raises(CallslipError, match="start"):
        make("glen", {"start": "head"})


def test_the_decoder_has_the_shape_of_the_settings(small_corpus, phases):
    shape = {"decoder_width": 24, "decoder_layers": 3, "decoder_heads": 6, "dropout": 0.25}
    written = fit(small_corpus, **shape).model
    assert written.levels.shape == (2, 24)
    assert len(written.layers) == 3
    assert {layer.itself.heads for layer in written.layers} == {6}
    assert {layer.dropout.p for layer in written.layers} == {0.25}


# The training texts.


def test_the_settings_choose_the_training_texts(small_corpus):
    own = {(document.content, document.doc_id) for document in small_corpus}
    asked = {(pair.query, pair.doc_id) for pair in small_corpus.pairs("train")}
    titles = {(document.title, document.doc_id) for document in small_corpus}

    def texts(**values):
        return Counter(texts_of(small_corpus, **values))

    assert texts(training_texts="") == Counter(asked)
    assert texts(training_texts="", query_repeat=3) == Counter(dict.fromkeys(asked, 3))
    assert texts(training_texts="document", query_repeat=0) == Counter(own)
    assert texts(training_texts="title", query_repeat=0) == Counter(titles)
    assert texts(training_texts="document,title") == Counter(titles) + Counter(asked) + Counter(own)
    assert texts(training_texts="", query_repeat=0) == Counter(own), "there must be something to train on"


def test_doc2query_writes_further_texts(small_corpus, monkeypatch):
    seen = []

    def write(corpus, checkpoint, per_document, *, device, seed, sampling):
        seen.append((checkpoint, per_document, device, seed, sampling))
        return [Pair("asked by a model", "fruit/0")]

    monkeypatch.setattr(importlib.import_module("callslip.corpus.doc2query"), "doc2query", write)
    values = {"doc2query": "some/t5:count=3,sampling=nucleus", "device": "cpu", "seed": 4}
    assert ("asked by a model", "fruit/0") in texts_of(small_corpus, **values)
    assert seen[-1] == ("some/t5", 3, "cpu", 4, "nucleus")


@pytest.mark.parametrize(("epoch_pairs", "steps"), [(50, 3), (None, 12)])
def test_an_epoch_has_so_many_texts_in_both_phases(small_corpus, phases, epoch_pairs, steps):
    fit(small_corpus, epoch_pairs=epoch_pairs, batch_size=20, seed=3, keyword_epochs=2)
    assert [phase.steps for phase in phases] == [steps, steps]
    for phase in phases:
        for epoch, some in enumerate(phase.batch_lists):  # 240 texts in all
            expected = list(batches.shuffled(240, 20, 3, epoch))[:steps]
            assert [batch.tolist() for batch in some] == [batch.tolist() for batch in expected]


def test_the_default_epoch_has_4000_texts(small_corpus, phases):
    fit(small_corpus, batch_size=1000, query_repeat=200)  # 8200 texts
    assert [phase.steps for phase in phases] == [4, 4]


# The two phases.


def test_each_phase_has_its_own_epochs_and_learning_rate(small_corpus, phases):
    values = {"keyword_epochs": 3, "keyword_learning_rate": 3e-3, "epochs": 4, "learning_rate": 7e-3}
    fit(small_corpus, **values, weight_decay=0.2)
    assert [(phase.name, phase.epochs, phase.learning_rate, phase.weight_decay) for phase in phases] == [
        (KEYWORDS, 3, 3e-3, 0.2), (REFINEMENT, 4, 7e-3, 0.2),
    ]  # fmt: skip
    assert [len(phase.terms) for phase in phases] == [3, 4]


def test_both_phases_take_steps(small_corpus):
    log = fit(small_corpus, keyword_epochs=1, epochs=1, keyword_learning_rate=1e-3, learning_rate=1e-2).log
    assert [record["phase"] for record in log.records] == [KEYWORDS, REFINEMENT]
    rates = [record["learning_rate"] for record in log.records]  # of the last of four steps
    assert rates[1] / rates[0] == pytest.approx(10)


def test_the_seed_makes_the_weights(small_corpus):
    index = fit(small_corpus, seed=5, **UNTRAINED)
    with seeded(5):
        expected = model.LexicalWriter(**index.reader.shape)
    for name in ("begin", "levels", "to_memory.weight", "fed.weight"):
        assert torch.equal(index.model.state_dict()[name], expected.state_dict()[name]), name


def test_the_first_phase_learns_the_keywords_from_queries_and_from_documents(small_corpus, phases):
    index = fit(small_corpus, noise=0, length=3, keyword_epochs=1, epochs=0)
    index.vectors = np.asarray(index.vectors)  # as during a fit
    texts, chosen = training.Training(index, small_corpus).texts, phases[0].batch_lists[0][0]
    keywords = keyword_codes(small_corpus, 3)
    number = {word: token for token, word in enumerate(index.vocabulary)}
    heaviest = [[number[keywords.vocabulary[token]] for token in code] for code in keywords.codes]
    code = torch.tensor(heaviest)[texts.row[chosen]]
    query, document = (
        torch.from_numpy(some) for some in (texts.inputs[texts.text[chosen]], index.vectors[texts.row[chosen]])
    )
    with torch.no_grad():
        expected = {
            "query keywords": float(keyword_loss(index.model(query, code), code)),
            "document keywords": float(keyword_loss(index.model(document, code, documents=True), code)),
        }
    assert phases[0].terms[0] == pytest.approx(expected)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_noise_of_that_norm_is_added_to_all_but_the_documents_of_refinement(
    small_corpus, phases, spy, monkeypatch, noise
):
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)  # the noise is the same for all: noise / sqrt(dim)
    calls = spy(model.LexicalWriter, "states")
    index = fit(small_corpus, noise=noise, start=PARTS[:2], keyword_epochs=1, epochs=1)
    index.vectors = np.asarray(index.vectors)  # as during a fit
    texts = training.Training(index, small_corpus).texts
    in_training = [call for call in calls if not torch.is_inference(call["vectors"])]
    first, second = phases[0].batch_lists[0][0], phases[1].batch_lists[0][0]
    shift, kinds = noise / 32**0.5, []
    for call in in_training[:4]:
        documents = call["documents"]
        phase = KEYWORDS if len(kinds) < 2 else REFINEMENT
        kinds.append((phase, documents))
        chosen = first if phase == KEYWORDS else second
        clean = index.vectors[texts.row[chosen]] if documents else texts.inputs[texts.text[chosen]]
        if (phase, documents) == (REFINEMENT, True):
            known = {row.tobytes() for row in index.vectors}
            assert {row.numpy().tobytes() for row in call["vectors"]} <= known
        else:
            np.testing.assert_allclose(call["vectors"], clean + shift, atol=1e-6)
    assert kinds == [(KEYWORDS, False), (KEYWORDS, True), (REFINEMENT, False), (REFINEMENT, True)]


@pytest.mark.parametrize("support", [3, None])
def test_a_document_chooses_among_its_likeliest_words(small_corpus, phases, spy, support):
    calls, embedded = spy(training.Training, "ranking_terms"), spy(training, "identifier_embedding")
    read = spy(model.LexicalWriter, "states")
    index = fit(small_corpus, support=support, epochs=1)
    (call,), (eq6,) = calls, embedded
    (among,) = [one["among"] for one in read if one["vectors"] is call["docs"]]
    assert among is call["words"]
    if support is None:
        assert call["words"] is None and eq6["support"] is None
    else:
        expected = index.model.likeliest_words(call["docs"].numpy(), 3)[0]
        np.testing.assert_array_equal(call["words"], expected)
        assert eq6["support"] is call["words"]


def test_the_default_support_is_eight_words(small_corpus, phases, spy):
    embedded = spy(training, "identifier_embedding")
    make("glen", {name: value for name, value in SMALL.items() if name != "support"}).fit(small_corpus)
    assert {call["support"].shape[-1] for call in embedded} == {8}


@pytest.mark.parametrize("negatives", [0, 1, 3])
def test_a_step_ranks_the_documents_of_the_batch_and_their_negatives(small_corpus, phases, spy, negatives):
    calls, drawn = spy(training.Training, "ranking_terms"), spy(training.Training, "words_and_negatives")
    index = fit(small_corpus, negatives=negatives, batch_size=24, epochs=1)
    texts, chosen = training.Training(index, small_corpus).texts, phases[1].batch_lists[0][0]
    hard = drawn[0]["result"][1]
    assert hard.shape == (40, negatives)
    rows = np.unique(np.concatenate([texts.row[chosen], hard[texts.row[chosen]].ravel()]))
    np.testing.assert_array_equal(calls[0]["docs"], index.vectors[rows])
    np.testing.assert_array_equal(rows[calls[0]["own"]], texts.row[chosen])
    answers = [[row in texts.answers.of(text) for row in rows] for text in texts.text[chosen]]
    assert max(map(sum, answers)) > 1  # a sentence that several documents have
    np.testing.assert_array_equal(calls[0]["positives"], answers)


def test_each_epoch_codes_the_documents_anew(small_corpus, spy):
    calls = spy(training.Training, "words_and_negatives")
    fit(small_corpus, epochs=2, learning_rate=0.05)
    assert [call["epoch"] for call in calls] == [0, 1]
    first, second = (call["result"][0][:, :, 0] for call in calls)
    assert (first != second).any()


def test_codes_and_weights_are_those_of_the_trained_model(small_corpus):
    index = fit(small_corpus, epochs=2, learning_rate=0.05)
    words, weights = index.model.likeliest_words(index.vectors, 1)
    np.testing.assert_array_equal(index.codes, words[:, :, 0])
    np.testing.assert_allclose(index.weights, weights[:, :, 0], atol=1e-5)


# The terms of refinement.


@pytest.mark.parametrize("feedback", ["hidden", "token"])
def test_the_weights_scale_the_terms_of_refinement(small_corpus, phases, spy, feedback):
    calls = spy(training.Training, "ranking_terms")
    values = {"pairwise_weight": 3.0, "pointwise_weight": 0.25, "ranking_temperature": 4.0}
    index = fit(small_corpus, feedback=feedback, epochs=1, **values)
    (call,), written = calls, index.model
    query, words, own = call["query"], call["words"], call["own"]
    with torch.no_grad():
        h_query, h_doc = written.states(query), written.states(call["docs"], documents=True, among=words)
        r_doc = identifier_embedding(h_doc, written.embeddings, call["temperature"], words)
        pairwise = pairwise_ranking(relevance(h_query, r_doc) / 4.0, call["positives"])
        h_doc = h_doc[own]
        code = written.logits(h_doc).argmax(-1)
        h_query = written.states(query, code)  # teacher forcing, if words are fed back
        w_query, w_doc = (identifier_weights(h, written.embeddings, code) for h in (h_query, h_doc))
        cosines = [plain.cosine(a, b) for a, b in zip(w_query.tolist(), w_doc.tolist(), strict=True)]
        pointwise = float(keyword_loss(written.logits(h_query), code)) + 0.5 * (1 - np.mean(cosines))
    expected = {"pairwise": 3.0 * float(pairwise), "pointwise": 0.25 * pointwise}
    assert phases[1].terms[0] == pytest.approx(expected, rel=1e-4)


# Search.


@pytest.fixture
def crowded(small_corpus, phases):
    """crowded(**values) -> an index of at most sixteen codes for forty documents."""
    return lambda **values: fit(small_corpus, **UNTRAINED | {"vocabulary": 4} | values)


def weight_cosines(index) -> np.ndarray:
    """Eq. 9 for the question and every document, one document at a time."""
    with torch.no_grad():
        states = index.model.states(torch.from_numpy(index.texts.encode([QUESTION])))[0].numpy()
    words = index.model.embeddings.detach().numpy()
    return np.array(
        [
            plain.cosine([float(words[t] @ h) for t, h in zip(code, states, strict=True)], weights.tolist())
            for code, weights in zip(index.codes, index.weights, strict=True)
        ]
    )


def similarities(index) -> np.ndarray:
    return index.vectors @ index.texts.encode([QUESTION])[0]


def buckets_of(hits) -> list[list[str]]:
    """The doc_ids of the hits, bucket by bucket in order of the first hit."""
    found: dict[tuple[int, ...], list[str]] = {}
    for hit in hits:
        found.setdefault(hit.code, []).append(hit.doc_id)
    return list(found.values())


@pytest.mark.parametrize("ranking", ["bucket", "share"])
def test_identifier_weights_decide_the_order_inside_a_bucket(crowded, ranking):
    index = crowded(ranking=ranking)
    row_of, by = index.row_of(), {"weights": weight_cosines(index), "similarity": similarities(index)}
    buckets = buckets_of(index.search(QUESTION, k=40))
    assert len(buckets) == index.identifiers.unique
    right = {
        name: all((np.diff([values[row_of[doc]] for doc in bucket]) <= 1e-6).all() for bucket in buckets)
        for name, values in by.items()
    }
    assert right == {"weights": True, "similarity": False}


def test_ranking_decides_the_score(crowded):
    index = crowded()
    similar, row_of = similarities(index), index.row_of()

    def scores(**values):
        hits = index.adjust(values).search(QUESTION, k=40, explain=True)
        assert hits.scores == sorted(hits.scores, reverse=True)
        return hits, [(hit.why["code_score"], hit.why["bucket_size"], similar[row_of[hit.doc_id]]) for hit in hits]

    hits, parts = scores(ranking="bucket")
    assert hits.scores == pytest.approx([code for code, _, _ in parts])
    assert [hit.why["beam_rank"] for hit in hits] == sorted(hit.why["beam_rank"] for hit in hits)
    hits, parts = scores(ranking="share")
    assert hits.scores == pytest.approx([code - np.log(size) for code, size, _ in parts], abs=1e-5)
    assert index.search(QUESTION, k=40).scores == hits.scores, "an explanation changes nothing"
    hits, parts = scores(ranking="sum", similarity_weight=7.0)
    assert hits.scores == pytest.approx([code + 7.0 * value for code, _, value in parts], abs=1e-4)
    hits, parts = scores(ranking="union")
    assert hits.scores == pytest.approx([value for _, _, value in parts], abs=1e-5)


def test_codes_are_ranked_in_buckets_unless_said_otherwise(crowded):
    assert make("glen").settings.ranking == "bucket"
    hits = crowded().search(QUESTION, k=40, explain=True)
    assert [hit.why["beam_rank"] for hit in hits] == sorted(hit.why["beam_rank"] for hit in hits)


def test_a_bucket_limit_lets_other_buckets_come_first(crowded):
    index = crowded()
    largest = max(len(bucket) for bucket in buckets_of(index.search(QUESTION, k=40)))
    hits = index.adjust({"bucket_limit": 1}).search(QUESTION, k=40)
    assert largest > 2 and len(hits) == 40
    unique = index.identifiers.unique
    assert len({hit.code for hit in hits[:unique]}) == unique


def test_with_a_bucket_limit_every_code_is_written(crowded, spy):
    calls = spy(search.WordSearch, "best")
    index = crowded(beam=1, ranking="union", bucket_limit=1)
    hits = index.search(QUESTION, k=2)
    assert calls[-1]["count"] == index.identifiers.unique
    similar, row_of = similarities(index), index.row_of()
    best = int(np.argmax(similar))
    assert row_of[hits[0].doc_id] == best
    others = [row for row in np.argsort(-similar) if tuple(index.codes[row]) != tuple(index.codes[best])]
    assert row_of[hits[1].doc_id] == others[0]


@pytest.mark.parametrize("feedback", ["hidden", "token"])
@pytest.mark.parametrize(("beam", "k", "count"), [(7, 2, 7), (1, 3, 3)])
def test_the_beam_is_the_number_of_codes_that_are_written(crowded, spy, feedback, beam, k, count):
    calls = spy(search.WordSearch, "best")
    crowded(beam=beam, feedback=feedback, decoding="beam").search(QUESTION, k=k)
    assert calls[-1]["count"] == count


@pytest.mark.parametrize(("decoding", "exact"), [("beam", False), ("exact", True)])
def test_decoding_scores_every_code_by_a_table_or_searches_a_beam(crowded, spy, decoding, exact):
    tables, beams = spy(search, "table_search"), spy(search, "best_codes")
    index = crowded(decoding=decoding)
    hits = index.search(QUESTION, k=40, explain=True)
    assert (len(tables), len(beams)) == ((1, 0) if exact else (0, 1))
    assert_scores_are_those_of_the_model(index, hits)


def test_token_feedback_is_searched_by_a_beam(crowded, spy):
    beams = spy(search, "best_codes")
    index = crowded(feedback="token", decoding="exact")
    hits = index.search(QUESTION, k=40, explain=True)
    assert len(beams) == 1
    assert_scores_are_those_of_the_model(index, hits)


def assert_scores_are_those_of_the_model(index, hits) -> None:
    codes = torch.tensor([hit.code for hit in hits])
    vector = torch.from_numpy(index.texts.encode([QUESTION])).expand(len(codes), -1)
    with torch.no_grad():
        logs = index.model(vector, codes).log_softmax(-1)
    expected = logs.gather(2, codes[:, :, None]).sum(dim=(1, 2)).tolist()
    assert [hit.why["code_score"] for hit in hits] == pytest.approx(expected, abs=1e-4)


# The encoder.


def test_the_encoder_is_loaded_as_the_settings_say(small_corpus, phases, spy):
    loaded, asked = spy(encoders, "load_encoder"), spy(devices, "best_device")
    fit(small_corpus, encoder="scratch:dim=48", backend="torch", device="cpu", **UNTRAINED)
    assert {(call["spec"], call["backend"], call["device"]) for call in loaded} == {("scratch:dim=48", "torch", "cpu")}
    assert {call["device"] for call in asked} == {"cpu"}


# The readers: a fine-tuned encoder, and T5.


TOKENS = {"length": 3, "training_texts": "document,title", "epochs": 1, "seq2seq_length": 9, "batch_size": 16}


@pytest.fixture
def nothing_frozen(monkeypatch):
    """The frozen encoder must not be asked for anything."""

    def refuse(self, *arguments):
        pytest.fail("the frozen encoder was run")

    for name in ("encode", "cached"):
        monkeypatch.setattr(encoders.TextVectors, name, refuse)


@pytest.fixture
def read_by(small_corpus, tiny):
    """read_by(reader, **values) -> an index by that reader, on tiny checkpoints."""
    chosen = {"t5": {"seq2seq": tiny["T5"]}, "tuned": {"encoder": tiny["BERT"], "train_encoder": "all"}}

    def make_index(reader, **values):
        return fit(small_corpus, **TOKENS | chosen[reader] | values)

    return make_index


def plain_states(t5, ids, mask, length) -> torch.Tensor:
    """Eq. 2 by transformers' own pass, from the start for every level: the last hidden states are the next inputs."""
    fed = t5.get_input_embeddings()(torch.zeros((len(ids), 1), dtype=torch.long))
    for _ in range(length):
        more = {"attention_mask": mask, "decoder_inputs_embeds": fed, "output_hidden_states": True}
        out = t5(input_ids=ids, use_cache=False, **more)
        states = out.decoder_hidden_states[-1]
        fed = torch.cat([fed[:, :1], states], dim=1)
    return states


def test_the_settings_choose_the_reader_and_the_model(small_corpus, read_by):
    for index, reader, kind in (
        (read_by("t5", **UNTRAINED), T5Reader, LexicalT5),
        (read_by("tuned", **UNTRAINED), TunedReader, LexicalTuned),
        (fit(small_corpus, **UNTRAINED), VectorReader, model.LexicalWriter),
    ):
        assert type(index.reader) is reader and type(index.model) is kind
    with pytest.raises(BadSetting, match="train_encoder"):
        read_by("t5", train_encoder="all")


def test_t5_writes_the_likeliest_words_of_its_own_vocabulary(small_corpus, read_by, nothing_frozen):
    from transformers import AutoTokenizer

    index = read_by("t5", learning_rate=1e-2)
    tokenizer, t5 = AutoTokenizer.from_pretrained(index.settings.seq2seq), index.model.t5
    texts = [document.content for document in small_corpus]
    read = tokenizer(texts, truncation=True, max_length=9, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = plain_states(t5, read.input_ids, read.attention_mask, 3) * 16**-0.5
        logits = states @ t5.lm_head.weight.T
    logits[:, :, tokenizer.all_special_ids] = -torch.inf
    assert index.vocabulary == [word for word in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
                                if word not in tokenizer.all_special_tokens]  # fmt: skip
    weights, ids = logits.max(-1)
    written = [[index.vocabulary[token] for token in code] for code in index.codes]
    assert written == [tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()]
    np.testing.assert_allclose(index.weights, weights, atol=1e-4)
    assert index.model.embeddings.data_ptr() == t5.shared.weight[3:].data_ptr(), "tied to the input embeddings"
    query = index.model.all_states(index.reader.text_inputs(texts))  # queries are read as documents are
    np.testing.assert_allclose(query, states, atol=1e-4)


@pytest.mark.parametrize("feedback", ["hidden", "token"])
def test_t5_is_fed_its_states_or_its_words(read_by, feedback):
    index = read_by("t5", feedback=feedback, **UNTRAINED)
    texts = index.model.batch(index.reader.text_inputs([QUESTION, "the nile"]))
    code = torch.from_numpy(index.codes[:2]).long()
    with torch.no_grad():
        given, other = index.model.states(texts, code), index.model.states(texts, (code + 1) % 9)
        greedy = index.model(texts).argmax(-1)
        torch.testing.assert_close(index.model.states(texts, greedy), index.model.states(texts))
    assert torch.allclose(given, other) == (feedback == "hidden")
    if feedback == "token":
        torch.testing.assert_close(given, index.model.hidden(texts, code))


@pytest.mark.parametrize("feedback", ["hidden", "token"])
def test_t5_with_checkpointed_activations_has_the_same_states_and_gradients(read_by, feedback):
    written = read_by("t5", feedback=feedback, **UNTRAINED).model
    texts = written.batch(written.tokenize([QUESTION, "the nile"]))
    for part in written.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        elif isinstance(getattr(part, "dropout", None), float):  # attention has a number
            part.dropout = 0.0
    written.train()
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            written.t5.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        written.zero_grad()
        states = written.states(texts)
        states.square().sum().backward()
        found.append((states.detach(), written.t5.encoder.block[0].layer[0].SelfAttention.q.weight.grad.clone()))
    assert written.t5.is_gradient_checkpointing
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_t5_of_few_words_writes_those_of_the_corpus(small_corpus, read_by):
    index = read_by("t5", vocabulary=7)
    assert len(index.vocabulary) == 7 and index.codes.max() < 7
    ids = index.model.tokenizer.convert_tokens_to_ids(index.vocabulary)
    assert torch.equal(index.model.embeddings, index.model.t5.lm_head.weight[ids])


def test_the_keywords_are_t5s_pieces(read_by, phases_of_tokens):
    index = read_by("t5", keyword_epochs=1)
    _, codes = phases_of_tokens
    cut = [index.model.tokenizer.tokenize(document.content) for document in index.documents]
    for pieces, code in zip(cut, codes[0], strict=True):
        assert {index.vocabulary[token] for token in code} <= set(pieces)


@pytest.fixture
def phases_of_tokens(monkeypatch):
    """The names, epochs and learning rates of the phases, without training; and the keyword codes."""
    seen, codes, learn = [], [], training.Training.learn_keywords

    def observe(module, batches_of, objective, *, epochs, learning_rate, share, phase, log, **_):
        rates = {name: learning_rate * share(name) for name in ("encoder.x", "writer.x")}
        seen.append((phase, epochs, rates))
        if epochs:
            objective(next(iter(batches_of(0))), 0.0)
        module.eval()
        return log

    def keep(self, given):
        codes.append(given)
        return learn(self, given)

    monkeypatch.setattr(loop, "train", observe)
    monkeypatch.setattr(training.Training, "learn_keywords", keep)
    return seen, codes


def test_the_encoder_has_a_learning_rate_of_its_own_in_both_phases(read_by, phases_of_tokens):
    seen, _ = phases_of_tokens
    values = {"keyword_learning_rate": 1e-2, "learning_rate": 2e-2, "encoder_learning_rate": 3e-3}
    read_by("tuned", **values)
    assert [rates for _, _, rates in seen] == [
        pytest.approx({"encoder.x": 3e-3, "writer.x": rate}) for rate in (1e-2, 2e-2)
    ]
    seen.clear()
    read_by("t5", **values)
    assert [rates for _, _, rates in seen] == [pytest.approx(dict.fromkeys(rates, rate)) for (_, _, rates), rate in
                                               zip(seen, (1e-2, 2e-2), strict=True)]  # fmt: skip


@pytest.mark.parametrize("phase", [{"epochs": 0, "keyword_learning_rate": 1e-2}, {"keyword_epochs": 0}])
def test_both_phases_train_all_of_t5(read_by, nothing_frozen, phase):
    before = read_by("t5", **UNTRAINED).model.state_dict()
    after = read_by("t5", learning_rate=1e-2, **phase).model.state_dict()
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    for part in ("t5.shared", "t5.encoder.block", "t5.decoder.block", "t5.decoder.final_layer_norm"):
        assert any(name.startswith(part) for name in moved), part


@pytest.mark.parametrize(("train_encoder", "layers"), [("top", {1, 2}), ("all", {0, 1, 2})])
def test_the_layers_of_the_encoder_that_are_named_are_trained(read_by, train_encoder, layers):
    values = {"train_encoder": train_encoder, "learning_rate": 1e-2, "encoder_learning_rate": 1e-2}
    before, after = (read_by("tuned", **values | more).model.state_dict() for more in (UNTRAINED, {}))
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert {int(name.split(".layer.")[1][0]) for name in moved if ".layer." in name} == layers
    assert any(name.startswith("writer.layers") for name in moved)


def test_untrained_a_tuned_encoder_writes_what_the_frozen_one_writes(small_corpus, tiny, read_by):
    tuned = read_by("tuned", seq2seq_length=64, backend="torch", **UNTRAINED)
    frozen = fit(small_corpus, **TOKENS | UNTRAINED | {"encoder": tiny["BERT"], "backend": "torch"})
    np.testing.assert_array_equal(tuned.codes, frozen.codes)
    np.testing.assert_allclose(tuned.weights, frozen.weights, atol=1e-4)


@pytest.mark.parametrize("seq2seq_length", [4, 9])
@pytest.mark.parametrize("reader", ["t5", "tuned"])
def test_texts_are_cut_to_their_length(read_by, spy, reader, seq2seq_length):
    index = read_by(reader, seq2seq_length=seq2seq_length, **UNTRAINED)
    read = spy(type(index.model), "states")
    index.search(" ".join(["violin"] * 30))
    assert [call["texts"].ids.shape[1] for call in read] == [seq2seq_length]


@pytest.mark.parametrize("reader", ["t5", "tuned"])
@pytest.mark.parametrize("feedback", ["hidden", "token"])
def test_a_wide_beam_and_exact_search_agree_with_the_model(read_by, reader, feedback):
    index = read_by(reader, feedback=feedback, learning_rate=1e-2)
    texts = index.model.batch(index.reader.text_inputs([QUESTION]))
    every = np.unique(index.codes, axis=0)
    with torch.no_grad():
        tokens = torch.from_numpy(every).long()
        many = type(texts)(texts.ids.expand(len(every), -1), texts.mask.expand(len(every), -1))
        logs = index.model(many, tokens).log_softmax(-1)
    truth = dict(zip(map(tuple, every.tolist()), logs.gather(2, tokens[:, :, None]).sum((1, 2)).tolist(), strict=True))
    for decoding in ("exact", "beam"):
        hits = index.adjust({"decoding": decoding, "beam": 40}).search(QUESTION, k=40, explain=True)
        assert len(hits) == 40
        for hit in hits:
            assert hit.why["code_score"] == pytest.approx(truth[hit.code], abs=1e-3)


def test_t5_asks_no_frozen_encoder_unless_the_ranking_compares_vectors(small_corpus, read_by, nothing_frozen):
    index = read_by("t5")
    assert index.vectors.shape == (40, 0)
    assert len(index.search(QUESTION, k=5, explain=True)) == 5
    index.add([Document("new/1", "The violin is a music.")])
    assert index.vectors.shape == (41, 0) and "new/1" in index.search("The violin", k=41).doc_ids
    for ranking in ("sum", "union"):
        with pytest.raises(BadSetting, match="vectors"):
            index.adjust({"ranking": ranking})
    assert index.adjust({"ranking": "share"}).settings.ranking == "share"


def test_t5_with_a_ranking_by_similarity_has_the_vectors(read_by):
    index = read_by("t5", ranking="union")
    assert index.vectors.shape == (40, 32)
    hits = index.search(QUESTION, k=40)
    assert hits.scores == pytest.approx(sorted(similarities(index), reverse=True), abs=1e-5)


@pytest.mark.parametrize("start", [(), PARTS])
def test_a_tuned_encoder_needs_the_frozen_one_for_its_start_alone(read_by, spy, start):
    cached, encoded = spy(encoders.TextVectors, "cached"), spy(encoders.TextVectors, "encode")
    index = read_by("tuned", start=start)
    index.search(QUESTION)
    assert [call["progress"] for call in cached] == ["encoding documents"] * bool(start) + ["encoding words"]
    assert encoded == [] and index.vectors.shape == (40, 16 if start else 0)


def test_the_schedule_and_the_warm_up_reach_both_phases(small_corpus):
    values = {"encoder": "scratch", "length": 2, "epochs": 1, "keyword_epochs": 1, "schedule": "linear", "warmup": 0.25}
    phases = plan("glen", small_corpus, values).phases.values()
    assert [(phase.more["schedule"], phase.more["warmup"]) for phase in phases] == [("linear", 0.25)] * 2


def test_the_states_of_an_encoder_are_refused():
    with pytest.raises(BadSetting, match="states"):
        make("glen", {"train_encoder": "top", "encoder_memory": "states"})
