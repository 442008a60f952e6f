"""GLEN: its equations by plain loops, its model, exact search against every code, words, new documents."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import glen as plain
from typer.testing import CliRunner

from callslip import api
from callslip.cli import app
from callslip.cli import inspect as _inspect  # noqa: F401  (its import registers the command)
from callslip.cli import search as _search  # noqa: F401
from callslip.corpus.documents import Corpus, Document
from callslip.encoders.word_pieces import encoder_pieces, spread
from callslip.errors import BadSetting
from callslip.identifiers import Identifiers
from callslip.identifiers.keywords import keyword_codes
from callslip.methods import make
from callslip.methods.glen import (
    Training,
    annealed_temperature,
    collision_order,
    identifier_embedding,
    identifier_weights,
    keyword_loss,
    pairwise_ranking,
    pointwise_retrieval,
    relevance,
)
from callslip.methods.glen.model import LexicalWriter
from callslip.search.beam import beam_search
from callslip.search.candidates import best_codes

QUICK = {"encoder": "scratch", "length": 3, "keyword_epochs": 6, "epochs": 6, "decoder_width": 32, "batch_size": 32}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def codes(*shape: int, words: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, words, shape, generator=torch.Generator().manual_seed(seed))


# The equations.

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(0, 999))


@settings(max_examples=30, deadline=None)
@given(SIZES)
def test_keyword_and_pointwise_losses_equal_the_loops(sizes):
    batch, length, words, _, seed = sizes
    logits, code = numbers(batch, length, words, seed=seed), codes(batch, length, words=words, seed=seed)
    truth = plain.keyword_loss(logits.tolist(), code.tolist())
    assert float(keyword_loss(logits, code)) == pytest.approx(truth)
    assert float(keyword_loss(list(logits.unbind(1)), code)) == pytest.approx(truth)
    w_query, w_doc = numbers(batch, length, seed=seed + 1), numbers(batch, length, seed=seed + 2)
    for weight in (0.0, 0.5, 2.0):
        truth = plain.pointwise_retrieval(logits.tolist(), code.tolist(), w_query.tolist(), w_doc.tolist(), weight)
        assert float(pointwise_retrieval(logits, code, w_query, w_doc, weight)) == pytest.approx(truth)


@settings(max_examples=30, deadline=None)
@given(SIZES, st.sampled_from([1.0, 0.3, 0.05]))
def test_identifier_embedding_and_relevance_equal_the_loops(sizes, temperature):
    batch, length, words, dim, seed = sizes
    h, embeddings = numbers(batch, length, dim, seed=seed), numbers(words, dim, seed=seed + 1)
    whole = identifier_embedding(h, embeddings, temperature)
    np.testing.assert_allclose(whole, plain.identifier_embedding(h.tolist(), embeddings.tolist(), temperature))
    every = torch.arange(words).expand(batch, length, -1)
    torch.testing.assert_close(identifier_embedding(h, embeddings, temperature, every), whole)
    some = (h @ embeddings.T).topk(min(2, words), dim=-1).indices
    truth = plain.identifier_embedding(h.tolist(), embeddings.tolist(), temperature, some.tolist())
    np.testing.assert_allclose(identifier_embedding(h, embeddings, temperature, some), truth)
    q = numbers(3, length, dim, seed=seed + 2)
    np.testing.assert_allclose(relevance(q, whole), plain.relevance(q.tolist(), whole.tolist()))


def test_a_cold_identifier_embedding_is_the_embedding_of_the_likeliest_word():
    h, embeddings = numbers(4, 3, 6), numbers(9, 6, seed=1)
    code = (h @ embeddings.T).argmax(-1)
    cold = identifier_embedding(h, embeddings, annealed_temperature(20))
    torch.testing.assert_close(cold, embeddings[code])
    # so in training's last epochs relevance is what search adds up
    torch.testing.assert_close(relevance(h, cold).diagonal(), identifier_weights(h, embeddings, code).sum(dim=1))


@pytest.mark.parametrize("seed", range(4))
def test_pairwise_ranking_equals_the_loop(seed):
    scores = numbers(4, 7, seed=seed)
    own = codes(4, words=7, seed=seed)
    truth = plain.pairwise_ranking(scores.tolist(), [[j] for j in own.tolist()])
    assert float(pairwise_ranking(scores, own)) == pytest.approx(truth)
    marked = torch.zeros(4, 7, dtype=torch.bool)
    marked[torch.arange(4), own] = True
    assert float(pairwise_ranking(scores, marked)) == pytest.approx(truth)
    marked[:, 2] = True  # a second answer is told from what is no answer, and not from the first
    answers = [row.nonzero().view(-1).tolist() for row in marked]
    assert float(pairwise_ranking(scores, marked)) == pytest.approx(plain.pairwise_ranking(scores.tolist(), answers))


def test_pairwise_ranking_without_a_negative_is_no_loss_and_has_a_gradient():
    scores = numbers(2, 2).requires_grad_()
    loss = pairwise_ranking(scores, torch.ones(2, 2, dtype=torch.bool))
    loss.backward()
    assert float(loss.detach()) == 0 and bool(scores.grad.isfinite().all())


def test_the_temperature_falls_to_its_floor():
    assert [annealed_temperature(n) for n in (0, 1, 2)] == pytest.approx([1, np.exp(-1), np.exp(-2)])
    assert annealed_temperature(12) == 1e-5


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 99))
def test_collision_order_is_by_cosine_then_row(count, length, seed):
    w_query, w_docs = numbers(length, seed=seed), numbers(count, length, seed=seed + 1)
    w_docs = torch.cat([w_docs, 2 * w_docs[:1]])  # the same direction: a tie
    order = collision_order(w_query, w_docs)
    assert order.tolist() == plain.collision_order(w_query.tolist(), w_docs.tolist())
    assert collision_order(w_query.numpy(), w_docs.numpy()).tolist() == order.tolist()


def test_wrong_shapes_are_refused():
    h, e, code = numbers(2, 3, 4), numbers(5, 4), codes(2, 3, words=5)
    scores = numbers(2, 6)
    for bad in [
        lambda: keyword_loss(numbers(2, 2, 5), code),
        lambda: identifier_embedding(h, numbers(5, 3), 1.0),
        lambda: identifier_embedding(h, e, 0.0),
        lambda: identifier_embedding(h, e, 1.0, codes(2, 2, 3, words=5)),
        lambda: relevance(h, numbers(2, 2, 4)),
        lambda: pairwise_ranking(scores, codes(3, words=6)),
        lambda: pairwise_ranking(scores, torch.zeros(2, 6, dtype=torch.bool)),
        lambda: pointwise_retrieval(numbers(2, 3, 5), code, numbers(2, 3), numbers(2, 2)),
        lambda: identifier_weights(h, e, codes(2, 2, words=5)),
        lambda: collision_order(np.zeros(2), np.zeros((3, 4))),
    ]:
        with pytest.raises(ValueError):
            bad()


# The model.


def writer(length=3, words=12, seed=0, **more) -> LexicalWriter:
    torch.manual_seed(seed)
    model = LexicalWriter(8, words, 6, length, width=16, heads=2, **more)
    for parameter in model.parameters():  # far from where training begins
        torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


def some_codes(words=12, length=3, count=60, seed=0) -> Identifiers:
    drawn = np.random.default_rng(seed).integers(0, words, (count, length))
    return Identifiers([f"d{n}" for n in range(count)], drawn)


def test_states_scaled_and_of_a_text_alone():
    model, vectors = writer(), numbers(5, 8).float()
    with torch.no_grad():
        together = model.states(vectors)
        for row in range(5):
            torch.testing.assert_close(model.states(vectors[row : row + 1])[0], together[row])
        # with hidden feedback what was written changes nothing
        torch.testing.assert_close(model.states(vectors, codes(5, 3, words=12)), together)
        model.last_norm.weight.fill_(1.0)
        lengths = model.strengths.abs().expand(5, 3)  # a document's are 1
        torch.testing.assert_close(model.states(vectors).norm(dim=-1), lengths, atol=1e-3, rtol=0)
        ones = torch.ones(5, 3)
        torch.testing.assert_close(model.states(vectors, documents=True).norm(dim=-1), ones, atol=1e-3, rtol=0)


def test_a_new_model_writes_the_words_of_matching_pursuit():
    """Before training a document's words are those that explain most of what the words before left unexplained."""
    words, vectors = numbers(20, 6, seed=1).float(), numbers(5, 6, seed=2).float()
    model = LexicalWriter(6, 20, 6, 4, width=16, heads=2).eval()
    model.begin_with(words.numpy(), np.zeros(6, np.float32))
    codes, weights = model.likeliest_words(vectors.numpy(), 1)
    for row in range(5):
        rest = vectors[row].double()
        for level in range(4):
            scores = words.double() @ rest
            token = int(scores.argmax())
            assert codes[row, level, 0] == token
            assert weights[row, level, 0] == pytest.approx(float(scores[token] / rest.norm()), rel=1e-3)
            rest = rest - scores[token] / words[token].double().square().sum() * words[token].double()
    with torch.no_grad():  # a query keeps what it has
        states = model.states(vectors)
    torch.testing.assert_close(states, torch.nn.functional.normalize(vectors, dim=-1)[:, None].expand(-1, 4, -1))


