"""The contract on logs of users and items: every method that reads histories passes the same checks."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil

import numpy as np
import pytest

from callslip import api
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, CallslipError, IndexCorrupt, Unsupported
from callslip.filters.filter import Filter
from callslip.index.recommender import Recommender
from callslip.methods import METHODS, find, make
from callslip.search.hits import Hits
from callslip.storage.check import check

QUICK = {"encoder": "scratch", "epochs": 10, "batch_size": 64, "decoder_width": 32, "history_width": 32, "width": 4}
QUICK |= {"rounds": 1, "round_epochs": 4, "rqvae_epochs": 10, "leaf": 3}
HARDLY = {"epochs": 1, "round_epochs": 1, "rqvae_epochs": 1, "level_epochs": 1, "warmup_epochs": 1, "ranker_epochs": 1}
SLOW = ("genret", "hybrid", "dense-trained")  # the last trains a real encoder, not the scratch one
ONLY_LOGS = [name for name in METHODS if issubclass(find(name).load(), Recommender)]
NAMES = [*ONLY_LOGS, "tiger", "deep-retrieval", "recforest", "uri", "item-knn+sasrec"]
ASKED = Query("q", "", ("soap-2", "soap-3", "soap-4"))


def quick(name: str, **others: int):
    values = {}
    parts = [name] if name in METHODS else name.split("+")
    for part in parts:
        known = {field.name for field in dataclasses.fields(find(part).load().Settings)}
        prefix = f"{part}." if len(parts) > 1 else ""
        values |= {f"{prefix}{key}": value for key, value in (QUICK | others).items() if key in known}
    return make(name, values)


@pytest.fixture(scope="module")
def fitted(log):
    return functools.cache(lambda name: quick(name).fit(log))


def histories(log) -> list[Query]:
    return list(log.split("test")[0].values())


def listed(hits: Hits) -> list[tuple[str, float]]:
    return [(hit.doc_id, pytest.approx(hit.score, abs=1e-4)) for hit in hits]


def found(index, log, k=5) -> float:
    queries, judgements = log.split("test")
    hits = index.search_batch(list(queries.values()), k=k, keep_history=True)  # users of this log walk in rings
    return float(np.mean([bool(set(h.doc_ids) & set(judgements[q])) for q, h in zip(queries, hits, strict=True)]))


@pytest.mark.parametrize("name", NAMES)
class TestLogContract:
    def test_hits_are_in_order(self, name, fitted, log):
        assert fitted(name).reads_histories
        for hits in fitted(name).search_batch(histories(log)[:30], k=7):
            assert len(hits) == 7 == len(set(hits.doc_ids))
            assert [hit.rank for hit in hits] == list(range(1, 8))
            assert all(a >= b - 1e-6 for a, b in zip(hits.scores, hits.scores[1:], strict=False))

    def test_it_beats_popularity_where_there_is_something_to_learn(self, name, fitted, log):
        floor = found(fitted("popularity"), log)
        assert found(fitted(name), log) >= floor + (0 if name == "popularity" else 0.15)

    def test_a_batch_equals_one_by_one(self, name, fitted, log):
        asked = histories(log)[:6]
        for query, hits in zip(asked, fitted(name).search_batch(asked, k=5), strict=True):
            assert listed(fitted(name).search(query, k=5)) == [(h.doc_id, h.score) for h in hits]

    def test_fitting_twice_gives_the_same(self, name, fitted, log):
        again = quick(name).fit(log)
        for query in histories(log)[:5]:
            assert again.search(query, k=5).doc_ids == fitted(name).search(query, k=5).doc_ids

    def test_a_saved_index_answers_alike(self, name, fitted, saved, log):
        loaded = api.load(saved(name))
        assert loaded.settings == fitted(name).settings and loaded.reads_histories
        for query in histories(log)[:20]:
            before, after = fitted(name).search(query, k=10), loaded.search(query, k=10)
            assert listed(before) == [(h.doc_id, h.score) for h in after]
        assert loaded.users.query("u3").history == fitted(name).users.query("u3").history

    def test_a_damaged_index_is_refused(self, name, saved, tmp_path):
        path = tmp_path / "damaged"
        shutil.copytree(saved(name), path)
        users = next(path.rglob("users.jsonl"))
        users.write_bytes(users.read_bytes().replace(b"soap-1", b"soap-2", 1))
        with pytest.raises(IndexCorrupt, match=r"users\.jsonl"):
            api.load(path)

    def test_filters_and_histories_that_are_left_out(self, name, fitted, log):
        hits = fitted(name).search(ASKED, k=4, filter=Filter(where={"topic": "tea", "even": True}))
        assert sorted(hits.doc_ids) == ["tea-0", "tea-2", "tea-4", "tea-6"]
        for query in [*histories(log)[:10], ASKED]:
            everything = fitted(name).search(query, k=48, keep_history=True).doc_ids
            assert sorted(everything) == sorted(log.doc_ids)
            left = [doc_id for doc_id in everything if doc_id not in query.history]
            assert fitted(name).search(query, k=9).doc_ids == left[:9]

    def test_a_new_user_and_unknown_items(self, name, fitted):
        for query in (Query("q", ""), Query("q", "", ("nobody knows this",))):
            assert len(fitted(name).search(query, k=3)) == 3
        with pytest.raises(Unsupported, match="fitted on histories") as refusal:
            fitted(name).search("soap")
        assert "--history" in refusal.value.remedy

    def test_reasons_can_be_written_down(self, name, fitted):
        hits = fitted(name).search(ASKED, k=3, explain=True)
        json.dumps(hits.to_dicts())
        assert name == "sasrec" or all(hit.why for hit in hits)

    def test_changes_last_and_two_processes_agree(self, name, living, log, tmp_path):
        index = living(name)
        other = api.load(tmp_path / "living")
        index.delete(["soap-5", "tea-0"])
        try:
            index.add([Document("soap-new", "A soap of kind 5, made for soap lovers.", "soap 5")])
        except Unsupported as refusal:
            assert "callslip fit" in refusal.remedy
        else:
            assert "soap-new" in index.search(ASKED, k=60).doc_ids
        asked = [*histories(log)[:8], ASKED, Query("q", "", ("soap-new", "tea-0", "tea-1"))]
        expected = index.search_batch(asked, k=60)
        assert not {"soap-5", "tea-0"} & {doc_id for hits in expected for doc_id in hits.doc_ids}
        for same in (other, api.load(tmp_path / "living")):
            for a, b in zip(expected, same.search_batch(asked, k=60), strict=True):
                assert listed(a) == [(h.doc_id, h.score) for h in b]
        index.compact()
        for same in (index, other, api.load(tmp_path / "living")):
            for a, b in zip(expected, same.search_batch(asked, k=60), strict=True):
                assert listed(a) == [(h.doc_id, h.score) for h in b]
        assert check(tmp_path / "living").documents == len(index)

    def test_mistakes_are_explained(self, name):
        with pytest.raises(CallslipError, match="not fitted"):
            quick(name).search(ASKED)


@pytest.mark.parametrize("name", ONLY_LOGS)
def test_a_corpus_of_texts_is_refused_with_the_remedy(name, small_corpus):
    with pytest.raises(Unsupported, match="recommends items to users") as refusal:
        quick(name).fit(small_corpus)
    assert "callslip fit LOG" in refusal.value.remedy


@pytest.mark.parametrize("name", [*(one for one in METHODS if one not in SLOW), "item-knn+sasrec", "bm25+item-knn"])
def test_what_a_method_could_read_is_known_before_it_is_fitted(name, log):
    """Asked of what was not fitted, it says what the fitted index does."""
    index = quick(name)
    texts = Corpus(log.documents, {"t": Query("t", "soap 3")}, {"test": {"t": {"soap-3": 1}}})
    for corpus, asked in ((log, ASKED), (texts, Query("t", "soap 3"))):
        expected = index.could_read(histories=bool(asked.history))
        try:
            answered = len(quick(name, **HARDLY).fit(corpus).search(asked, k=3)) > 0
        except Unsupported:
            answered = False
        assert answered == expected, (name, asked)


@pytest.mark.parametrize("values", [{"queries": "text"}, {"train_encoder": "top"}])
def test_settings_that_make_texts_of_queries_count(values):
    assert make("tiger").could_read(histories=True)
    assert not make("tiger", values).could_read(histories=True)
    assert not make("dsi-semantic", {"queries": "set"}).could_read(histories=False)


@pytest.mark.parametrize(
    ("names", "settings", "named"),
    [
        (["popularity", "bm25", "asi"], {}, "histories of items, which bm25, asi cannot"),
        (["popularity", "tiger"], {"queries": "text"}, "histories of items, which tiger cannot"),
    ],
)
def test_a_comparison_is_refused_before_any_fit(log, monkeypatch, names, settings, named):
    monkeypatch.setattr("callslip.index.retriever.Retriever.fit", lambda *_: pytest.fail("it was fitted"))
    with pytest.raises(Unsupported, match=named) as caught:
        api.compare(log, names, settings=settings)
    assert "item-knn" in caught.value.remedy
    with pytest.raises(BadSetting, match="no judged queries in split 'dave'"):
        api.compare(log, ["popularity"], split="dave")


def test_a_recommender_is_not_compared_on_texts(small_corpus, monkeypatch):
    monkeypatch.setattr("callslip.index.retriever.Retriever.fit", lambda *_: pytest.fail("it was fitted"))
    with pytest.raises(Unsupported, match="are texts, which item-knn cannot"):
        api.compare(small_corpus, ["bm25", "item-knn"])
