"""The wiring of tied residual codes: every setting and preset changes the quantity that it names."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from callslip.corpus.documents import Corpus, Query
from callslip.encoders.encoder import load_encoder
from callslip.errors import BadSetting
from callslip.methods import make
from callslip.methods.tied_residual import method, weights
from callslip.search import fusion

FAST = {"encoder": "scratch:dim=32", "length": 12}
QUESTION = "which violin has the mark"


def fit(corpus: Corpus, **values):
    return make("tied-residual", FAST | values).fit(corpus)


def blind(corpus: Corpus) -> Corpus:
    return dataclasses.replace(corpus, judgements={"test": corpus.judgements["test"]})


def test_codes_alone_rank_by_the_product_of_query_and_reconstruction(small_corpus):
    index = fit(small_corpus, words=False, memory=False, held_out=0)
    encoder = load_encoder("scratch:dim=32")
    documents = encoder.encode([document.content for document in small_corpus])
    rebuilt = index.maker.decode(index.maker.assign(documents))
    for query in ("the violin", "a mark of an oak", "unlike the whale"):
        expected = rebuilt @ encoder.encode([query])[0]
        found = index.search(query, k=40)
        order = [small_corpus.rows()[hit.doc_id] for hit in found]
        np.testing.assert_allclose(expected[order], np.sort(expected)[::-1], atol=2e-3)


def test_an_index_holds_no_float_vectors(small_corpus, tmp_path):
    index = fit(small_corpus)
    index.save(tmp_path / "i")
    kinds = {path.name: np.load(path).dtype for path in (tmp_path / "i").rglob("*.npy") if "bm25" not in path.parts}
    assert {name: str(kind) for name, kind in kinds.items() if kind.kind == "f"}.keys() <= {"scales.npy"}
    assert kinds["scales.npy"] == np.float16 and kinds["entries.npy"] == np.uint8


@pytest.mark.parametrize(("length", "tree"), [(5, None), (12, 1), (12, 2)])
def test_codes_have_the_length_and_the_tree_that_are_asked_for(small_corpus, length, tree):
    index = fit(small_corpus, length=length, tree=tree)
    assert index.entries.codes.shape == (40, length) and index.maker.tree == (tree or 1)
    assert index.codes_by_row().shape == (40, tree or 1)
    assert len(index.search(QUESTION, k=3)[0].code) == length


def test_a_large_corpus_has_a_deeper_tree(small_corpus, monkeypatch):
    monkeypatch.setattr(method, "SMALL", 39)
    assert fit(small_corpus).maker.tree == 2


def test_the_seed_is_that_of_the_codebooks(small_corpus):
    first, same, other = (fit(small_corpus, seed=seed).entries.codes for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert first.shape == other.shape and (first != other).any()


@pytest.mark.parametrize("passages", [0, 2])
def test_passages_have_codes_and_the_nearest_counts(small_corpus, passages):
    index = fit(small_corpus, passages=passages, words=False, memory=False, held_out=0)
    assert len(index.entries) == 40 * (1 + passages)
    table = index.maker.tables(index.texts.encode(["Nobody knows why."]))[0]
    scores = index.entries.scores(table, np.arange(len(index.entries)))
    for row in (0, 17, 39):
        own = scores[index.entries.owners == row]
        assert len(own) == 1 + passages
        assert index.entries.scores_of_rows(table, np.array([row]))[0] == pytest.approx(own.max(), abs=1e-5)


@pytest.mark.parametrize("candidates", [5, 30, None])
def test_so_many_codes_are_read(small_corpus, spy, candidates):
    index = fit(small_corpus, depth=2, held_out=0)
    index.adjust({"candidates": "none" if candidates is None else candidates, "depth": 2})
    calls = spy(type(index.entries), "scores")
    index.search(QUESTION, k=1)
    read = len(calls[0]["entries"])
    assert read == 40 if candidates is None else candidates <= read < 40


@pytest.mark.parametrize("depth", [2, 7])
def test_each_source_contributes_so_many_candidates(small_corpus, spy, depth):
    index = fit(small_corpus, depth=depth)
    calls = spy(fusion, "features")
    index.search(QUESTION, k=1)
    assert len(calls[0]["best_similarity"]) == depth and len(calls[0]["best_words"]) <= depth
    assert len(calls[0]["rows"]) <= 3 * depth


def test_words_take_part_or_not(small_corpus):
    with_words, without = (fit(small_corpus, words=words) for words in (True, False))
    assert with_words.words.indexed and not without.words.indexed
    assert with_words.weights.values[fusion.WORDS] > 0 and without.weights.values[fusion.WORDS] == 0
    question = "fruit3"  # a word of one document alone; hashed words of the scratch encoder see it too
    assert with_words.search(question, 1, explain=True)[0].why["bm25"] > 0
    assert without.search(question, 1, explain=True)[0].why["bm25"] == 0
    off = with_words.adjust({"words": False}).search(question, 1, explain=True)[0]
    assert off.why["words"] == 0
    with pytest.raises(BadSetting, match="fitted without words"):
        without.adjust({"words": True})


@pytest.mark.parametrize(("k1", "b"), [(0.5, 0.1), (2.0, 0.9)])
def test_bm25_has_its_parameters(small_corpus, k1, b):
    words = fit(small_corpus, k1=k1, b=b).words
    assert (words.k1, words.b) == (k1, b)


def test_memory_holds_the_judged_train_queries_or_nothing(small_corpus):
    asked = small_corpus.split("train")[0]
    assert sorted(fit(small_corpus).memory.texts) == sorted({query.text for query in asked.values()})
    assert len(fit(small_corpus, memory=False).memory) == 0
    assert len(fit(blind(small_corpus)).memory) == 0


def test_a_remembered_query_leads_to_its_answer_and_says_so(small_corpus):
    index = fit(small_corpus)
    index.weights = weights.Weights(fusion.weights_of(**{"votes_0.05": 1.0}), "judged queries")
    qid, query = next(iter(small_corpus.split("train")[0].items()))
    hit = index.search(Query("q", query.text), 1, explain=True)[0]
    assert hit.doc_id in small_corpus.judgements["train"][qid]
    assert hit.why["earlier_query"] == query.text and hit.why["memory"] > 0
    index.adjust({"memory": False})
    assert index.search(query.text, 1, explain=True)[0].why["memory"] == 0


@pytest.mark.parametrize("held_out", [35, 1000])
def test_weights_are_fitted_on_held_out_judged_queries(small_corpus, spy, held_out):
    calls = spy(method.TiedResidual, "evidence")
    fitted = fit(small_corpus, held_out=held_out).weights
    assert fitted.fitted_on == "judged queries" and fitted.queries == min(held_out, 40) == len(calls)
    assert all(call["leave_out"] for call in calls)  # no query votes for itself
    assert not np.allclose(fitted.values, fusion.EVEN)


def test_without_judged_queries_sentences_decide_and_without_either_equal_parts(small_corpus, monkeypatch):
    monkeypatch.setattr(weights, "SENTENCE_WORDS", 3)
    fitted = fit(blind(small_corpus)).weights
    assert fitted.fitted_on == "sentences" and fitted.queries == 4  # a tenth of the documents
    assert (fitted.values[fusion.MEMORY] == 0).all() and fitted.values[fusion.WORDS] > 0
    assert fit(blind(small_corpus), held_out=0).weights.fitted_on == "nothing"
    np.testing.assert_array_equal(fit(blind(small_corpus), held_out=0).weights.values, fusion.EVEN)


@pytest.mark.parametrize(("both", "believed"), [((0.4, 0.6), False), ((0.6, 0.4), True), ((0.0, 0.0), False)])
def test_sentences_never_raise_words_above_meaning(small_corpus, monkeypatch, both, believed):
    monkeypatch.setattr(weights, "SENTENCE_WORDS", 3)

    def fitted(tables, gains, prior, usable):
        values = np.zeros(len(prior))
        values[[0, fusion.WORDS]] = both
        values[1] = 0.1 * usable[1]
        return values

    monkeypatch.setattr(weights, "fit_weights", fitted)
    values = fit(blind(small_corpus)).weights.values
    expected = [both[0], 0.1, both[1]] if believed else [0.5, 0.0, 0.5]
    np.testing.assert_allclose(values[[0, 1, fusion.WORDS]], expected)


def test_a_sentence_is_asked_of_its_document_without_it(small_corpus, monkeypatch, spy):
    monkeypatch.setattr(weights, "SENTENCE_WORDS", 3)
    index = fit(blind(small_corpus), held_out=0)
    calls = spy(method.TiedResidual, "evidence")
    asked, encoded = spy(type(index.texts), "cached"), spy(type(index.texts), "segmented")
    gains = weights.taken_sentences(index, blind(small_corpus)).gains
    queries, rest = asked[0]["texts"], encoded[0]["texts"]
    assert all(query not in text for query, text in zip(queries, rest, strict=True))
    assert len(calls) == len(gains) == 4 and all(call["entries"] is not index.entries for call in calls)
    assert all(call["words"] is not index.words for call in calls)


def test_presets_are_what_they_say(small_corpus):
    assert make("tied-residual", preset="quick").settings.length == 48
    codes = make("tied-residual", FAST, preset="codes").fit(small_corpus)
    assert not codes.words.indexed and not len(codes.memory) and codes.weights.fitted_on == "nothing"


def test_what_codes_alone_find_is_measured_without_words_and_memory(small_corpus):
    import callslip

    index = fit(small_corpus)
    alone = callslip.evaluate(index, small_corpus, measures=["nDCG@10"]).codes_alone["nDCG@10"].mean
    bare = fit(small_corpus, words=False, memory=False, held_out=0)
    assert alone == pytest.approx(callslip.evaluate(bare, small_corpus, measures=["nDCG@10"]).measures["nDCG@10"].mean)
    assert index.settings.words and index.settings.memory  # as they were


@pytest.mark.parametrize("wrong", [{"tree": 3}, {"length": 0}, {"b": 1.5}, {"k1": -1}, {"candidates": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(BadSetting):
        make("tied-residual", wrong)
