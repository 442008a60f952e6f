"""Tied-Atomic's wiring: every preset and every setting changes the quantity that it names.

Most tests replace the training loop by one that takes no steps and records what the settings decide: the schedule, the
batches, and the terms of each epoch's first batch.
"""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from reference import tied_atomic as reference
from training_spies import Phase, not_named, plan, without_steps

from callslip import api
from callslip.corpus.documents import Corpus, Pair, Query
from callslip.decoders.t5 import Tokens
from callslip.decoders.tuned import TunedWriter
from callslip.encoders import encoder as encoders
from callslip.errors import BadSetting
from callslip.index.readers import T5Reader, TunedReader, VectorReader
from callslip.methods import make
from callslip.methods.tied_atomic import method, training
from callslip.methods.tied_atomic.model import T5State, TiedReader
from callslip.methods.tied_atomic.settings import TiedAtomicSettings
from callslip.runtime import device as devices
from callslip.runtime.device import seeded
from callslip.search import nearest
from callslip.search.bm25 import WordIndex
from callslip.training import batches
from callslip.training.negatives import NONE, draw

pytestmark = pytest.mark.usefixtures("whole_precision")

SMALL = {"encoder": "scratch:dim=32", "decoder_width": 16, "decoder_heads": 2, "dropout": 0, "batch_size": 32}
QUESTION = "which violin has the mark music0"


@pytest.fixture
def runs(monkeypatch) -> list[Phase]:
    """The trainings of a fit, by a loop that takes no steps. It gives the model's output random weights instead: they
    start at zero, where the decoder makes no difference."""

    def see(phase: Phase) -> None:
        torch.nn.init.normal_(phase.module.out.weight, std=0.1)
        phase.run_through()

    return without_steps(monkeypatch, see)


def fit(corpus, preset=None, **values):
    return make("tied-atomic", SMALL | values, preset=preset).fit(corpus)


@pytest.fixture
def examples_of(small_corpus, runs, spy):
    """examples_of(**values) -> an index with such settings, its training pairs and its examples."""
    calls = spy(training.Training, "examples")

    def run(**values):
        index = fit(small_corpus, **values)
        return index, calls[-1]["pairs"], calls[-1]["result"]

    return run


def bm25_scores(corpus, texts) -> np.ndarray:
    words = WordIndex().index([document.content for document in corpus])
    return np.stack(list(words.scores_of(texts)))


def test_every_setting_is_named_in_this_file_or_that_of_training_sizes():
    here = Path(__file__)
    assert not_named(TiedAtomicSettings, here, here.with_name("test_training_sizes.py")) == []


# The schedule and the model.


def test_the_quick_preset_trains_for_one_epoch(small_corpus, runs):
    fit(small_corpus)
    fit(small_corpus, "quick")
    assert [run.epochs for run in runs] == [2, 1]


def test_the_settings_are_the_schedule_of_the_training(small_corpus, runs):
    fit(small_corpus, epochs=3, batch_size=30, learning_rate=7e-3, weight_decay=0.2, seed=5, query_repeat=1)
    (run,) = runs
    assert (run.epochs, run.steps, run.learning_rate, run.weight_decay) == (3, 7, 7e-3, 0.2)
    for epoch in range(3):  # 200 texts
        expected = [batch.tolist() for batch in batches.shuffled(200, 30, 5, epoch)]
        assert [batch.tolist() for batch in run.batch_lists[epoch]] == expected


def test_no_epochs_is_no_training(small_corpus, runs, spy):
    asked = spy(method, "training_pairs")
    index = fit(small_corpus, epochs=0)
    assert index.log is None and runs == [] and asked == []


def test_the_seed_makes_the_weights(small_corpus):
    index = fit(small_corpus, seed=5, epochs=0)
    with seeded(5):
        expected = TiedReader(**index.shape)
    for name, value in expected.state_dict().items():
        assert torch.equal(index.model.state_dict()[name], value), name