def test_a_document_that_chooses_among_its_likeliest_words_chooses_as_among_all():
    model, vectors = writer(length=4), numbers(6, 8).float()
    words = torch.from_numpy(model.likeliest_words(vectors.numpy(), 3)[0]).long()
    with torch.no_grad():
        whole = model.states(vectors, documents=True)
        torch.testing.assert_close(model.states(vectors, documents=True, among=words), whole)
        # among others than these, the best of those, and what is left for the next level differs
        others = (words[:, :, :1] + 1) % 12
        assert (model.likeliest(whole[:, 0], others[:, 0]) == others[:, 0, 0]).all()
        other = model.states(vectors, documents=True, among=others)
        torch.testing.assert_close(other[:, 0], whole[:, 0])
        assert not torch.allclose(other[:, 1], whole[:, 1])


def test_weights_of_before_levels_had_strengths_are_read_as_they_were():
    model, other = writer(seed=0), writer(seed=1)
    held = {name: value for name, value in model.state_dict().items() if name != "strengths"}
    other.load_state_dict(held)
    with torch.no_grad():
        model.strengths.fill_(1)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value)


def test_relevances_are_divided_by_the_temperature(small_corpus):
    index = make("glen", QUICK | {"epochs": 0, "keyword_epochs": 0}).fit(small_corpus)
    vectors = torch.from_numpy(index.vectors[:6])
    own, positives = torch.arange(6), torch.eye(6, dtype=torch.bool)
    training = Training(index, small_corpus)
    for temperature in (1.0, 4.0):
        training.settings = dataclasses.replace(index.settings, ranking_temperature=temperature, pointwise_weight=0)
        with torch.no_grad():
            found = training.ranking_terms(vectors, vectors, own, positives, None, 0.5)["pairwise"]
            r = identifier_embedding(index.model.states(vectors, documents=True), index.model.embeddings, 0.5)
            scores = relevance(index.model.states(vectors), r) / temperature
        torch.testing.assert_close(found, torch.nn.functional.cross_entropy(scores, own))
    with pytest.raises(BadSetting, match="ranking_temperature"):
        make("glen", {"ranking_temperature": 0})


