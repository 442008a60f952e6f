"""Tied-Atomic: its equations by plain loops, the paper's thesis, new documents, and what training changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from reference import tied_atomic as reference

from callslip import api
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, CallslipError, UnknownName
from callslip.methods import make
from callslip.methods.tied_atomic import Training, contrastive, margin_mse
from callslip.training.batches import training_pairs

QUICK = {"encoder": "scratch", "epochs": 6, "decoder_width": 32, "batch_size": 32, "learning_rate": 2e-3}


def states(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The equations.


@pytest.mark.parametrize(("size", "negatives"), [(1, 0), (1, 3), (4, 0), (5, 2)])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_contrastive_equals_the_loop(size, negatives, temperature):
    q, p, n = states(size, 6), states(size, 6, seed=1), states(size, negatives, 6, seed=2)
    truth = reference.contrastive(q.tolist(), p.tolist(), n.tolist(), temperature)
    assert float(contrastive(q, p, n, temperature)) == pytest.approx(truth)


def test_other_answers_are_left_out_of_the_contrast():
    q, p, n = states(4, 6), states(4, 6, seed=1), states(4, 2, 6, seed=2)
    known = states(4, 12, seed=3) > 0
    known[0] = True  # even the query's own document: that one is never left out
    truth = reference.contrastive(q.tolist(), p.tolist(), n.tolist(), 0.5, known.tolist())
    assert float(contrastive(q, p, n, 0.5, known)) == pytest.approx(truth)
    assert truth != pytest.approx(reference.contrastive(q.tolist(), p.tolist(), n.tolist(), 0.5))


def test_margin_mse_equals_the_loop():
    q, p, n, margin = states(5, 6), states(5, 6, seed=1), states(5, 6, seed=2), states(5, seed=3)
    truth = reference.margin_mse(q.tolist(), p.tolist(), n.tolist(), margin.tolist())
    assert float(margin_mse(q, p, n, margin)) == pytest.approx(truth)


def test_wrong_shapes_are_refused():
    q, n = states(3, 6), states(3, 2, 6)
    for bad in [
        lambda: contrastive(q, states(2, 6), n),
        lambda: contrastive(q[0], q[0], n),
        lambda: contrastive(q, q, states(3, 6)),
        lambda: contrastive(q, q, states(3, 2, 5)),
        lambda: contrastive(q[:0], q[:0], n[:0]),
        lambda: contrastive(q, q, n, known=torch.zeros(3, 3, dtype=torch.bool)),
        lambda: margin_mse(q, q, states(3, 5), states(3)),
        lambda: margin_mse(q, q, q, states(3, 1)),  # would broadcast to a 3 x 3 table of errors
    ]:
        with pytest.raises(BadSetting, match=r"shape|states"):
            bad()


# The thesis: generative retrieval with one token per document is dense retrieval.


@pytest.fixture(scope="module")
def trained(small_corpus):
    return make("tied-atomic", QUICK).fit(small_corpus)


def test_its_ranking_is_dense_retrieval_with_the_same_vectors(trained, small_corpus):
    """faiss's flat index, and a plain sort: another library and no library."""
    import faiss

    flat = faiss.IndexFlatIP(trained.vectors.shape[1])
    flat.add(trained.vectors)
    for query in small_corpus.split("test")[0].values():
        state = trained.project(trained.texts.encode([query.text]))
        hits = trained.search(query, k=40)
        scores, rows = flat.search(state, 40)
        np.testing.assert_allclose(hits.scores, scores[0], atol=1e-5)
        products = trained.vectors @ state[0]
        assert hits.doc_ids == [small_corpus.documents[row].doc_id for row in np.argsort(-products, kind="stable")]
        assert {hit.code for hit in hits[:5]} <= {(row,) for row in range(len(small_corpus))}
        assert [products[row] for row in rows[0]] == pytest.approx(sorted(products, reverse=True), abs=1e-5)