def test_the_decoder_has_the_shape_of_the_settings(small_corpus):
    shape = {"decoder_width": 24, "decoder_layers": 3, "decoder_heads": 6, "dropout": 0.25}
    decoder = fit(small_corpus, epochs=0, **shape).model.decoder
    assert decoder.begin.shape == (24,)
    assert len(decoder.layers) == 3
    assert {layer.itself.heads for layer in decoder.layers} == {6}
    assert {layer.dropout.p for layer in decoder.layers} == {0.25}


def test_documents_are_searched_by_their_states_of_the_trained_model(small_corpus):
    index = fit(small_corpus, learning_rate=1e-2)
    encoded = index.texts.encode([document.content for document in small_corpus])
    assert [record["phase"] for record in index.log.records] == ["training the decoder"] * 2
    with torch.no_grad():
        states = index.model(torch.from_numpy(encoded)).numpy()
        query = index.model(torch.from_numpy(index.texts.encode([QUESTION]))).numpy()[0]
    np.testing.assert_allclose(index.vectors, states, atol=1e-5)
    assert np.abs(states - encoded).max() > 0.01
    assert index.search(QUESTION, k=40).scores == pytest.approx(sorted(states @ query, reverse=True), abs=1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_noise_of_that_norm_is_added_to_queries_and_documents(small_corpus, runs, spy, monkeypatch, noise):
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)  # the noise is the same for all: noise / sqrt(dim)
    read, given = spy(TiedReader, "hidden"), spy(training.Training, "states")
    fit(small_corpus, noise=noise, epochs=1)
    assert len(given) == 2 and len(read) > 2
    for call, seen in zip(given, read, strict=False):
        np.testing.assert_allclose(seen["vectors"], call["inputs"][call["rows"]] + noise / 32**0.5, atol=1e-6)


# The training texts.


def test_the_settings_choose_the_training_texts(small_corpus, examples_of):
    asked = Counter((pair.query, pair.doc_id) for pair in small_corpus.pairs("train"))
    titles = Counter((document.title, document.doc_id) for document in small_corpus)

    def texts(**values):
        return Counter((pair.query, pair.doc_id) for pair in examples_of(**values)[1])

    assert texts(training_texts="") == asked
    assert texts(training_texts="", query_repeat=2) == asked + asked
    assert texts(training_texts="title", query_repeat=0) == titles
    assert texts(training_texts="title", query_repeat=1) == titles + asked
    whole = Counter((document.content, document.doc_id) for document in small_corpus)
    assert texts(training_texts="document,title", query_repeat=0) == whole + titles


@pytest.mark.parametrize(("query_repeat", "times"), [(None, 13), (2, 2)])
def test_judged_queries_are_repeated_until_they_are_a_third_of_the_others(small_corpus, runs, spy, query_repeat, times):
    few = dict(list(small_corpus.judgements["train"].items())[:4])
    calls = spy(training.Training, "examples")
    fit(Corpus(small_corpus.documents, small_corpus.queries, {"train": few}), query_repeat=query_repeat)
    pairs = calls[0]["pairs"]
    assert Counter(pair.query for pair in pairs[160:]) == {small_corpus.queries[query].text: times for query in few}


def test_doc2query_writes_further_texts(examples_of, monkeypatch):
    seen = []

    def write(corpus, checkpoint, per_document, *, device, seed, sampling):
        seen.append((checkpoint, per_document, device, seed, sampling))
        return [Pair("asked by a model", "fruit/0")]

    monkeypatch.setattr(importlib.import_module("callslip.corpus.doc2query"), "doc2query", write)
    generated = {"doc2query": "some/t5:count=3,sampling=nucleus"}
    _, pairs, _ = examples_of(**generated, device="cpu", seed=4)
    assert Pair("asked by a model", "fruit/0") in pairs
    assert seen == [("some/t5", 3, "cpu", 4, "nucleus")]


# The contrastive term.


