"""Every kind of index is served: codes of words, one token a document, several methods in one, and none at all."""

from __future__ import annotations

import dataclasses

import pytest
from server.conftest import QUICK, running

from callslip import api
from callslip.methods import find, make

KINDS = {"glen": True, "dsi-atomic": True, "bm25+dsi-semantic": True, "tied-atomic": False}


@pytest.fixture(scope="module")
def folders(small_corpus, tmp_path_factory):
    place, found = tmp_path_factory.mktemp("kinds"), []
    for name in KINDS:
        values = {}
        parts = name.split("+")
        for part in parts:
            known = {field.name for field in dataclasses.fields(find(part).load().Settings)}
            prefix = f"{part}." if len(parts) > 1 else ""
            some = QUICK | {"epochs": 2, "length": 2}
            values |= {f"{prefix}{key}": value for key, value in some.items() if key in known}
        make(name, values).fit(small_corpus).save(place / name)
        found.append(place / name)
    return found


@pytest.fixture(scope="module")
def client(folders):
    with running(folders) as server, server.client() as found:
        yield found


@pytest.mark.parametrize("name", KINDS)
def test_it_is_searched_explained_and_examined(name, client, folders):
    question = "which apple has the mark fruit0"
    index = api.load(folders[list(KINDS).index(name)])
    hits = client.post("/v1/search", json={"query": question, "k": 5, "index": name, "explain": True}).json()
    assert [hit["doc_id"] for hit in hits["results"][0]["hits"]] == index.search(question, k=5).doc_ids
    first = hits["results"][0]["hits"][0]
    for doc_id in (first["doc_id"], "river/7"):
        told = client.post("/v1/explain", json={"query": question, "doc_id": doc_id, "k": 5, "index": name})
        assert told.status_code == 200, told.text
        told = told.json()
        assert told["found"] == (doc_id in index.search(question, k=5).doc_ids)
        assert (told["code"] is not None) == KINDS[name]
    health = client.get("/v1/health", params={"index": name}).json()
    assert (health["verdict"] is not None) == KINDS[name]
    tree = client.get("/v1/codes", params={"index": name, "depth": 2})
    assert tree.status_code == (200 if KINDS[name] else 409)
    if KINDS[name]:
        assert sum(child["documents"] for child in tree.json()["children"]) == 40


def test_codes_of_words_are_shown_as_words(client):
    hit = client.post("/v1/search", json={"query": "apple", "index": "glen", "k": 1}).json()["results"][0]["hits"][0]
    assert any(letter.isalpha() for letter in hit["code_text"])
    told = client.post("/v1/explain", json={"query": "apple", "index": "glen", "doc_id": hit["doc_id"]}).json()
    assert [level["name"] for level in told["levels"]] == hit["code_text"].split("-")
    tree = client.get("/v1/codes", params={"index": "glen"}).json()
    assert any(child["name"].isalpha() for child in tree["children"])