def test_levels_begin_as_strong_as_the_words_of_matching_pursuit():
    words, vectors = numbers(20, 6, seed=1).float(), numbers(7, 6, seed=2).float()
    model = LexicalWriter(6, 20, 6, 4, width=16, heads=2).eval()
    model.begin_with(words.numpy(), np.zeros(6, np.float32))
    model.begin_strengths(vectors.numpy())
    unit = torch.nn.functional.normalize(words.double(), dim=-1)
    weights = np.zeros((7, 4))
    for row in range(7):
        rest = torch.nn.functional.normalize(vectors[row].double(), dim=0)
        for level in range(4):
            token = int((words.double() @ rest).argmax())
            weights[row, level] = float(unit[token] @ rest)
            rest = rest - weights[row, level] * unit[token]
    expected = np.sqrt(weights.mean(axis=0))
    expected /= expected.mean()
    np.testing.assert_allclose(model.strengths.detach().numpy(), expected, rtol=1e-3)
    with torch.no_grad():  # a query's states are as long; a document's stay as they are
        np.testing.assert_allclose(model.states(vectors).norm(dim=-1), np.tile(expected, (7, 1)), rtol=1e-3)
        np.testing.assert_allclose(model.states(vectors, documents=True).norm(dim=-1), 1, rtol=1e-3)


