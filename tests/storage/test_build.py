"""An index that is built of a job with its documents in PostgreSQL."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from callslip import api
from callslip.cli import app, register
from callslip.corpus.documents import Document
from callslip.errors import CallslipError
from callslip.storage.check import check

ASKED = ["which violin has the mark music3", "a river"]


@pytest.fixture
def job(small_corpus, tmp_path):
    lines = (json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text}) for d in small_corpus)
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    settings = {"encoder": "scratch:dim=32", "length": 12}
    api.plan(tmp_path / "corpus.jsonl", tmp_path / "job", settings=settings, shard_rows=15)
    api.encode(tmp_path / "job")
    return tmp_path / "job"


def hits(index):
    return [[(hit.doc_id, hit.score) for hit in one] for one in index.search_batch(ASKED, k=5)]


def test_documents_are_built_into_a_database(job, postgres, tmp_path):
    address, _ = postgres
    expected = hits(api.build(job, tmp_path / "plain"))
    assert hits(api.build(job, tmp_path / "shared", documents=address)) == expected
    register()
    said = CliRunner().invoke(app, ["build", str(job), "--out", str(tmp_path / "index"), "--documents", address])
    assert said.exit_code == 0, (said.output, said.exception)
    store = json.loads((tmp_path / "index" / "manifest.json").read_text())["store"]
    assert store == {"kind": "postgres", "address": address}
    assert not list((tmp_path / "index").glob("*.sqlite"))
    index = api.load(tmp_path / "index", store=address)
    assert hits(index) == expected
    index.add([Document("new", "a river of quartz")])
    assert "new" in api.load(tmp_path / "index", store=address).search("quartz", k=3).doc_ids
    assert check(tmp_path / "index").documents == 41


def test_a_database_that_cannot_be_reached_is_refused_before_anything_is_built(job, tmp_path):
    pytest.importorskip("psycopg")
    with pytest.raises(CallslipError, match="database cannot take documents") as refused:
        api.build(job, tmp_path / "index", documents="postgresql://127.0.0.1:1/nothing")
    assert refused.value.remedy and not (tmp_path / "index").exists()
