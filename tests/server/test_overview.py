"""What the page shows before anybody asks: neighbours of a document, lists, facets and example queries."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from server.conftest import ALL, HOSTILE, running
from small_log import small_log

import callslip
from callslip.corpus.documents import Document
from callslip.methods import make
from callslip.server import overview, responses


def shared(one, other):
    """The length of the longest common prefix, token by token."""
    found = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        found += 1
    return found


@pytest.mark.parametrize("doc_id", ["fruit/1", "river/9", HOSTILE.doc_id])
def test_neighbours_are_those_with_the_longest_common_prefix(anybody, served, doc_id):
    told = anybody.get("/v1/neighbours", params={"doc_id": doc_id, "limit": 5}).json()
    responses.NeighboursAnswer.model_validate(told)
    retriever = served.app.server.retriever_of("small")
    codes = {name: tuple(c for c in retriever.identifiers.code_of(name) if c >= 0) for name in retriever.row_of()}
    lengths = {name: shared(codes[doc_id], code) for name, code in codes.items() if name != doc_id}
    best = [length for length in sorted(lengths.values(), reverse=True)[:5] if length]
    assert [one["shared"] for one in told["neighbours"]] == best
    assert all(lengths[one["doc_id"]] == one["shared"] for one in told["neighbours"])
    assert told["length"] == len(codes[doc_id])


def test_neighbours_of_nothing(anybody):
    assert anybody.get("/v1/neighbours", params={"doc_id": "nobody"}).status_code == 404
    assert anybody.get("/v1/neighbours", params={"doc_id": "fruit/1", "index": "words"}).status_code == 409
    assert anybody.get("/v1/neighbours", params={"doc_id": "fruit/1", "limit": 51}).status_code == 422
    assert anybody.get("/v1/neighbours").status_code == 422


def test_documents_are_listed_and_looked_through(anybody, small_corpus):
    told = anybody.get("/v1/documents", params={"index": "words", "offset": 3, "limit": 4}).json()
    responses.ListAnswer.model_validate(told)
    assert [one["doc_id"] for one in told["documents"]] == [d.doc_id for d in small_corpus.documents[3:7]]
    assert told["total"] == len(small_corpus)
    told = anybody.get("/v1/documents", params={"index": "words", "contains": " APPLE", "limit": 100}).json()
    wanted = [d.doc_id for d in small_corpus if "apple" in f"{d.title}\n{d.doc_id}".lower()]
    assert [one["doc_id"] for one in told["documents"]] == wanted
    assert wanted
    assert told["complete"]
    assert anybody.get("/v1/documents", params={"contains": "x" * 257}).status_code == 422


def test_items_that_begin_with_the_text_come_first(tmp_path, monkeypatch):
    titles = {"a": "Red soap", "b": "Soap", "soap": "Brush", "c": "SOAPSTONE", "d": "Comb"}
    callslip.fit([Document(name, "x", title) for name, title in titles.items()], "bm25", tmp_path / "index").close()
    with running([tmp_path / "index"]) as server, server.client() as client:
        told = client.get("/v1/documents", params={"contains": "soap"}).json()
        assert [one["doc_id"] for one in told["documents"]] == ["soap", "b", "c", "a"]
        told = client.get("/v1/documents", params={"contains": "soap", "offset": 1, "limit": 2}).json()
        assert ([one["doc_id"] for one in told["documents"]], told["total"]) == (["b", "c"], 4)
    monkeypatch.setattr(overview, "LABELS", 2)
    with running([tmp_path / "index"]) as server, server.client() as client:  # a doc_id is found beyond them
        told = client.get("/v1/documents", params={"contains": "d"}).json()
        assert [one["doc_id"] for one in told["documents"]] == ["d", "a"]
        assert told["documents"][0]["title"] == "Comb" and not told["complete"]


def test_example_histories_are_of_items_that_several_users_had(tmp_path):
    corpus = small_log()
    make("item-knn").fit(corpus).save(tmp_path / "log")
    with running([tmp_path / "log"]) as server, server.client(ALL) as client:
        told = client.get("/v1/examples").json()
        responses.ExamplesAnswer.model_validate(told)
        retriever = server.app.server.retriever_of("log")
        log = retriever.users.histories
        users = Counter(item for history in log.values() for item in set(history))
        rare = {item for item, count in users.items() if count < overview.HISTORY_SHARED}
        assert len(told["histories"]) == overview.EXAMPLES and told["queries"] == []
        for history in told["histories"]:
            items = [one["doc_id"] for one in history]
            assert 1 < len(items) <= overview.HISTORY_ITEMS and not rare & set(items)
            common = ([item for item in whole if item not in rare] for whole in log.values())
            assert any(whole[-len(items) :] == items for whole in common)
            assert [one["title"] for one in history] == [item.replace("-", " ") for item in items]
        assert not set(log) & set(json.dumps(told).replace('"', " ").split())  # no user is named
        gone = told["histories"][0][0]["doc_id"]
        assert client.delete(f"/v1/documents/{gone}").status_code == 200
        after = client.get("/v1/examples").json()["histories"]
        assert gone not in {one["doc_id"] for history in after for one in history}


def test_a_log_whose_items_had_few_users_gives_no_examples():
    index = make("item-knn").fit(small_log(users=4))
    rare = Counter(item for history in index.users.histories.values() for item in set(history))
    assert rare and max(rare.values()) < overview.HISTORY_SHARED
    assert overview.histories(index) == []


def test_facets_count_documents(anybody, small_corpus):
    told = anybody.get("/v1/facets", params={"index": "words"}).json()
    responses.FacetsAnswer.model_validate(told)
    found = {one["field"]: {str(v["value"]): v["documents"] for v in one["values"]} for one in told["facets"]}
    for field in ("topic", "even"):
        assert found[field] == Counter(str(d.metadata[field]) for d in small_corpus)
    for facet in told["facets"]:  # a value that is clicked finds as many
        for one in facet["values"]:
            asked = {"index": "words", "query": "nobody knows the mark", "k": 100}
            asked["filter"] = {"where": {facet["field"]: [one["value"]]}, "allow": None}
            hits = anybody.post("/v1/search", json=asked).json()["results"][0]["hits"]
            assert len(hits) == one["documents"]


def test_facets_are_bounded_and_follow_changes(tmp_path):
    documents = [
        Document(str(n), "text", "", {"id": n, "kind": ["a", "b"] if n % 2 else "a", "deep": {"x": 1}, "one": True})
        for n in range(60)
    ]
    documents.append(Document("last", "text", "", {"kind": 1, "long": "x" * 200, "rare": "only here"}))
    index = callslip.fit(documents, "bm25", tmp_path / "index")
    with running([tmp_path / "index"]) as server, server.client("e" * 32) as client:
        told = client.get("/v1/facets").json()["facets"]
        assert {one["field"] for one in told} == {"kind", "one", "rare"}
        kinds = next(one for one in told if one["field"] == "kind")["values"]
        assert kinds == [
            {"value": "a", "documents": 60},
            {"value": "b", "documents": 30},
            {"value": 1, "documents": 1},
        ]
        assert client.delete("/v1/documents/last").status_code == 200
        assert {one["field"] for one in client.get("/v1/facets").json()["facets"]} == {"kind"}
    index.close()
    many = callslip.fit([Document("1", "a", "", {f"f{n}": n for n in range(200)}), Document("2", "b")], "bm25")
    assert len(overview.facets(many)["facets"]) == overview.FACETS


def test_examples_are_titles_and_never_the_queries_that_others_asked(anybody, small_corpus):
    told = anybody.get("/v1/examples", params={"index": "words"}).json()
    responses.ExamplesAnswer.model_validate(told)
    assert len(told["queries"]) == overview.EXAMPLES
    assert set(told["queries"]) <= {d.title for d in small_corpus}
    settings = {"encoder": "scratch", "length": 4}
    index = callslip.fit(small_corpus, "tied-residual", settings=settings)
    assert len(index.memory.texts) and set(overview.examples(index)) <= {d.title for d in small_corpus}
    untitled = callslip.fit([Document("1", "First sentence here. A second one."), Document("2", "x " * 200)], "bm25")
    assert overview.examples(untitled) == ["First sentence here."]
