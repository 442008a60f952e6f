"""The API: what it answers is what the library answers, and changes are seen by the next search."""

from __future__ import annotations

import re

import pytest
from server.conftest import running
from small_log import small_log
from typer.testing import CliRunner

from callslip import api
from callslip.cli import app as cli
from callslip.cli import register
from callslip.filters.filter import Filter
from callslip.filters.ranges import Range
from callslip.methods import make


def search(client, **body):
    answer = client.post("/v1/search", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


QUESTIONS = ["which apple has the mark fruit0", "the flute with music4", "where is the nile", "nickel"]


class TestSearch:
    def test_hits_are_those_of_the_library(self, anybody, fitted_folder):
        index = api.load(fitted_folder)
        for question in QUESTIONS:
            hits = search(anybody, query=question, k=5)[0]["hits"]
            expected = index.search(question, k=5)
            assert [hit["doc_id"] for hit in hits] == expected.doc_ids
            assert [hit["score"] for hit in hits] == pytest.approx(expected.scores, abs=1e-4)
            assert [tuple(hit["code"]) for hit in hits] == [tuple(t for t in hit.code if t >= 0) for hit in expected]

    def test_a_batch_equals_one_by_one(self, anybody):
        batch = search(anybody, queries=[{"text": question} for question in QUESTIONS], k=3)
        for question, one in zip(QUESTIONS, batch, strict=True):
            alone = search(anybody, query=question, k=3)[0]
            assert [hit["doc_id"] for hit in one["hits"]] == [hit["doc_id"] for hit in alone["hits"]]

    def test_beam_and_k_are_those_of_the_request(self, anybody, fitted_folder):
        wide, narrow = (api.load(fitted_folder).adjust({"beam": beam}) for beam in (16, 1))
        for beam, index in ((16, wide), (1, narrow), (16, wide)):
            for question in QUESTIONS:
                hits = search(anybody, query=question, k=2, beam=beam)[0]["hits"]
                assert [hit["doc_id"] for hit in hits] == index.search(question, k=2).doc_ids
        for beam in (2, 3):
            body = {"query": QUESTIONS[0], "doc_id": "fruit/0", "k": 1, "beam": beam}
            assert anybody.post("/v1/explain", json=body).json()["levels"][0]["beams"] == beam
        assert anybody.get("/v1/indexes").json()["indexes"][0]["beam"] == 4  # as before

    def test_filters_are_those_of_the_library(self, anybody, fitted_folder):
        index = api.load(fitted_folder)
        cases = [
            ({"where": {"topic": "metal"}}, Filter({"topic": "metal"})),
            ({"where": {"topic": ["metal", "river"]}, "where_not": {"even": True}},
             Filter({"topic": ["metal", "river"]}, {"even": True})),
            ({"allow": ["fruit/1", "music/3"]}, Filter(allow=frozenset({"fruit/1", "music/3"}))),
            ({"deny": ["fruit/0"]}, Filter(deny=frozenset({"fruit/0"}))),
        ]  # fmt: skip
        for given, filter in cases:
            hits = search(anybody, query=QUESTIONS[0], k=8, filter=given)[0]["hits"]
            assert [hit["doc_id"] for hit in hits] == index.search(QUESTIONS[0], k=8, filter=filter).doc_ids

    def test_ranges_are_read_as_on_the_command_line(self):
        from callslip.server.schema import FilterModel

        given = FilterModel.model_validate(
            {"where": {"year": {"low": "2018", "high": 2022}, "day": {"low": "2020-01"}}}
        )
        assert given.made() == Filter({"year": Range(2018, 2022), "day": Range("2020-01", None)})

    def test_requests_with_different_filters_and_mistakes_go_their_own_ways(self, served):
        """They may share a batch; a filter of an unknown field fails alone."""
        from concurrent.futures import ThreadPoolExecutor

        def ask(number):
            filter = [{"where": {"topic": "metal"}}, {"where": {"nothing": 1}}, None][number % 3]
            with served.client() as client:
                return client.post("/v1/search", json={"query": QUESTIONS[0], "filter": filter, "k": 4})

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(ask, range(48)))
        for number, answer in enumerate(answers):
            assert answer.status_code == (400 if number % 3 == 1 else 200)
            if number % 3 == 0:
                assert all(hit["doc_id"].startswith("metal") for hit in answer.json()["results"][0]["hits"])

    def test_an_index_without_codes_is_searched_too(self, anybody, words_folder):
        hits = search(anybody, query="nickel", index="words", k=3)[0]["hits"]
        assert [hit["doc_id"] for hit in hits] == api.load(words_folder).search("nickel", k=3).doc_ids
        assert hits[0]["code"] is None

    def test_what_a_method_cannot_do_is_said(self, anybody):
        history = anybody.post("/v1/search", json={"history": ["fruit/1", "fruit/2"]})
        assert history.status_code == 400 and "history" in history.json()["error"]["message"]
        beam = anybody.post("/v1/search", json={"query": "nickel", "beam": 3, "index": "words"})
        assert beam.status_code == 400 and "beam" in beam.json()["error"]["message"]
        nowhere = anybody.post("/v1/search", json={"query": "nickel", "index": "../words"})
        assert nowhere.status_code == 404

    def test_recommendations_leave_the_history_out_unless_it_is_kept(self, tmp_path):
        index = make("item-knn").fit(small_log())
        index.save(tmp_path / "log")
        history = ["soap-2", "soap-3", "soap-4"]
        with running([tmp_path / "log"]) as served, served.client() as client:
            found = {kept: search(client, history=history, k=48, keep_history=kept)[0] for kept in (False, True)}
            default = search(client, history=history, k=48)[0]
            body = {"history": history, "k": 5, "doc_id": found[False]["hits"][0]["doc_id"]}
            assert client.post("/v1/explain", json=body).json()["rank"] == 1  # as in the search
            for hit in found[True]["hits"]:
                if hit["doc_id"] in history:
                    kept = body | {"doc_id": hit["doc_id"], "k": 48, "keep_history": True}
                    assert client.post("/v1/explain", json=kept).json()["rank"] == hit["rank"]
            own = client.post("/v1/explain", json=body | {"doc_id": history[0]}).json()
            assert not own["found"] and "in the history" in own["verdict"]
        ids = {kept: {hit["doc_id"] for hit in one["hits"]} for kept, one in found.items()}
        assert ids[True] - ids[False] == set(history) and default == found[False]

    def test_texts_are_cut_as_asked(self, anybody):
        hit = search(anybody, query="nickel", k=1, characters=7)[0]["hits"][0]
        assert len(hit["text"]) == 7 and hit["truncated"]


