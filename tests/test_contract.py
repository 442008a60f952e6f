"""One contract for every method: each name in METHODS passes the same checks. Methods that only read histories of items
pass theirs in test_contract_logs.py."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_bert import save_small_bert
from small_topics import TOPICS

from callslip import api
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, CallslipError, IndexCorrupt, Unsupported
from callslip.filters.filter import Filter
from callslip.index.recommender import Recommender
from callslip.methods import METHODS, find, make
from callslip.search.hits import Hits
from callslip.storage.check import check

QUICK = {"encoder": "scratch", "epochs": 25, "decoder_width": 64, "batch_size": 64, "width": 4, "leaf": 3}
QUICK |= {"rounds": 1, "round_epochs": 12, "rqvae_epochs": 10}
NAMES = [*(name for name in METHODS if not issubclass(find(name).load(), Recommender)), "bm25+dsi-semantic"]


def quick(name: str, **more):
    """The method with the small encoder and short training that tests can afford."""
    parts = getattr(make(name).settings, "parts", None) or [name]  # asi++ is one method, and no hybrid
    values = {}
    for part in parts:
        known = {field.name for field in dataclasses.fields(find(part).load().Settings)}
        prefix = f"{part}." if len(parts) > 1 else ""
        short = QUICK | (trained_encoder() if "train_encoder" in find(part).settings else {}) | more
        values |= {f"{prefix}{key}": value for key, value in short.items() if key in known}
    return make(name, values)


@functools.cache
def trained_encoder() -> dict[str, object]:
    """For a method that trains its encoder: one that has layers, and a rate at which few steps are enough."""
    words = [*itertools.chain(*TOPICS.values()), *TOPICS, *(f"{topic}{n}" for topic in TOPICS for n in range(10))]
    words += ["harp", "harp88", "gong", "gong77", "whales"]  # of the documents that the tests add
    folder = save_small_bert(Path(tempfile.mkdtemp(prefix="callslip-test-bert-")), words)
    return {"encoder": str(folder), "backend": "torch", "encoder_learning_rate": 5e-3, "seq2seq_length": 32}


@pytest.fixture(scope="module")
def fitted(small_corpus):
    return functools.cache(lambda name: quick(name).fit(small_corpus))


def questions(corpus) -> list[Query]:
    return list(corpus.split("test")[0].values())


def listed(hits: Hits) -> list[tuple[str, float]]:
    return [(hit.doc_id, pytest.approx(hit.score, abs=1e-4)) for hit in hits]


@pytest.mark.parametrize("name", NAMES)
class TestContract:
    def test_hits_are_in_order(self, name, fitted, small_corpus):
        for hits in fitted(name).search_batch(questions(small_corpus), k=7):
            assert 0 < len(hits) <= 7
            assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
            assert len(set(hits.doc_ids)) == len(hits)
            assert set(hits.doc_ids) <= set(small_corpus.doc_ids)
            assert all(a >= b - 1e-6 for a, b in zip(hits.scores, hits.scores[1:], strict=False))
            assert all(hit.title and hit.text for hit in hits)

    def test_it_finds_what_it_learned(self, name, fitted, small_corpus):
        """The training queries name their document outright; a method that learned anything finds most of them."""
        queries, judgements = small_corpus.split("train")
        found = fitted(name).search_batch(queries.values(), k=5)
        right = sum(set(hits.doc_ids) & set(judgements[qid]) != set() for qid, hits in zip(queries, found, strict=True))
        assert right >= 0.75 * len(queries)

    def test_a_batch_equals_one_by_one(self, name, fitted, small_corpus):
        asked = questions(small_corpus)[:6]
        batch = fitted(name).search_batch(asked, k=5)
        for query, hits in zip(asked, batch, strict=True):
            assert listed(fitted(name).search(query.text, k=5)) == [(h.doc_id, h.score) for h in hits]

    def test_hits_without_texts_are_the_same_hits(self, name, living, small_corpus):
        index, asked = living(name), questions(small_corpus)[:4]
        for gone in ([], ["music/5"]):
            index.delete(gone)
            whole, bare = index.search_batch(asked, k=5), index.search_batch(asked, k=5, texts=False)
            for a, b in zip(whole, bare, strict=True):
                assert listed(a) == [(h.doc_id, h.score) for h in b]
                assert not any(h.title or h.text for h in b)

    def test_fitting_twice_gives_the_same(self, name, fitted, small_corpus):
        again = quick(name).fit(small_corpus)
        for query in questions(small_corpus)[:5]:
            assert again.search(query, k=5).doc_ids == fitted(name).search(query, k=5).doc_ids

    def test_a_saved_index_answers_alike(self, name, fitted, saved, small_corpus):
        loaded = api.load(saved(name))
        assert loaded.method == name
        assert loaded.settings == fitted(name).settings
        assert len(loaded) == len(small_corpus)
        for query in questions(small_corpus):
            before, after = fitted(name).search(query, k=10), loaded.search(query, k=10)
            assert listed(before) == [(h.doc_id, h.score) for h in after]
            assert [h.code for h in before] == [h.code for h in after]

    def test_saving_a_loaded_index_again(self, name, saved, small_corpus, tmp_path):
        api.load(saved(name)).save(tmp_path / "copy")
        query = questions(small_corpus)[0]
        first, second = api.load(saved(name)).search(query, 5), api.load(tmp_path / "copy").search(query, 5)
        assert listed(first) == [(h.doc_id, h.score) for h in second]

    def test_a_damaged_index_is_refused(self, name, saved, tmp_path):
        path = tmp_path / "damaged"
        shutil.copytree(saved(name), path)
        files = [p for p in path.rglob("*") if p.is_file() and not p.name.endswith("-shm")]  # SQLite's scratch memory
        largest = max(files, key=lambda p: p.stat().st_size)
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 4
        largest.write_bytes(bytes(data))
        with pytest.raises(IndexCorrupt, match=largest.name):
            api.load(path)

    def test_a_filter_still_gives_k_hits(self, name, fitted, small_corpus):
        filter = Filter(where={"topic": "river", "even": True})
        matching = {d.doc_id for d in small_corpus if d.metadata["topic"] == "river" and d.metadata["even"]}
        for query in questions(small_corpus):
            hits = fitted(name).search(query, k=4, filter=filter)
            assert set(hits.doc_ids) <= matching
            if not name.startswith("bm25") or "+" in name:  # BM25 alone returns only documents with a word of the query
                assert len(hits) == 4
        nothing = fitted(name).search("danube", k=4, filter=Filter(where={"topic": "nothing"}))
        assert nothing == Hits()

    def test_the_allowed_document_is_found_wherever_it_ranked(self, name, fitted, small_corpus):
        only = Filter(allow=frozenset({"metal/3"}))
        assert fitted(name).search("nickel metal3", k=10, filter=only).doc_ids == ["metal/3"]

    def test_more_hits_than_documents(self, name, fitted, small_corpus):
        hits = fitted(name).search("the", k=1000)
        assert len(hits) <= len(small_corpus)
        if "dense" in name or hasattr(fitted(name), "identifiers"):
            assert set(hits.doc_ids) == set(small_corpus.doc_ids)

    @pytest.mark.parametrize("text", ["", " ", "zzzz qqqq", "\x00", "日本語 🎻", "a" * 20_000, "\ud800"])
    def test_any_string_is_a_query(self, name, fitted, text):
        assert isinstance(fitted(name).search(text, k=3), Hits)

    def test_reasons_are_given_when_asked_for(self, name, fitted):
        for hit in fitted(name).search("violin music3", k=3, explain=True):
            json.dumps(hit.to_dict())
            if name != "dense":
                assert hit.why

    def test_deleted_documents_are_gone(self, name, living, small_corpus, tmp_path):
        index = living(name)
        query = next(iter(small_corpus.split("train")[0].values()))
        gone = index.search(query, k=3).doc_ids
        index.delete(gone)
        assert len(index) == len(small_corpus) - len(gone)
        assert not set(gone) & set(index.search(query, k=40).doc_ids)
        index.save(tmp_path / "after")
        assert not set(gone) & set(api.load(tmp_path / "after").search(query, k=40).doc_ids)
        with pytest.raises(CallslipError, match="no document"):
            index.delete(gone)

    def test_new_documents_are_found_or_refused_with_the_remedy(self, name, living, tmp_path):
        index = living(name)
        text = "The violin is a music. Unlike the trumpet, it bears the mark music5. Everybody knows why."
        new = Document("new/1", text, "About violin music5")
        try:
            index.add([new])
        except Unsupported as refusal:
            assert "callslip fit" in refusal.remedy
            return
        assert "new/1" in index.search(new.content, k=10).doc_ids
        index.save(tmp_path / "grown")
        assert "new/1" in api.load(tmp_path / "grown").search(new.content, k=10).doc_ids
        with pytest.raises(CallslipError, match="already"):
            index.add([new])

    def test_changes_last_and_two_processes_agree(self, name, living, small_corpus, tmp_path):
        """What one open index does is there for another at once, and after opening again, and after compacting."""
        index = living(name)
        other = api.load(tmp_path / "living")
        asked = [query.text for query in questions(small_corpus)]
        index.delete(["music/5", "river/0"])
        new = Document("music/5", "The violin is a music with the mark music5. Everybody knows why.", "violin music5")
        try:
            index.add([new, Document("new/2", "The gong is a music, marked gong77.", "gong gong77")])
            index.update([Document("new/2", "The harp is a music, marked harp88.", "harp harp88")])
        except Unsupported as refusal:
            assert "callslip fit" in refusal.remedy
        else:
            assert "new/2" in index.search("harp harp88", k=10).doc_ids
            text = {hit.doc_id: hit.text for hit in index.search(new.content, k=50)}
            assert text["music/5"] == new.text  # the new one, not the deleted one of that name
        expected = index.search_batch(asked, k=50)
        assert "river/0" not in {doc_id for hits in expected for doc_id in hits.doc_ids}
        by_words = "bm25" in name or name in (
            "hybrid",
            "tied-residual",
        )  # its weights count deleted documents until it is compacted
        for same in (other, api.load(tmp_path / "living")):
            assert len(same.refresh()) == len(index)
            for a, b in zip(expected, same.search_batch(asked, k=50), strict=True):
                assert {h.doc_id: h.text for h in a} == {h.doc_id: h.text for h in b}
                assert by_words or listed(a) == [(h.doc_id, h.score) for h in b]
        index.compact()
        compacted = index.search_batch(asked, k=50)
        for same in (api.load(tmp_path / "living"), *([] if by_words else [other])):
            for a, b in zip(compacted, same.search_batch(asked, k=50), strict=True):
                assert listed(a) == [(h.doc_id, h.score) for h in b]
        for before, after in zip(expected, compacted, strict=True):
            assert set(before.doc_ids) == set(after.doc_ids)
            assert by_words or listed(before) == [(h.doc_id, h.score) for h in after]
        assert check(tmp_path / "living").documents == len(index)

    def test_new_documents_come_by_the_hooks_that_can_be_replayed(self, name, fitted):
        """An `_add` of a method's own would not be called when another process reads what was added."""
        assert not hasattr(fitted(name), "_add"), "write _prepare, _extend and _keep: see docs/adding-a-method.md"

    def test_half_deleted_still_gives_k_hits(self, name, living, small_corpus):
        index = living(name)
        index.delete([d.doc_id for n, d in enumerate(small_corpus) if n % 2])
        kept = {d.doc_id for n, d in enumerate(small_corpus) if n % 2 == 0}
        for query in questions(small_corpus):
            hits = index.search(query, k=10)
            assert set(hits.doc_ids) <= kept
            if not name.startswith("bm25") or "+" in name:
                assert len(hits) == 10
        index.delete(kept)
        assert index.search("danube", k=10) == Hits()
        index.compact()
        assert index.search("danube", k=10) == Hits() and len(index) == 0

    def test_every_live_document_is_reachable_by_its_code(self, name, living):
        """Its code, forced, leads to a bucket that holds it; no other method of finding it is needed."""
        index = living(name)
        if not hasattr(index, "identifiers"):
            return
        index.delete(["fruit/0", "metal/9"])
        with contextlib.suppress(Unsupported):
            index.add([Document("new/1", "The gong is a music, marked gong77.", "gong gong77")])
        trie = index.identifiers.trie()
        live = trie.live(index.rows.mask(None)[index.identifiers.rows])
        reached = set()
        for code in {tuple(code) for code in index.identifiers.codes.tolist()}:
            bucket = index.identifiers.bucket([token for token in code if token >= 0])
            rows = index.identifiers.rows[bucket]
            alive = [int(row) for row in rows if index.rows.mask(None)[row]]
            reached |= set(alive)
            assert bool(alive) == bool(live[-1][trie.documents(trie.length - 1)[:-1].searchsorted(bucket.start)])
        assert reached == set(index.row_of().values())

    def test_one_document_is_a_corpus(self, name):
        index = quick(name).fit(Corpus([Document("only", "one lonely document about whales", "whales")]))
        assert index.search("whales", k=3).doc_ids == ["only"]

    def test_documents_without_a_word_do_no_harm(self, name):
        index = quick(name).fit(Corpus([Document("a", ""), Document("b", "whales and ships"), Document("c", "")]))
        assert "b" in index.search("whales", k=3).doc_ids

    def test_mistakes_are_explained(self, name, fitted):
        with pytest.raises(CallslipError, match="empty"):
            quick(name).fit(Corpus([]))
        with pytest.raises(CallslipError, match="not fitted"):
            quick(name).search("x")
        with pytest.raises(BadSetting, match="k is 0"):
            fitted(name).search("x", k=0)

    def test_search_settings_can_be_changed_and_others_not(self, name, saved):
        index = api.load(saved(name))
        for setting in type(index).search_settings:
            index.adjust({setting: getattr(index.settings, setting)})
        fixed = {field.name for field in dataclasses.fields(index.settings)} - type(index).search_settings
        with pytest.raises(BadSetting, match="Fit again"):
            index.adjust({sorted(fixed)[0]: 1})
        with pytest.raises(CallslipError, match="unknown setting"):
            index.adjust({"nonsense": 1})