@pytest.mark.parametrize("negatives_from", [5, 100])
def test_hard_negatives_come_from_the_best_of_bm25_without_the_answers(small_corpus, examples_of, negatives_from):
    _, pairs, examples = examples_of(negatives_from=negatives_from)
    texts = list(dict.fromkeys(pair.query for pair in pairs))
    row_of = small_corpus.rows()
    assert examples.candidates.shape == (len(texts), negatives_from)
    for text, scores, rows in zip(texts, bm25_scores(small_corpus, texts), examples.candidates, strict=True):
        rows = rows[rows != NONE]
        answers = {row_of[pair.doc_id] for pair in pairs if pair.query == text}
        positive = sorted(scores[scores > 0], reverse=True)[:negatives_from]
        assert not answers & set(rows.tolist())
        assert len(rows) >= len(positive) - len(answers)
        assert all(scores[row] >= positive[-1] for row in rows)


@pytest.mark.parametrize("negatives", [0, 1, 3])
def test_a_step_has_so_many_hard_negatives_per_example(examples_of, runs, spy, negatives):
    contrasts, states = spy(training, "contrastive"), spy(training.Training, "states")
    index, _, examples = examples_of(negatives=negatives, noise=0, seed=5, epochs=1)
    text, row = (some[runs[0].batch_lists[0][0]] for some in (examples.text, examples.row))
    hard = draw(examples.candidates[text], negatives, 40, np.random.default_rng([5, 2]))
    with torch.no_grad():
        documents = index.model(torch.from_numpy(training_vectors(index))).numpy()
    (call,) = contrasts
    assert call["h_negatives"].shape == (32, negatives, 32)
    np.testing.assert_allclose(call["h_negatives"], documents[hard].reshape(32, negatives, 32), atol=1e-5)
    np.testing.assert_allclose(call["h_positive"], documents[row], atol=1e-5)
    np.testing.assert_array_equal(states[0]["inputs"][states[0]["rows"]], examples.inputs[text])
    known = [[other in examples.answers.of(one) for other in (*row, *hard.ravel())] for one in text]
    np.testing.assert_array_equal(call["known"], known)


def training_vectors(index) -> np.ndarray:
    """The encoder's vectors of the documents."""
    return index.texts.encode([document.content for document in index.documents])


def test_the_weights_and_the_temperature_scale_the_terms(small_corpus, runs, spy):
    contrasts, margins = spy(training, "contrastive"), spy(training, "margin_mse")
    fit(small_corpus, temperature=0.2, contrastive_weight=3.0, teacher="dense", teacher_weight=0.25, epochs=1)
    (one,), (other,) = contrasts, margins
    states = (one[name].tolist() for name in ("h_query", "h_positive", "h_negatives"))
    contrast = reference.contrastive(*states, 0.2, one["known"].tolist())
    query = (one["h_query"] / 0.2).tolist()
    states = (other[name].tolist() for name in ("h_positive", "h_negative", "teacher_margin"))
    margin = reference.margin_mse(query, *states)
    expected = {"contrastive": 3.0 * contrast, "margin": 0.25 * margin}
    assert runs[0].terms[0] == pytest.approx(expected, rel=1e-4)


def test_a_term_is_left_out_without_its_weight_or_its_teacher(small_corpus, runs):
    def terms(**values):
        fit(small_corpus, epochs=1, **values)
        return set(runs[-1].terms[0])

    assert terms() == {"contrastive"}
    assert terms(teacher="bm25") == {"contrastive", "margin"}
    assert terms(teacher="bm25", contrastive_weight=0) == {"margin"}


# The teacher.


class Lengths:
    """A cross-encoder whose score is made of the lengths of query and document."""

    opened: ClassVar[list[tuple[str, str | None]]] = []

    def __init__(self, name: str, *, device: str | None = None) -> None:
        self.opened.append((name, device))

    def scores(self, queries, documents) -> np.ndarray:
        return np.array([len(q) * len(d) ** 2 / 1e3 for q, d in zip(queries, documents, strict=True)], np.float32)