def test_token_feedback_depends_on_the_words_before_and_on_no_later_ones():
    model, vectors = writer(feedback="token"), numbers(4, 8).float()
    code = codes(4, 3, words=12)
    with torch.no_grad():
        states = model.states(vectors, code)
        other = code.clone()
        other[:, 1] = (other[:, 1] + 1) % 12
        changed = model.states(vectors, other)
        torch.testing.assert_close(changed[:, :2], states[:, :2])
        assert not torch.allclose(changed[:, 2], states[:, 2])
        greedy = model(vectors).argmax(-1)
        torch.testing.assert_close(model.states(vectors, greedy), model.states(vectors))
    with pytest.raises(BadSetting, match="beam"):
        model.table(vectors)


def test_exact_search_scores_every_code():
    model, queries, table = writer(), numbers(4, 8).float(), some_codes()
    with torch.no_grad():
        levels = torch.stack(model.table(queries), dim=1)
        assert levels.exp().sum(-1) == pytest.approx(torch.ones(4, 3), abs=1e-5)
        found = best_codes(model, queries, table.trie(), 10, exact=True)
        read = best_codes(model, model.states(queries), table.trie(), 10, exact=True)
    unique = np.unique(table.codes, axis=0)
    for query, beams in enumerate(found):
        truth = np.array(plain.scores_by_table(levels[query].tolist(), unique.tolist()))
        np.testing.assert_allclose(beams.scores, np.sort(truth)[::-1][:10], atol=1e-4)
        np.testing.assert_allclose(beams.levels.sum(axis=1), beams.scores, atol=1e-4)
        np.testing.assert_array_equal(beams.codes, unique[np.argsort(-truth, kind="stable")[:10]])
        np.testing.assert_array_equal(read[query].codes, beams.codes)


@pytest.mark.parametrize("feedback", ["hidden", "token"])
def test_a_wide_beam_equals_scoring_every_code(feedback):
    model, queries, table = writer(feedback=feedback), numbers(3, 8).float(), some_codes(seed=1)
    unique = np.unique(table.codes, axis=0)
    beams = beam_search(model, queries, table.trie(), len(unique))
    with torch.no_grad():
        for query, found in enumerate(beams):
            repeated = queries[query].expand(len(unique), -1)
            logs = model(repeated, torch.from_numpy(unique).long()).log_softmax(-1)
            truth = logs.gather(2, torch.from_numpy(unique).long()[:, :, None]).sum(dim=(1, 2)).numpy()
            np.testing.assert_allclose(found.scores, np.sort(truth)[::-1], atol=1e-4)
            np.testing.assert_array_equal(found.codes, unique[np.argsort(-truth)])
    if feedback == "hidden":
        for exact, found in zip(best_codes(model, queries, table.trie(), 20, exact=True), beams, strict=True):
            np.testing.assert_array_equal(exact.codes, found.codes[:20])


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(BadSetting, match="decoder_width"):
        LexicalWriter(8, 12, 6, 3, width=15, heads=2)