def test_one_step_of_dsi_atomic_is_the_same_dot_product(small_corpus):
    """What CodeWriter writes in its one step is a row of its head times its hidden state, plus a bias: dense retrieval
    of documents whose vectors are parameters."""
    quick = {"encoder": "scratch", "epochs": 4, "decoder_width": 32, "batch_size": 64, "ranking": "bucket"}
    index = make("dsi-atomic", quick).fit(small_corpus)
    head = index.model.heads[0]
    for query in list(small_corpus.split("test")[0].values())[:8]:
        vector = torch.from_numpy(index.texts.encode([query.text]))
        with torch.inference_mode():
            hidden = index.model.hidden(vector, torch.zeros(1, 1, dtype=torch.long))[0, 0].numpy()
            _, written = index.model.start(vector)
        # The bias is one more dimension, in which every query has a 1.
        documents = np.concatenate([head.weight.detach().numpy(), head.bias.detach().numpy()[:, None]], axis=1)
        products = documents @ np.append(hidden, 1.0)
        normaliser = np.log(np.exp(products).sum())
        np.testing.assert_allclose(written[0, 0].numpy(), products - normaliser, atol=1e-4)
        best = [small_corpus.documents[row].doc_id for row in np.argsort(-products, kind="stable")]
        assert index.search(query, k=10).doc_ids == best[:10]


def test_untrained_it_is_the_encoder(small_corpus):
    dense = make("dense", {"encoder": "scratch"}).fit(small_corpus)
    index = make("tied-atomic", QUICK | {"epochs": 0}).fit(small_corpus)
    np.testing.assert_allclose(index.vectors, dense.vectors, atol=1e-6)
    for query in small_corpus.split("test")[0].values():
        np.testing.assert_allclose(index.search(query, k=40).scores, dense.search(query, k=40).scores, atol=1e-5)


def test_faiss_finds_what_exact_search_finds(trained, small_corpus, tmp_path):
    graph = make("tied-atomic", QUICK | {"index": "faiss"}).fit(small_corpus)
    assert trained._nearest.exact and not graph._nearest.exact
    for query in list(small_corpus.split("test")[0].values())[:10]:
        assert graph.search(query, k=5).scores == pytest.approx(trained.search(query, k=5).scores, abs=1e-4)


def test_faiss_above_a_million(trained, monkeypatch):
    from callslip.search import nearest

    monkeypatch.setattr(nearest, "EXACT_UP_TO", len(trained.vectors) - 1)
    assert not nearest.Nearest(trained.vectors).exact
    assert nearest.Nearest(trained.vectors, "exact").exact
    assert nearest.Nearest(trained.vectors[1:]).exact


# A living index.


def test_documents_unseen_in_training_are_one_pass_from_being_found(small_corpus):
    held = [document for document in small_corpus if document.doc_id.endswith(("3", "7"))]
    ids = {document.doc_id for document in held}
    known = [document for document in small_corpus if document.doc_id not in ids]
    train = {q: d for q, d in small_corpus.judgements["train"].items() if not ids & set(d)}
    index = make("tied-atomic", QUICK).fit(Corpus(known, small_corpus.queries, {"train": train}))
    before = index.model.state_dict()["out.weight"].clone()
    index.add(held)
    assert torch.equal(before, index.model.state_dict()["out.weight"])
    queries, judgements = small_corpus.split("test")
    for qid, query in queries.items():
        (answer,) = judgements[qid]
        if answer in ids:
            assert answer in index.search(query, k=3).doc_ids
    texts = [document.content for document in held]
    expected = index.project(index.texts.encode(texts))
    np.testing.assert_array_equal(index.vectors[len(known) :], expected.astype(np.float16))


def test_a_deleted_document_can_come_back(trained, small_corpus, tmp_path):
    trained.save(tmp_path / "index")
    index = api.load(tmp_path / "index")
    again = small_corpus.documents[13]
    index.delete([again.doc_id])
    index.add([Document(again.doc_id, again.text, again.title)])
    assert index.search(again.content, k=1).doc_ids == [again.doc_id]


# Training.


def jargon(count: int = 60) -> Corpus:
    """Questions in words that no document has: what dense retrieval by hashed words cannot find, and training can."""
    rng = np.random.default_rng(0)
    plain = [f"plain{n}" for n in range(20)]
    documents, queries = [], {}
    splits: dict[str, dict[str, dict[str, int]]] = {"train": {}, "test": {}}
    for row in range(count):
        topics = sorted(rng.choice(20, 3, replace=False).tolist())
        documents.append(Document(str(row), " ".join(plain[t] for t in topics)))
        for split, asked in (("train", topics), ("test", topics[::-1])):
            queries[f"{split}{row}"] = Query(f"{split}{row}", " ".join(f"strange{t}" for t in asked))
            splits[split][f"{split}{row}"] = {str(row): 1}
    splits["train"] = {q: d for q, d in splits["train"].items() if int(q[5:]) >= 15}
    splits["test"] = {q: d for q, d in splits["test"].items() if int(q[4:]) < 15}  # answers never asked for in training
    return Corpus(documents, queries, splits)