class TestDocuments:
    def test_a_document_is_read_with_its_code(self, anybody, fitted_folder):
        index = api.load(fitted_folder)
        found = anybody.get("/v1/documents/fruit/3").json()
        document = index.documents.rows([index.row_of()["fruit/3"]])[0]
        assert (found["title"], found["text"], found["metadata"]) == (document.title, document.text, document.metadata)
        assert tuple(found["code"]) == index.identifiers.code_of("fruit/3")
        assert anybody.get("/v1/documents/nothing").status_code == 404
        assert anybody.get("/v1/documents/hostile%20%3Cb%3E%2F1").json()["doc_id"] == "hostile <b>/1"

    def test_added_replaced_and_deleted(self, writer):
        def found(query):
            return [hit["doc_id"] for hit in search(writer, query=query, k=50, beam=64)[0]["hits"]]

        new = {"text": "The banjo twangs.", "title": "About the banjo", "metadata": {"topic": "new"}}
        answer = writer.put("/v1/documents/banjo", json=new)
        assert (answer.status_code, answer.json()["created"]) == (200, 1)
        assert "banjo" in found("the banjo twangs")
        again = writer.put("/v1/documents/banjo", json=new | {"text": "Silent now."}).json()
        assert (again["changed"], again["created"]) == (1, 0)
        assert writer.get("/v1/documents/banjo").json()["text"] == "Silent now."
        assert writer.delete("/v1/documents/banjo").status_code == 200
        assert "banjo" not in found("the banjo twangs")
        assert writer.delete("/v1/documents/banjo").status_code == 404

    def test_batches_are_all_or_none(self, writer):
        new = [{"doc_id": f"lot/{number}", "text": f"lot number {number}"} for number in range(5)]
        assert writer.post("/v1/documents", json={"documents": new}).json()["created"] == 5
        taken = writer.post("/v1/documents", json={"documents": [{"doc_id": "more", "text": "x"}, new[0]]})
        assert taken.status_code == 409 and writer.get("/v1/documents/more").status_code == 404
        twice = writer.post("/v1/documents", json={"documents": [new[0], new[0]], "on_conflict": "replace"})
        assert twice.status_code == 409
        replaced = writer.post("/v1/documents", json={"documents": new, "on_conflict": "replace"}).json()
        assert (replaced["changed"], replaced["created"]) == (5, 0)
        ids = [one["doc_id"] for one in new]
        assert writer.post("/v1/documents/delete", json={"doc_ids": [*ids, "nothing"]}).status_code == 404
        assert writer.get("/v1/documents/lot/0").status_code == 200
        assert writer.post("/v1/documents/delete", json={"doc_ids": ids}).json()["changed"] == 5