@pytest.mark.parametrize("teacher", ["dense", "bm25", "owner/cross-encoder"])
@pytest.mark.parametrize("teacher_scale", [1.0, 2.5, None])
def test_the_margins_are_those_of_the_teacher(small_corpus, examples_of, monkeypatch, teacher, teacher_scale):
    monkeypatch.setattr(method, "CrossEncoder", Lengths)
    monkeypatch.setattr(Lengths, "opened", [])
    values = {"teacher": teacher, "teacher_scale": teacher_scale, "temperature": 0.2}
    index, pairs, examples = examples_of(**values, teacher_negatives=3, seed=5, device="cpu", training_texts="title")
    texts, vectors = [pair.query for pair in pairs], training_vectors(index)
    rows = np.concatenate([examples.row[:, None], examples.judged], axis=1)
    untrained = np.einsum("nd,ncd->nc", index.texts.encode(texts), vectors[rows])
    if teacher == "dense":
        scores = untrained
    elif teacher == "bm25":
        scores = np.take_along_axis(bm25_scores(small_corpus, texts), rows, axis=1)
    else:
        contents = [document.content for document in small_corpus]
        scores = [Lengths.scores(None, [text] * 4, [contents[n] for n in row]) for text, row in zip(texts, rows)]
        scores = np.stack(scores)
    margins, own = (some[:, :1] - some[:, 1:] for some in (scores, untrained))
    scale = np.std(own) / 0.2 / np.std(margins) if teacher_scale is None else teacher_scale
    np.testing.assert_allclose(examples.margins, scale * margins, atol=1e-3)
    assert Lengths.opened == ([("owner/cross-encoder", "cpu")] if "/" in teacher else [])
    drawn = draw(examples.candidates[examples.text], 3, 40, np.random.default_rng([5, 1]))
    np.testing.assert_array_equal(examples.judged, drawn)


@pytest.mark.parametrize("teacher_negatives", [1, 6])
def test_a_step_has_one_of_the_negatives_that_the_teacher_scored(examples_of, runs, spy, teacher_negatives):
    taught = spy(training, "margin_mse")
    values = {"teacher": "dense", "teacher_negatives": teacher_negatives, "noise": 0, "seed": 5, "epochs": 1}
    index, _, examples = examples_of(**values)
    chosen, rng = runs[0].batch_lists[0][0], np.random.default_rng([5, 2])
    draw(examples.candidates[examples.text[chosen]], 1, 40, rng)  # the hard negatives come before
    pick = np.arange(32), rng.integers(0, teacher_negatives, 32)
    assert examples.judged.shape == (len(examples.text), teacher_negatives)
    with torch.no_grad():
        documents = index.model(torch.from_numpy(training_vectors(index))).numpy()
    (call,) = taught
    np.testing.assert_allclose(call["h_negative"], documents[examples.judged[chosen][pick]], atol=1e-5)
    np.testing.assert_array_equal(call["teacher_margin"], examples.margins[chosen][pick])


def test_the_teacher_is_none_unless_it_is_named(examples_of):
    _, _, examples = examples_of()
    assert examples.judged is None and examples.margins is None


# Search.


def test_faiss_gets_the_links_and_the_effort_of_the_settings(small_corpus, spy):
    walks = spy(nearest.Nearest, "search")
    index = fit(small_corpus, index="faiss", neighbours=5, effort=77, epochs=0)
    graph = index._nearest._graph
    assert graph.hnsw.nb_neighbors(1) == 5 and graph.hnsw.efConstruction == 77
    index.search(QUESTION, k=3)
    index.adjust({"effort": 9}).search(QUESTION, k=3)
    assert [walk["effort"] for walk in walks] == [77, 9]


@pytest.mark.parametrize(("index", "exact"), [("auto", False), ("exact", True), ("faiss", False)])
def test_large_indexes_are_searched_by_a_graph_unless_the_search_is_exact(small_corpus, monkeypatch, index, exact):
    monkeypatch.setattr(nearest, "EXACT_UP_TO", 39)
    assert fit(small_corpus, index=index, epochs=0)._nearest.exact == exact