def quality(index, corpus) -> float:
    report = api.evaluate(index, corpus, measures="R@10")
    return report.measures["R@10"].mean


def test_training_raises_quality_and_reaches_documents_without_queries():
    corpus = jargon()
    quick = QUICK | {"epochs": 60, "encoder": "scratch:dim=128"}
    untrained = make("tied-atomic", quick | {"epochs": 0}).fit(corpus)
    trained = make("tied-atomic", quick).fit(corpus)
    assert quality(trained, corpus) >= quality(untrained, corpus) + 0.25
    assert trained.log.records[-1]["contrastive"] < trained.log.records[0]["contrastive"]
    assert set(trained.log.records[0]) == {"phase", "epoch", "contrastive", "learning_rate", "seconds"}


def pairs_of(corpus, **values):
    return training_pairs(corpus, make("tied-atomic", QUICK | values).settings)


def test_judged_queries_are_a_third_of_the_others_unless_said_otherwise(small_corpus):
    few = dict(list(small_corpus.judgements["train"].items())[:4])
    corpus = Corpus(small_corpus.documents, small_corpus.queries, {"train": few})
    pseudo = len(pairs_of(corpus, query_repeat=0))
    assert pseudo == 160
    assert len(pairs_of(corpus)) == pseudo + 13 * 4
    assert len(pairs_of(corpus, query_repeat=2)) == pseudo + 2 * 4
    assert len(pairs_of(corpus, training_texts="")) == 4


def test_in_batch_negatives_alone_will_do(small_corpus):
    index = make("tied-atomic", QUICK | {"negatives": 0, "noise": 0.3}).fit(small_corpus)
    assert index.log.records[-1]["contrastive"] < index.log.records[0]["contrastive"]


def test_the_training_log_is_kept(trained, tmp_path):
    trained.save(tmp_path / "index")
    assert api.load(tmp_path / "index").log.records == trained.log.records


def test_settings_that_make_no_sense():
    for name, value in [("temperature", 0), ("dropout", 1), ("negatives", -1), ("teacher_negatives", 0)]:
        with pytest.raises(BadSetting, match=name):
            make("tied-atomic", {name: value})


# Teachers.


def bm25_margins(corpus: Corpus, text: str, answer: int, others: list[int]) -> list[float]:
    scores = {hit.doc_id: hit.score for hit in make("bm25").fit(corpus).search(text, k=len(corpus))}
    of = [scores.get(document.doc_id, 0.0) for document in corpus]
    return [of[answer] - of[other] for other in others]


def examples_of(index, corpus):
    index.new_model()
    vectors = index.texts.encode([d.content for d in corpus])
    pairs = training_pairs(corpus, index.settings)
    return pairs, vectors, Training(index, vectors, index.open_teacher()).examples(corpus, pairs)


def test_bm25_as_a_teacher_gives_its_margins(small_corpus):
    index = make("tied-atomic", QUICK | {"teacher": "bm25", "teacher_scale": 1.0, "teacher_negatives": 2})
    pairs, _, examples = examples_of(index, small_corpus)
    for number in range(0, len(pairs), 23):
        answer, others = int(examples.row[number]), examples.judged[number].tolist()
        truth = bm25_margins(small_corpus, pairs[number].query, answer, others)
        np.testing.assert_allclose(examples.margins[number], truth, atol=1e-4)


def test_the_encoder_as_a_teacher_gives_its_margins_and_their_spread(small_corpus):
    index = make("tied-atomic", QUICK | {"teacher": "dense", "temperature": 0.1})
    pairs, vectors, examples = examples_of(index, small_corpus)
    for number in range(0, len(pairs), 23):
        query = index.texts.encode([pairs[number].query])[0]
        for other, margin in zip(examples.judged[number], examples.margins[number], strict=True):
            # Its units are the model's own already: cosines, divided by the temperature.
            assert margin == pytest.approx(query @ (vectors[examples.row[number]] - vectors[other]) / 0.1, abs=1e-3)