# The method.


@pytest.fixture(scope="module")
def index(small_corpus):
    return make("glen", QUICK).fit(small_corpus)


def test_codes_are_what_the_model_writes(index, small_corpus):
    with torch.no_grad():
        vectors = index.texts.encode([document.content for document in small_corpus])
        logits = index.model(torch.from_numpy(vectors), documents=True)
    np.testing.assert_array_equal(index.codes, logits.argmax(-1))
    np.testing.assert_allclose(index.weights, logits.max(-1).values, atol=1e-4)
    assert index.identifiers.in_row_order()[1].tolist() == index.codes.tolist()
    used = {piece for piece in index.vocabulary if any(letter.isalpha() for letter in piece)}
    assert used == set(index.vocabulary)


def test_keywords_are_learned_in_the_first_phase(small_corpus):
    values = {"epochs": 0, "keyword_epochs": 60, "noise": 0, "dropout": 0, "keyword_learning_rate": 5e-3}
    index = make("glen", QUICK | values).fit(small_corpus)
    keywords = keyword_codes(small_corpus, 3)
    truth = [[keywords.vocabulary[token] for token in code] for code in keywords.codes]
    written = [[index.vocabulary[token] for token in code] for code in index.codes]
    right = np.mean(
        [a == b for one, other in zip(truth, written, strict=True) for a, b in zip(one, other, strict=True)]
    )
    assert right > 0.9


def test_words_stay_where_they_are(small_corpus):
    index = make("glen", QUICK | {"keyword_epochs": 1, "epochs": 1}).fit(small_corpus)
    np.testing.assert_allclose(index.model.embeddings, spread(index.texts.encode(index.vocabulary)), atol=1e-5)


def test_each_phase_and_term_can_be_left_out(small_corpus):
    def terms(**more):
        log = make("glen", QUICK | {"keyword_epochs": 1, "epochs": 1} | more).fit(small_corpus).log
        known = {"phase", "epoch", "learning_rate", "seconds"}
        return [set(record) - known for record in log.records]

    keywords = {"query keywords", "document keywords"}
    assert terms() == [keywords, {"pairwise", "pointwise"}]
    assert terms(keyword_epochs=0) == [{"pairwise", "pointwise"}]
    assert terms(pairwise_weight=0) == [keywords, {"pointwise"}]
    assert terms(pointwise_weight=0) == [keywords, {"pairwise"}]


def test_compare_takes_presets_beside_methods(small_corpus):
    seen = []
    names = ["glen", "glen:no-refinement", "bm25"]
    values = QUICK | {"keyword_epochs": 1, "epochs": 1}
    values.pop("epochs")
    table = api.compare(
        small_corpus,
        names,
        settings=values,
        preset="quick",
        controls=False,
        on_report=lambda name, report: seen.append(name),
    )
    assert seen == names and list(table.reports) == names
    assert table.reports["glen:no-refinement"].settings["epochs"] == 0
    assert table.reports["glen"].settings["epochs"] == make("glen", preset="quick").settings.epochs
    with pytest.raises(BadSetting, match="presets"):
        api.compare(small_corpus, ["glen:nonsense"])


def test_beam_search_with_a_wide_beam_finds_what_exact_search_finds(index, small_corpus):
    asked = list(small_corpus.split("test")[0].values())[:8]
    exact = index.search_batch(asked, k=10)
    try:
        beam = index.adjust({"decoding": "beam", "beam": 40}).search_batch(asked, k=10)
    finally:
        index.adjust({"decoding": "exact", "beam": 100})
    for one, other in zip(exact, beam, strict=True):
        assert one.doc_ids == other.doc_ids
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