@pytest.mark.parametrize("ranking", ["bucket", "share", "sum", "union", "code"])
def test_the_rankings_order_the_same_documents(fitted, saved, small_corpus, ranking):
    """All documents of the beam come back whatever the ranking; only their order differs, each by its own rule."""
    index = api.load(saved("dsi-semantic")).adjust({"ranking": ranking, "similarity_weight": 7.0})
    sizes = Counter(map(tuple, index.identifiers.codes.tolist()))
    for query in questions(small_corpus)[:10]:
        hits = index.search(query, k=40, explain=True)
        assert set(hits.doc_ids) == set(small_corpus.doc_ids)
        code = [hit.why["code_score"] for hit in hits]
        near = [hit.why.get("similarity", 0.0) for hit in hits]
        rule = {
            "bucket": list(zip(code, near, strict=True)),
            "share": [c - np.log(sizes[hit.code]) for c, hit in zip(code, hits, strict=True)],
            "sum": [c + 7.0 * n for c, n in zip(code, near, strict=True)],
            "union": near,
            "code": code,
        }[ranking]
        assert rule == sorted(rule, reverse=True)


def test_a_part_of_a_hybrid_knows_what_was_added_and_deleted(saved, small_corpus):
    """How many documents share a code is counted by the part, of documents that the whole was told of."""
    index = api.load(saved("bm25+dsi-semantic"))
    twin = small_corpus.documents[0]
    index.add([Document("twin", twin.text, twin.title)])
    index.delete([twin.doc_id])
    hits = index.search(twin.content, k=len(index), explain=True)
    assert "twin" in hits.doc_ids and twin.doc_id not in hits.doc_ids


def test_a_history_without_text_is_refused_by_methods_that_read_text(fitted):
    with pytest.raises(Unsupported, match="history"):
        fitted("bm25").search(Query("u1", "", history=("a", "b")))