class TestCodes:
    def test_the_tree_counts_every_document_once(self, anybody, fitted_folder):
        """Against a walk over all codes."""
        index = api.load(fitted_folder)
        codes = [index.identifiers.code_at(position) for position in range(len(index.identifiers))]

        def walk(prefix):
            text = "-".join("end" if token < 0 else str(token) for token in prefix)
            node = anybody.get("/v1/codes", params={"prefix": text, "depth": 2, "limit": 256}).json()
            whole = [code for code in codes if code[: len(prefix)] == tuple(prefix)]
            assert node["documents"] == len(whole)
            assert node["left_out"] == {"nodes": 0, "documents": 0}
            for child in node["children"]:
                if child["token"] < 0:
                    expected = [code for code in whole if len(code) == len(prefix)]
                else:
                    expected = [code for code in whole if code[len(prefix) : len(prefix) + 1] == (child["token"],)]
                assert child["documents"] == len(expected) > 0
                if child["end"]:
                    documents = anybody.get(
                        "/v1/codes/documents",
                        params={"prefix": f"{text}-{child['name']}".strip("-"), "limit": 100},
                    ).json()
                    assert documents["total"] == len(documents["documents"]) == len(expected)
                    assert all(tuple(one["code"]) in expected for one in documents["documents"])
                else:
                    assert sum(deep["documents"] for deep in child["children"]) == child["documents"]
                    walk([*prefix, child["token"]])
            assert sum(child["documents"] for child in node["children"]) == len(whole)

        walk([])

    def test_the_fullest_children_are_kept(self, anybody):
        whole = anybody.get("/v1/codes").json()
        some = anybody.get("/v1/codes", params={"limit": 1}).json()
        fullest = max(child["documents"] for child in whole["children"])
        assert [child["documents"] for child in some["children"]] == [fullest]
        assert some["left_out"]["documents"] == whole["documents"] - fullest

    def test_deleted_documents_are_not_counted(self, writer):
        before = writer.get("/v1/codes").json()["documents"]
        writer.put("/v1/documents/passing", json={"text": "it comes and goes"})
        assert writer.get("/v1/codes").json()["documents"] == before + 1
        writer.delete("/v1/documents/passing")
        assert writer.get("/v1/codes").json()["documents"] == before

    def test_words_are_those_that_tell_a_node_from_others(self, anybody):
        words = {word for child in anybody.get("/v1/codes").json()["children"] for word in child["words"]}
        assert words and not words & {"the", "nobody", "knows"}

    def test_words_are_those_of_inspect(self, fitted_folder, tmp_path, small_corpus):
        codes_of_vectors = tmp_path / "residual"
        make("tied-residual", {"encoder": "scratch", "length": 4}).fit(small_corpus).save(codes_of_vectors)
        register()
        for path in (fitted_folder, codes_of_vectors):
            said = CliRunner().invoke(cli, ["inspect", str(path), "--branches", "256", "--depth", "1"]).stdout
            shown = dict(re.findall(r"^  (\d+)  [\d,]+ documents?: (.*)$", said, re.MULTILINE))
            with running([path]) as served, served.client() as client:
                children = client.get("/v1/codes", params={"limit": 256}).json()["children"]
            told = {child["name"]: ", ".join(child["words"]) for child in children if child["token"] >= 0}
            assert told == shown and all(told.values())

    def test_an_index_without_codes_says_so(self, anybody):
        for path in ("/v1/codes", "/v1/codes/documents"):
            answer = anybody.get(path, params={"index": "words"})
            assert answer.status_code == 409 and "no codes" in answer.json()["error"]["message"]
        assert anybody.get("/v1/codes", params={"prefix": "999"}).status_code == 404
        assert anybody.get("/v1/codes", params={"prefix": "../x"}).status_code == 422


class TestHealth:
    def test_figures_are_those_of_inspect(self, anybody, fitted_folder):
        from callslip.identifiers import doctor, quality

        told = anybody.get("/v1/health").json()
        figures = quality.measure(api.load(fitted_folder).identifiers.codes)
        assert told["figures"]["unique"] == figures.unique
        assert told["verdict"] == doctor.verdict(doctor.diagnose(figures))
        assert [plot["name"] for plot in told["plots"]][:2] == ["buckets", "usage-1"]
        assert any(plot["name"].startswith("training") for plot in told["plots"])

    def test_figures_follow_changes(self, writer):
        before = writer.get("/v1/health").json()["figures"]["documents"]
        writer.put("/v1/documents/counted", json={"text": "one more"})
        assert writer.get("/v1/health").json()["figures"]["documents"] == before + 1
        writer.delete("/v1/documents/counted")
        assert writer.get("/v1/health").json()["figures"]["documents"] == before

    def test_plots_are_well_formed(self, anybody):
        from xml.etree import ElementTree

        for index in ("small", "words"):
            for plot in anybody.get("/v1/health", params={"index": index}).json()["plots"]:
                assert ElementTree.fromstring(plot["svg"]).tag == "svg"

    def test_the_training_log_is_given(self, anybody, fitted_folder):
        records = anybody.get("/v1/training").json()["records"]
        assert records == api.load(fitted_folder).log.records
        assert anybody.get("/v1/training", params={"index": "words"}).json()["records"] == []

    def test_indexes_are_listed(self, anybody):
        found = anybody.get("/v1/indexes").json()["indexes"]
        assert [(one["name"], one["method"], one["has_codes"]) for one in found] == [
            ("small", "dsi-semantic", True),
            ("words", "bm25", False),
        ]

    def test_metrics_are_read_by_prometheus(self, served):
        from prometheus_client.parser import text_string_to_metric_families
        from server.conftest import ADMIN

        with served.client(ADMIN) as client:
            client.post("/v1/search", json={"query": "nickel"})
            found = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
        answered = {
            tuple(s.labels.values()): s.value for s in found["callslip_requests"].samples if s.name.endswith("_total")
        }
        assert answered["/v1/search", "200"] >= 1
        assert {s.labels["index"]: s.value for s in found["callslip_documents"].samples}["words"] == 40
