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
from training_spies import Phase, without_steps

from callslip.corpus.documents import Pair
from callslip.encoders import encoder as encoders
from callslip.encoders.word_pieces import linear_map, spread
from callslip.identifiers import Identifiers
from callslip.identifiers.keywords import corpus_vocabulary, keyword_codes
from callslip.methods import find, make
from callslip.methods.glen import method, model, search, training
from callslip.methods.glen.equations import (
    identifier_embedding,
    identifier_weights,
    keyword_loss,
    pairwise_ranking,
    relevance,
)
from callslip.methods.glen.settings import GLENSettings
from callslip.runtime import device as devices
from callslip.runtime.seeds import seeded
from callslip.settings import describe
from callslip.training import batches
from callslip.training.negatives import prefix_negatives

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
    seen, number = [], training.number_texts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "number_texts", lambda texts: seen.append(number(texts)) or seen[-1])
        found = training.Training(index, corpus).texts
    (distinct, _), ids = seen[0], corpus.doc_ids
    return [(distinct[text], ids[row]) for text, row in zip(found.text, found.row, strict=True)]


def common_prefix(one, other) -> int:
    same = [a == b for a, b in zip(one, other, strict=True)]
    return same.index(False) if False in same else len(same)


def test_every_setting_is_named_in_this_file():
    source = Path(__file__).read_text(encoding="utf-8")
    names = [setting.name for setting in describe(GLENSettings)]
    assert [name for name in names if f"{name}=" not in source and f'"{name}"' not in source] == []


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


def test_the_paper_preset_trains_as_the_paper_says(small_corpus, phases, spy):
    calls, negatives = spy(training, "identifier_embedding"), spy(training.Training, "words_and_negatives")
    smaller = {"decoder_width": 24, "decoder_layers": 1, "encoder": "scratch:dim=32"}
    index = fit(small_corpus, "paper", **smaller)
    assert [(phase.name, phase.epochs, phase.learning_rate, phase.weight_decay) for phase in phases] == [
        (KEYWORDS, 20, 2e-4, 1e-4), (REFINEMENT, 12, 5e-5, 1e-4),
    ]  # fmt: skip
    assert index.codes.shape[1] == 3
    assert index.model.embeddings.requires_grad
    assert negatives[0]["result"][1].shape == (40, 8)
    assert {call["support"] for call in calls} == {None}
    assert index.settings.decoder_heads == 12 and index.model.layers[0].itself.heads == 12


# The words of a code.


def test_length_and_vocabulary_bound_the_codes(small_corpus, phases):
    index = fit(small_corpus, length=3, vocabulary=7)
    assert index.codes.shape == (40, 3) and index.model.length == 3
    assert index.vocabulary == corpus_vocabulary(small_corpus, None, 7)
    assert index.codes.max() < 7 and index.model.embeddings.shape[0] == 7
    assert fit(small_corpus, vocabulary=None).vocabulary == corpus_vocabulary(small_corpus)


class WholeWords:
    """Word pieces of an encoder: whole words in capitals, with a table of random embeddings."""

    def __init__(self, spec: str) -> None:
        self.spec = spec

    def __call__(self, text: str) -> list[str]:
        return text.upper().split()

    def table(self, pieces: list[str]) -> np.ndarray:
        return np.random.default_rng(0).standard_normal((len(pieces), 20)).astype(np.float32)


def test_word_pieces_are_those_of_the_encoder(small_corpus, phases, monkeypatch):
    seen = []
    monkeypatch.setattr(method, "encoder_pieces", lambda spec: seen.append(spec) or WholeWords(spec))
    index = fit(small_corpus, encoder="scratch:dim=48")
    assert seen == ["scratch:dim=48"] and index.vectors.shape[1] == 48
    assert "KNOWS" in index.vocabulary and "knows" not in index.vocabulary


@pytest.mark.parametrize("embeddings", ["encoded", "table"])
def test_words_start_as_encoded_texts_or_as_rows_of_the_encoders_table(small_corpus, phases, monkeypatch, embeddings):
    monkeypatch.setattr(method, "encoder_pieces", WholeWords)
    index = fit(small_corpus, embeddings=embeddings)
    encoded, table = spread(index.texts.encode(index.vocabulary)), spread(WholeWords("").table(index.vocabulary))
    start = table if embeddings == "table" else encoded
    np.testing.assert_allclose(index.model.embeddings.detach(), start, atol=1e-5)
    to_words = linear_map(encoded, table) if embeddings == "table" else np.eye(32)
    np.testing.assert_allclose(index.model.skip.weight.detach().numpy().T, to_words, atol=1e-5)


@pytest.mark.parametrize("train_words", [False, True])
def test_training_moves_the_words_only_if_they_are_trained(small_corpus, train_words):
    index = fit(small_corpus, train_words=train_words, epochs=1, learning_rate=1e-2)
    start = spread(index.texts.encode(index.vocabulary))
    assert (np.abs(index.model.embeddings.detach().numpy() - start).max() > 1e-4) == train_words


