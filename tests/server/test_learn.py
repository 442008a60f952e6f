"""POST /v1/learn, and how the page's answers look for codes of which only the first tokens form a tree."""

from __future__ import annotations

import shutil

import pytest
from server.conftest import ADMIN, SEARCH, WRITE, running

from callslip import api
from callslip.methods import make

STRANGE = "who ate my sandwich"


@pytest.fixture(scope="module")
def tied_folder(small_corpus, tmp_path_factory):
    path = tmp_path_factory.mktemp("tied") / "tied"
    make("tied-residual", {"encoder": "scratch"}).fit(small_corpus).save(path)
    return path


@pytest.fixture
def tied(tied_folder, words_folder, tmp_path):
    with running([shutil.copytree(tied_folder, tmp_path / "tied"), words_folder]) as found:
        yield found


def learned(client, *pairs, **more):
    queries = [{"query": query, "doc_ids": doc_ids} for query, doc_ids in pairs]
    return client.post("/v1/learn", json={"queries": queries} | more)


def first(client, query=STRANGE):
    answer = client.post("/v1/search", json={"query": query, "explain": True})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]["hits"][0]


def test_it_is_found_at_once_and_durable(tied, tmp_path):
    with tied.client(WRITE) as writer:
        body = writer.post("/v1/search", json={"query": STRANGE, "k": 50}).json()
        wanted = body["results"][0]["hits"][-1]["doc_id"]
        answer = learned(writer, (STRANGE, [wanted]), (f" {STRANGE} ", [wanted]))
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["queries"], told["answers"]) == (1, 1)
        hit = first(writer)
        assert hit["doc_id"] == wanted
        assert hit["why"]["earlier_query"] == STRANGE
        assert learned(writer, (STRANGE, [wanted])).json()["answers"] == 0
        why = writer.post("/v1/explain", json={"query": STRANGE, "doc_id": wanted}).json()
        assert why["verdict"] == f"Found at rank 1, by this earlier question: {STRANGE}"
        assert api.load(tmp_path / "tied").search(STRANGE).doc_ids[0] == wanted


def test_another_process_that_learns_is_seen_by_the_server(tied, tmp_path):
    with tied.client(SEARCH) as client:
        answer = client.post("/v1/search", json={"query": STRANGE, "k": 50}).json()
        wanted = answer["results"][0]["hits"][-1]["doc_id"]
        api.learn(tmp_path / "tied", [(STRANGE, wanted)])
        assert first(client)["doc_id"] == wanted


def test_only_writers_may_teach(tied):
    for key, status in ((None, 401), (SEARCH, 403), (ADMIN, 403)):
        with tied.client(key) as client:
            assert learned(client, (STRANGE, ["fruit/0"])).status_code == status


def test_bad_requests(tied):
    with tied.client(WRITE) as writer:
        assert learned(writer, (STRANGE, ["fruit/0"]), (STRANGE, ["nobody"])).status_code == 404
        for pairs in ([], [("  ", ["fruit/0"])], [(STRANGE, [])], [("x" * 10**5, ["fruit/0"])]):
            assert learned(writer, *pairs).status_code == 422
        refused = learned(writer, (STRANGE, ["fruit/0"]), index="words")
        assert refused.status_code == 400
        assert "tied-residual" in refused.json()["error"]["remedy"]
        assert "earlier_query" not in first(writer)["why"] or first(writer)["why"]["earlier_query"] != STRANGE


def test_codes_are_readable_and_the_tree_has_its_levels_only(tied):
    with tied.client(SEARCH) as client:
        facts = client.get("/v1/indexes").json()["indexes"][0]
        assert facts["tree"] == 1
        assert facts["length"] > 8
        hit = first(client, "apple")
        assert hit["code_text"] == f"{hit['code'][0]}-…"
        tree = client.get("/v1/codes").json()
        assert tree["length"] == 1
        assert all(child["end"] for child in tree["children"])
        bucket = client.get("/v1/codes/documents", params={"prefix": str(hit["code"][0])}).json()
        assert hit["doc_id"] in [document["doc_id"] for document in bucket["documents"]]
        assert bucket["documents"][0]["code_text"] == f"{hit['code'][0]}-…"
        document = client.get(f"/v1/documents/{hit['doc_id']}").json()
        assert document["code"] == hit["code"]
        assert document["code_text"] == hit["code_text"]
        why = client.post("/v1/explain", json={"query": "apple", "doc_id": hit["doc_id"]}).json()
        assert len(why["levels"]) == 1
        plots = [plot["name"] for plot in client.get("/v1/health").json()["plots"]]
        assert [name for name in plots if name.startswith("usage")] == ["usage-1"]