def test_documents_that_share_a_code_are_ranked_by_identifier_weights(small_corpus):
    index = make("glen", QUICK | {"length": 1, "vocabulary": 4}).fit(small_corpus)
    assert index.identifiers.unique <= 4
    index = make("glen", QUICK | {"length": 2, "vocabulary": 3}).fit(small_corpus)
    hits = index.search("which violin has the mark music0", k=40, explain=True)
    assert len(hits) == 40
    for code in {hit.code for hit in hits}:
        bucket = [hit for hit in hits if hit.code == code]
        w_query = np.array([word["query"] for word in bucket[0].why["words"]])
        cosines = [plain.cosine(w_query, [word["document"] for word in hit.why["words"]]) for hit in bucket]
        assert cosines == sorted(cosines, reverse=True) or max(np.diff(cosines)) < 1e-3  # weights are rounded


def test_a_bucket_limit_still_gives_k_hits(small_corpus):
    index = make("glen", QUICK | {"length": 1, "vocabulary": 3, "bucket_limit": 2, "beam": 1}).fit(small_corpus)
    hits = index.search("which violin has the mark music0", k=30)
    assert len(hits) == 30
    first = hits[: 2 * index.identifiers.unique]
    assert max(np.unique([hit.code for hit in first], return_counts=True)[1]) == 2


def test_new_documents_are_coded_greedily(small_corpus, tmp_path):
    first, rest = small_corpus.documents[:30], small_corpus.documents[30:]
    queries = {qid: q for qid, q in small_corpus.queries.items() if qid.partition("-")[2] in {d.doc_id for d in first}}
    train = {qid: right for qid, right in small_corpus.judgements["train"].items() if qid in queries}
    index = make("glen", QUICK).fit(Corpus(first, queries, {"train": train}))
    index.add(rest)
    assert len(index.weights) == len(index.codes) == 40
    codes, weights = index.coded(index.texts.encode([document.content for document in rest]))
    np.testing.assert_array_equal(index.codes[30:], codes)
    np.testing.assert_allclose(index.weights[30:], weights, atol=1e-5)
    index.save(tmp_path / "grown")
    loaded = api.load(tmp_path / "grown")
    np.testing.assert_array_equal(loaded.codes, index.codes)
    assert loaded.vocabulary == index.vocabulary
    index.add([])
    assert len(index) == 40


def test_words_are_printed(index, tmp_path):
    index.save(tmp_path / "index")
    run = CliRunner()
    hit = index.search("violin music0", k=1, explain=True)[0]
    words = "-".join(index.vocabulary[token] for token in hit.code)
    shown = run.invoke(app, ["search", str(tmp_path / "index"), "violin music0", "-k", "1", "--explain"])
    assert f"[{words}]" in shown.output
    first = hit.why["words"][0]
    line = f"{first['word']} (query {first['query']:.2f}, document {first['document']:.2f})"
    assert line in shown.output and first["word"] == index.vocabulary[hit.code[0]]
    looked = run.invoke(app, ["inspect", str(tmp_path / "index")])
    assert looked.exit_code == 0
    weights = index.weights[index.row_of()[index.identifiers.doc_ids[0]]]
    code = index.identifiers.codes[0]
    for token, weight in zip(code, weights, strict=True):
        assert f"{index.vocabulary[token]} {weight:.1f}" in looked.output


def test_texts_without_words_and_one_word_vocabularies():
    corpus = Corpus([Document("a", "123 456"), Document("b", "!?"), Document("c", "")])
    index = make("glen", QUICK).fit(corpus)
    assert set(index.search("7", k=3).doc_ids) == {"a", "b", "c"}
    assert index.vocabulary == ["[none]"]


# The embedded encoder's word pieces.


def test_the_word_pieces_of_the_embedded_encoder():
    pieces = encoder_pieces("minilm")
    cut = pieces("Phosphorylation of the cell cycle \ud800")
    assert cut[-4:-1] == ["the", "cell", "cycle"] or "cell" in cut
    assert len(pieces("word " * 1000)) == 1000
    assert encoder_pieces("scratch") is None
