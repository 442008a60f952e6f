"""Why this, why not that: against a beam search written out by hand, and forced scores against exhaustive search."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from callslip import api
from callslip.corpus.documents import Query
from callslip.decoders.writer import CodeWriter
from callslip.filters.filter import Filter
from callslip.identifiers import Identifiers
from callslip.search.beam import beam_search
from callslip.search.exact import exact_search
from callslip.search.forced import forced_scores
from callslip.search.observer import watched
from callslip.server.errors import TooLate
from callslip.server.explain import explain

CODES = [[0, 1, 2], [0, 1, 3], [0, 2, -1], [1, 0, 0], [1, 3, 3], [2, -1, -1], [3, 3, 3], [3, 3, 3]]


@pytest.fixture(scope="module")
def toy():
    torch.manual_seed(3)
    table = Identifiers([str(n) for n in range(len(CODES))], CODES)
    return CodeWriter(8, table.widths, with_end=True).eval(), table, torch.randn(3, 8)


@pytest.fixture(scope="module")
def index(fitted_folder):
    return api.load(fitted_folder)


class TestForced:
    def test_scores_are_those_of_exhaustive_search(self, toy):
        model, table, queries = toy
        for query in queries:
            every = exact_search(model, query[None], table.trie(), 100)
            assert len(every.codes) == table.unique
            for code, levels in zip(every.codes, every.levels, strict=True):
                assert forced_scores(model, query[None], table.trie(), code.tolist()) == pytest.approx(levels, abs=1e-5)

    def test_a_code_that_is_not_there_is_refused(self, toy):
        from callslip.errors import BadSetting

        model, table, queries = toy
        with pytest.raises(BadSetting):
            forced_scores(model, queries[:1], table.trie(), [0, 3, 0])
        masks = table.trie().live(np.array([code != (0, 1, 2) for code in map(tuple, table.codes.tolist())]))
        with pytest.raises(BadSetting):
            forced_scores(model, queries[:1], table.trie(), [0, 1, 2], masks)


class TestWatching:
    def test_the_watch_sees_what_the_beam_keeps(self, toy):
        model, table, queries = toy
        seen = []
        with watched(lambda level, nodes, totals: seen.append((level, nodes.clone(), totals.clone()))):
            found = beam_search(model, queries, table.trie(), beam=3)
        assert [level for level, _, _ in seen] == [0, 1, 2]
        last = seen[-1][1].numpy()
        for number, beams in enumerate(found):
            long = beams.nodes[(beams.codes >= 0).all(axis=1)]
            assert set(long) <= set(last[number])
        assert beam_search(model, queries, table.trie(), beam=3)[0].codes.tolist() == found[0].codes.tolist()

    def test_it_can_end_a_search_at_any_level(self, toy):
        model, table, queries = toy
        for stop in range(3):
            levels = []

            def watch(level, nodes, totals, stop=stop, levels=levels):
                levels.append(level)
                if level == stop:
                    raise TooLate

            with pytest.raises(TooLate), watched(watch):
                beam_search(model, queries, table.trie(), beam=3)
            assert levels == list(range(stop + 1))

    def test_exact_search_can_be_ended_too(self, toy):
        model, table, queries = toy

        def watch(level, nodes, totals):
            raise TooLate

        with pytest.raises(TooLate), watched(watch):
            exact_search(model, queries[:1], table.trie(), 3)


def plain_beam(index, question, beam):
    """The prefixes that a beam keeps at each level, by sorting every continuation: prefix -> score."""
    vector = index.texts.encode([question])
    inputs = index.reader.batch(index.reader.inputs([Query("0", question)], vector))
    trie = index.identifiers.trie()
    codes = sorted({tuple(code) for code in index.identifiers.codes.tolist()})
    score_of = {code: forced_scores(index.model, inputs, trie, list(code)) for code in codes}
    kept, levels = {()}, []
    for level in range(1, trie.length + 1):
        possible = {code[:level]: float(score_of[code][:level].sum()) for code in codes if code[: level - 1] in kept}
        best = sorted(possible, key=lambda prefix: (-possible[prefix], prefix))[:beam]
        kept = set(best)
        levels.append({prefix: possible[prefix] for prefix in best})
    return levels, score_of


class TestExplain:
    def test_where_a_document_is_lost_is_where_a_plain_beam_loses_it(self, index):
        if (index.identifiers.codes < 0).any():
            pytest.skip("the plain beam has no short codes")
        for question in ("which apple has the mark fruit0", "the flute with music4", "copper"):
            levels, score_of = plain_beam(index, question, 2)
            for doc_id in ("fruit/0", "music/4", "river/2", "metal/1", "metal/9"):
                code = index.identifiers.code_of(doc_id)
                told = explain(index, Query("0", question), doc_id, 1, 2, None)
                lost = next((n + 1 for n, kept in enumerate(levels) if code[: n + 1] not in kept), None)
                assert told["fell_at"] == lost
                assert [level["log_probability"] for level in told["levels"]] == pytest.approx(
                    score_of[code].tolist(), abs=1e-3
                )
                for level, kept in zip(told["levels"], levels, strict=True):
                    if lost is None or level["level"] <= lost:
                        assert level["lowest_kept"] == pytest.approx(min(kept.values()), abs=1e-3)
                assert (told["rank"] is None) == (lost is not None)

    def test_a_hit_is_explained_as_the_search_explains_it(self, index):
        hits = index.search("the flute with music4", k=5, explain=True)
        for hit in hits:
            told = explain(index, Query("0", "the flute with music4"), hit.doc_id, 5, None, None)
            assert (told["rank"], told["found"]) == (hit.rank, True)
            assert told["score"] == pytest.approx(hit.score, abs=1e-4)
            assert [level["log_probability"] for level in told["levels"]] == pytest.approx(
                hit.why["level_scores"], abs=1e-3
            )
            for level in told["levels"]:
                assert level["probability"] == pytest.approx(math.exp(min(0, level["log_probability"])))

    def test_what_stands_after_the_list(self, index):
        whole = index.search("the flute with music4", k=1).doc_ids
        found = [
            told
            for doc_id in ("music/0", "music/1", "music/2", "music/3", "music/4", "music/5")
            if (told := explain(index, Query("0", "the flute with music4"), doc_id, 1, 16, None))["rank"]
            not in (1, None)
        ]
        assert found and all(not told["found"] and "beyond the 1" in told["verdict"] for told in found)
        assert whole[0] not in [told["doc_id"] for told in found]

    def test_a_filter_is_named(self, index):
        told = explain(index, Query("0", "apple"), "fruit/0", 5, None, Filter({"topic": "metal"}))
        assert not told["found"] and "filter" in told["verdict"]

    def test_over_http_with_words_and_without_codes(self, anybody):
        told = anybody.post("/v1/explain", json={"query": "nickel", "doc_id": "fruit/1"}).json()
        assert told["levels"] and all("words" in level for level in told["levels"])
        plain = anybody.post("/v1/explain", json={"query": "nickel", "doc_id": "metal/3", "index": "words"}).json()
        assert plain["found"] and plain["levels"] == [] and plain["code"] is None
        none = anybody.post("/v1/explain", json={"query": "nickel", "doc_id": "fruit/1", "index": "words"}).json()
        assert not none["found"] and none["rank"] is None
        assert anybody.post("/v1/explain", json={"query": "nickel", "doc_id": "nothing"}).status_code == 404