def test_encoder_and_model_run_as_the_settings_say(small_corpus, spy, tmp_path):
    loaded, asked, moved = spy(encoders, "load_encoder"), spy(devices, "best_device"), spy(method, "best_device")
    values = {"encoder": "scratch:dim=48", "backend": "torch", "device": "cpu", "epochs": 0}
    index = fit(small_corpus, **values)
    assert [(call["spec"], call["backend"], call["device"]) for call in loaded] == [("scratch:dim=48", "torch", "cpu")]
    index.save(tmp_path / "index")
    api.load(tmp_path / "index")
    index.adjust({"device": "cpu"})
    assert [call["device"] for call in asked] == ["cpu"] * 2 and [call["device"] for call in moved] == ["cpu"]


# The readers: a fine-tuned encoder, and T5.


TOKENS = {"training_texts": "title", "epochs": 1, "learning_rate": 1e-2, "seq2seq_length": 9}


@pytest.fixture
def nothing_frozen(monkeypatch):
    """The frozen encoder must not be asked for anything."""

    def refuse(self, *arguments):
        pytest.fail("the frozen encoder was run")

    for name in ("encode", "cached"):
        monkeypatch.setattr(encoders.TextVectors, name, refuse)


def read_by(corpus, tiny, reader, **values):
    """An index by that reader, on tiny checkpoints."""
    chosen = {"t5": {"seq2seq": tiny["T5"]}, "tuned": {"encoder": tiny["BERT"], "train_encoder": "all"}}[reader]
    return fit(corpus, **TOKENS | chosen | values)


def t5_tokens(index, texts):
    """Ids and mask of texts by T5's own tokenizer, cut to nine tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(index.settings.seq2seq)
    read = tokenizer(texts, truncation=True, max_length=9, padding=True, return_tensors="pt")
    return read.input_ids, read.attention_mask


def test_the_settings_choose_the_reader(small_corpus, tiny):
    assert type(read_by(small_corpus, tiny, "t5", epochs=0).reader) is T5Reader
    assert type(read_by(small_corpus, tiny, "tuned", epochs=0).reader) is TunedReader
    assert type(fit(small_corpus, epochs=0).reader) is VectorReader
    with pytest.raises(BadSetting, match="train_encoder"):
        read_by(small_corpus, tiny, "t5", train_encoder="all")


@pytest.mark.parametrize("products", ["cosine", "dot"])
@pytest.mark.parametrize("state", ["decoder", "encoder"])
def test_the_states_of_t5_are_those_of_transformers(small_corpus, tiny, nothing_frozen, state, products):
    """Of the decoder after the start token, as it would be multiplied with output embeddings; or the encoder's mean."""
    index = read_by(small_corpus, tiny, "t5", state=state, products=products)
    texts = [document.content for document in small_corpus]
    ids, mask = t5_tokens(index, texts)
    t5 = index.model.t5.eval()
    with torch.no_grad():
        start = torch.zeros((len(texts), 1), dtype=torch.long)
        out = t5(input_ids=ids, attention_mask=mask, decoder_input_ids=start, output_hidden_states=True)
    if state == "decoder":
        expected = out.decoder_hidden_states[-1][:, 0] * 16**-0.25
        # Were the first document's state a row of T5's output embeddings, its logit would be this product.
        row = out.decoder_hidden_states[-1][0, 0]
        logits = out.logits[:, 0], out.decoder_hidden_states[-1][:, 0] * 16**-0.5 @ t5.lm_head.weight.T
        torch.testing.assert_close(*logits)
        torch.testing.assert_close(
            expected @ expected[0], out.decoder_hidden_states[-1][:, 0] * 16**-0.5 @ row, atol=1e-4, rtol=1e-4
        )
    else:
        weights = mask[:, :, None].float()
        expected = (out.encoder_last_hidden_state * weights).sum(1) / weights.sum(1)
    if products == "cosine":
        expected = torch.nn.functional.normalize(expected, dim=-1)
    np.testing.assert_allclose(index.vectors, expected.numpy(), atol=1e-4)
    lengths = np.linalg.norm(index.vectors, axis=1)
    assert np.allclose(lengths, 1, atol=1e-4) == (products == "cosine")
    query = index.query_vectors([Query("q", texts[5])])[0]  # queries are read as documents are
    np.testing.assert_allclose(query, index.vectors[5], atol=1e-4)