def test_texts_start_centred_where_the_words_are(small_corpus):
    index = fit(small_corpus, **UNTRAINED)
    with torch.no_grad():
        centred = index.model.skip(torch.from_numpy(index.vectors)).numpy()
    np.testing.assert_allclose(centred, index.vectors - index.vectors.mean(axis=0), atol=1e-5)


@pytest.mark.parametrize("strengths", [False, True])
def test_levels_start_with_the_strength_of_the_documents_words_or_equal(small_corpus, strengths):
    index = fit(small_corpus, strengths=strengths, length=4, **UNTRAINED)
    start = index.model.strengths.detach().clone()
    index.model.begin_strengths(index.vectors)
    expected = index.model.strengths.detach() if strengths else torch.ones(4)
    torch.testing.assert_close(start, expected)
    assert not torch.allclose(index.model.strengths, torch.ones(4))


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

    alone = {"pseudo_queries": "", "train_on_documents": False}
    assert texts(**alone) == Counter(asked)
    assert texts(**alone, query_repeat=3) == Counter(dict.fromkeys(asked, 3))
    assert texts(pseudo_queries="", train_on_documents=True, train_on_queries=False) == Counter(own)
    assert texts(pseudo_queries="title", train_on_documents=False, train_on_queries=False) == Counter(titles)
    assert texts(pseudo_queries="title") == Counter(titles) + Counter(asked) + Counter(own)
    assert texts(**alone, train_on_queries=False) == Counter(own), "there must be something to train on"


def test_doc2query_writes_further_texts(small_corpus, monkeypatch):
    seen = []

    def write(corpus, checkpoint, per_document, *, device, seed):
        seen.append((checkpoint, per_document, device, seed))
        return [Pair("asked by a model", "fruit/0")]

    monkeypatch.setattr(importlib.import_module("callslip.corpus.doc2query"), "doc2query", write)
    values = {"doc2query": "some/t5", "doc2query_per_document": 3, "device": "cpu", "seed": 4}
    assert ("asked by a model", "fruit/0") in texts_of(small_corpus, **values)
    assert seen[-1] == ("some/t5", 3, "cpu", 4)


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
    texts, chosen = training.Training(index, small_corpus).texts, phases[0].batch_lists[0][0]
    keywords = keyword_codes(small_corpus, 3)
    number = {word: token for token, word in enumerate(index.vocabulary)}
    heaviest = [[number[keywords.vocabulary[token]] for token in code] for code in keywords.codes]
    code = torch.tensor(heaviest)[texts.row[chosen]]
    query, document = (
        torch.from_numpy(some) for some in (texts.vectors[texts.text[chosen]], index.vectors[texts.row[chosen]])
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
    index = fit(small_corpus, noise=noise, strengths=False, keyword_epochs=1, epochs=1)
    texts = training.Training(index, small_corpus).texts
    in_training = [call for call in calls if not torch.is_inference(call["vectors"])]
    first, second = phases[0].batch_lists[0][0], phases[1].batch_lists[0][0]
    shift, kinds = noise / 32**0.5, []
    for call in in_training[:4]:
        documents = call["documents"]
        phase = KEYWORDS if len(kinds) < 2 else REFINEMENT
        kinds.append((phase, documents))
        chosen = first if phase == KEYWORDS else second
        clean = index.vectors[texts.row[chosen]] if documents else texts.vectors[texts.text[chosen]]
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
    values = {"pairwise_weight": 3.0, "pointwise_weight": 0.25, "distance_weight": 2.0, "ranking_temperature": 4.0}
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
        pointwise = float(keyword_loss(written.logits(h_query), code)) + 2.0 * (1 - np.mean(cosines))
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


@pytest.mark.parametrize("collision", ["weights", "similarity"])
@pytest.mark.parametrize("ranking", ["bucket", "share"])
def test_collision_decides_the_order_inside_a_bucket(crowded, collision, ranking):
    index = crowded(collision=collision, ranking=ranking)
    row_of, by = index.row_of(), {"weights": weight_cosines(index), "similarity": similarities(index)}
    buckets = buckets_of(index.search(QUESTION, k=40))
    assert len(buckets) == index.identifiers.unique
    right = {
        name: all((np.diff([values[row_of[doc]] for doc in bucket]) <= 1e-6).all() for bucket in buckets)
        for name, values in by.items()
    }
    assert right == {"weights": collision == "weights", "similarity": collision == "similarity"}


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
    more = {"vector_size": 48, "query_prompt": "q: ", "document_prompt": "d: "}
    fit(small_corpus, encoder="scratch:dim=48", max_length=7, backend="torch", device="cpu", **UNTRAINED, **more)
    prompts = {(call["dim"], call["query_prompt"], call["document_prompt"]) for call in loaded}
    assert prompts == {(48, "q: ", "d: ")}
    assert {(call["spec"], call["max_length"], call["backend"], call["device"]) for call in loaded} == {
        ("scratch:dim=48", 7, "torch", "cpu")
    }
    assert {call["device"] for call in asked} == {"cpu"}