def test_distilling_alone_learns_the_teachers_margins(small_corpus):
    """Taught by BM25 only, its margins come nearer to BM25's than those of the encoder it began as."""
    only = QUICK | {"teacher": "bm25", "contrastive_weight": 0, "epochs": 15}
    index = make("tied-atomic", only).fit(small_corpus)
    assert set(index.log.records[0]) == {"phase", "epoch", "margin", "learning_rate", "seconds"}
    assert index.log.records[-1]["margin"] < 0.7 * index.log.records[0]["margin"]
    both = make("tied-atomic", only | {"contrastive_weight": 1, "epochs": 1}).fit(small_corpus)
    assert {"contrastive", "margin"} <= set(both.log.records[0])


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    """A random BERT of a few thousand weights with a tokenizer of whole words, saved as usual."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "violin", "music", "nile", "river", "the", "mark"]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}

    def save(labels: int):
        folder = tmp_path_factory.mktemp(f"cross-encoder-{labels}")
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=40, **special).save_pretrained(folder)
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=40, num_labels=labels, initializer_range=1.0,
        )  # fmt: skip
        BertForSequenceClassification(config).save_pretrained(folder)
        return folder

    return save


@pytest.mark.parametrize("labels", [1, 2])
def test_a_cross_encoder_scores_pairs_one_by_one_as_in_a_batch(cross_encoder, labels):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from callslip.training.teachers import CrossEncoder

    folder = cross_encoder(labels)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    queries = ["the violin", "nile", "", "mark the river"]
    documents = ["music " * 60, "the nile river", "violin", ""]
    with torch.inference_mode():
        truth = []
        for query, document in zip(queries, documents, strict=True):
            # In lists, even of one: given bare, an empty document would be taken for none, and no pair be made.
            pair = tokenizer([query], [document], truncation=True, max_length=40, return_tensors="pt")
            logits = model(**pair).logits[0]
            truth.append(float(logits[0] if labels == 1 else logits[1] - logits[0]))
    scores = CrossEncoder(str(folder), device="cpu", batch_size=3).scores(queries, documents)
    np.testing.assert_allclose(scores, truth, atol=1e-5)
    assert np.ptp(truth) > 1e-3


def test_a_cross_encoder_as_a_teacher(cross_encoder, small_corpus):
    folder = str(cross_encoder(1))
    settings = QUICK | {"teacher": folder, "teacher_negatives": 2, "training_texts": "title", "epochs": 2}
    index = make("tied-atomic", settings).fit(small_corpus)
    assert np.isfinite(index.log.records[-1]["margin"])
    raw = make("tied-atomic", settings | {"teacher_scale": 1.0})
    pairs, _, examples = examples_of(raw, small_corpus)
    teacher, contents = raw.open_teacher(), [d.content for d in small_corpus]
    texts = [pairs[5].query] * 3
    scores = teacher.scores(texts, [contents[row] for row in (examples.row[5], *examples.judged[5])])
    np.testing.assert_allclose(examples.margins[5], scores[0] - scores[1:], atol=1e-5)


def test_teachers_that_are_none(cross_encoder, small_corpus, tmp_path):
    with pytest.raises(UnknownName, match="bm52"):
        make("tied-atomic", QUICK | {"teacher": "bm52"}).fit(small_corpus)
    with pytest.raises(CallslipError, match="no cross-encoder"):
        make("tied-atomic", QUICK | {"teacher": str(tmp_path)}).fit(small_corpus)
    with pytest.raises(CallslipError, match="3 labels"):
        make("tied-atomic", QUICK | {"teacher": str(cross_encoder(3))}).fit(small_corpus)
    assert make("tied-atomic", {"teacher": "none"}).settings.teacher is None


def test_a_saved_index_knows_its_shape(trained, tmp_path):
    wide = make("tied-atomic", QUICK | {"epochs": 0, "decoder_layers": 2})
    wide.fit(Corpus([Document("a", "whales"), Document("b", "ships")])).save(tmp_path / "wide")
    loaded = api.load(tmp_path / "wide")
    assert dataclasses.asdict(loaded.settings) == dataclasses.asdict(wide.settings)
    assert len(loaded.model.decoder.layers) == 2