@pytest.mark.parametrize("reader", ["t5", "tuned"])
def test_texts_of_any_length_keep_their_place(small_corpus, tiny, reader):
    index = read_by(small_corpus, tiny, reader, epochs=0, seq2seq_length=30)
    texts = ["nile", "the violin is a music", "mark", " ".join(["piano"] * 20), "the nile is a river", ""]
    together = index.query_vectors([Query("q", text) for text in texts])
    for text, state in zip(texts, together, strict=True):
        np.testing.assert_allclose(index.query_vectors([Query("q", text)])[0], state, atol=1e-5)


@pytest.mark.parametrize("products", ["cosine", "dot"])
def test_a_dual_encoder_compares_the_pooled_vectors_of_the_tuned_encoder(small_corpus, tiny, nothing_frozen, products):
    index = read_by(small_corpus, tiny, "tuned", state="encoder", products=products)
    assert not list(index.model.writer.parameters())
    tokens = [index.model.tokenize([document.content], 9)[0] for document in small_corpus]
    with torch.no_grad():
        expected = [index.model.encoder.model(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in tokens]
    expected = torch.stack(expected)
    if products == "cosine":
        expected = torch.nn.functional.normalize(expected, dim=-1)
    np.testing.assert_allclose(index.vectors, expected.numpy(), atol=1e-4)


def test_a_tuned_encoder_starts_as_the_frozen_one_and_is_trained(small_corpus, tiny, nothing_frozen):
    untrained = read_by(small_corpus, tiny, "tuned", epochs=0, seq2seq_length=64)
    frozen = encoders.load_encoder(tiny["BERT"], backend="torch")
    texts = [document.content for document in small_corpus]
    np.testing.assert_allclose(untrained.vectors, frozen.encode(texts), atol=1e-5)
    trained = read_by(small_corpus, tiny, "tuned", encoder_learning_rate=1e-2, seq2seq_length=64)
    assert np.abs(np.asarray(trained.vectors) - np.asarray(untrained.vectors)).max() > 0.01
    np.testing.assert_allclose(trained.vectors, trained.project(trained.reader.text_inputs(texts)), atol=1e-5)


@pytest.mark.parametrize(("train_encoder", "layers"), [("top", {1, 2}), ("all", {0, 1, 2})])
def test_the_layers_that_are_named_are_trained(small_corpus, tiny, train_encoder, layers):
    before, after = (
        read_by(small_corpus, tiny, "tuned", train_encoder=train_encoder, epochs=epochs).model.encoder.state_dict()
        for epochs in (0, 1)
    )
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert {int(name.split(".layer.")[1][0]) for name in moved if ".layer." in name} == layers


def test_all_of_t5_is_trained(small_corpus, tiny, nothing_frozen):
    before, after = (read_by(small_corpus, tiny, "t5", epochs=n).model.state_dict() for n in (0, 1))
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    for part in ("t5.shared", "t5.encoder.block", "t5.decoder.block", "t5.decoder.final_layer_norm"):
        assert any(name.startswith(part) for name in moved), part


def test_the_encoder_has_a_learning_rate_of_its_own(small_corpus, tiny, monkeypatch):
    seen = {}

    def observe(*arguments, learning_rate, share, **_):
        seen.update({name: learning_rate * share(name) for name in ("encoder.x", "writer.x")})

    monkeypatch.setattr(training, "train", observe)
    read_by(small_corpus, tiny, "tuned", learning_rate=1e-2, encoder_learning_rate=3e-3)
    assert seen == pytest.approx({"encoder.x": 3e-3, "writer.x": 1e-2})
    read_by(small_corpus, tiny, "t5", learning_rate=1e-2, encoder_learning_rate=3e-3)
    assert seen == pytest.approx({"encoder.x": 1e-2, "writer.x": 1e-2})


@pytest.mark.parametrize("reader", ["t5", "tuned"])
@pytest.mark.parametrize("seq2seq_length", [4, 9])
def test_texts_are_cut_to_their_length(small_corpus, tiny, spy, reader, seq2seq_length):
    read = spy({"t5": T5State, "tuned": TunedWriter}[reader], "hidden")
    index = read_by(small_corpus, tiny, reader, seq2seq_length=seq2seq_length)
    index.search(" ".join(["violin"] * 30))
    tokens = [next(one for one in call.values() if isinstance(one, Tokens)) for call in read]
    assert {one.ids.shape[1] for one in tokens[-1:]} == {seq2seq_length}
    assert max(one.ids.shape[1] for one in tokens) == seq2seq_length


def test_negatives_and_terms_do_not_depend_on_the_reader(small_corpus, tiny, spy):
    calls, objectives = spy(training.Training, "terms"), spy(training.Training, "objective")
    index = read_by(small_corpus, tiny, "t5", teacher="bm25", negatives=2, temperature=0.5)
    call, examples, chosen = calls[0], objectives[0]["examples"], objectives[0]["chosen"]
    text, row = examples.text[chosen], examples.row[chosen]
    assert call["query"].shape == (len(chosen), 16) and call["documents"].shape == (4 * len(chosen), 16)
    assert set(call["result"]) == set(objectives[0]["result"]) == {"contrastive", "margin"}
    hard = draw(examples.candidates[text], 2, 40, np.random.default_rng([0, 2]))
    known = [[other in examples.answers.of(one) for other in (*row, *hard.ravel())] for one in text]
    np.testing.assert_array_equal(call["known"], known)
    assert isinstance(examples.inputs[0], list) and index.log.records[0]["margin"] > 0


@pytest.mark.parametrize("teacher", ["dense", "bm25"])
def test_the_frozen_encoder_is_asked_only_as_a_teacher(small_corpus, tiny, spy, teacher):
    cached = spy(encoders.TextVectors, "cached")
    index = read_by(small_corpus, tiny, "t5", teacher=teacher)
    assert len(cached) == (2 if teacher == "dense" else 0)
    index.search(QUESTION)
    assert (index.texts._encoder is not None) == (teacher == "dense")


def test_dense_trained_is_a_dual_encoder_trained_alike(small_corpus, tiny, spy, nothing_frozen):
    assert make("dense-trained").settings.train_encoder == "all"
    values = {"encoder": tiny["BERT"], "train_encoder": "top"} | TOKENS
    tied, dense = (make(name, values) for name in ("tied-atomic", "dense-trained"))
    assert (tied.settings.state, dense.settings.state) == ("decoder", "encoder")
    calls = spy(training.Training, "objective")
    for index in (tied, dense):
        index.fit(small_corpus)
    half = len(calls) // 2
    for one, other in zip(calls[:half], calls[half:], strict=True):  # the same data, negatives and batches
        np.testing.assert_array_equal(one["chosen"], other["chosen"])
        np.testing.assert_array_equal(one["examples"].candidates, other["examples"].candidates)
        assert one["examples"].inputs == other["examples"].inputs
    with pytest.raises(BadSetting, match="nothing to train"):
        make("dense-trained", {"train_encoder": "none"})


def test_the_schedule_and_the_warm_up_reach_the_training(small_corpus):
    values = SMALL | {"epochs": 1, "schedule": "linear", "warmup": 0.25}
    (phase,) = plan("tied-atomic", small_corpus, values).phases.values()
    assert (phase.more["schedule"], phase.more["warmup"]) == ("linear", 0.25)


def test_the_states_of_an_encoder_are_refused():
    with pytest.raises(BadSetting, match="states"):
        make("tied-atomic", {"train_encoder": "top", "encoder_memory": "states"})
