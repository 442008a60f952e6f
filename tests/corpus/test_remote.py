"""A corpus behind a URL: read as the file on disk is, refused with a remedy otherwise."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

from callslip import api
from callslip.cli import app, register
from callslip.corpus.lines import is_url, without_secrets
from callslip.corpus.load import load_corpus
from callslip.corpus.stream import CorpusStream
from callslip.errors import BadInput, CallslipError, MissingExtra, Unsupported
from callslip.runtime import consent

fsspec = pytest.importorskip("fsspec")
zstandard = pytest.importorskip("zstandard")

ROWS = [{"_id": f"d{n}", "title": f"title {n}", "text": f"the text of document {n}"} for n in range(40)]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = ("_id,title,text\n" + "".join(f"{r['_id']},{r['title']},{r['text']}\n" for r in ROWS)).encode()
FILES = {
    "corpus.jsonl": JSONL,
    "corpus.jsonl.gz": gzip.compress(JSONL),
    "corpus.jsonl.zst": zstandard.compress(JSONL[:500]) + zstandard.compress(JSONL[500:]),
    "corpus.csv": CSV,
    "corpus.tsv.gz": gzip.compress(CSV.replace(b",", b"\t")),
}


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    for name, contents in FILES.items():
        system.pipe(f"/shelf/{name}", contents)
    yield system
    system.rm("/shelf", recursive=True)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_a_url_is_read_as_the_file(name, protocol, memory, tmp_path):
    (tmp_path / name).write_bytes(FILES[name])
    url = f"memory://shelf/{name}" if protocol == "memory" else f"file://{tmp_path / name}"
    corpus, local = load_corpus(url), load_corpus(tmp_path / name)
    assert corpus.documents == local.documents and corpus.name == "corpus" and len(corpus) == 40
    placed = list(CorpusStream(url).documents())
    assert [one.document for one in placed] == local.documents and placed[7].source == url and placed[7].line


def test_parquet(memory):
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    with memory.open("/shelf/corpus.parquet", "wb") as file:
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    assert [d.doc_id for d in load_corpus("memory://shelf/corpus.parquet")] == [row["_id"] for row in ROWS]


def test_fit_and_plan_of_a_url(memory, tmp_path):
    from typer.testing import CliRunner

    register()
    runner, out = CliRunner(), tmp_path / "index"
    said = runner.invoke(app, ["fit", "memory://shelf/corpus.jsonl.gz", "--method", "bm25", "--out", str(out)])
    assert said.exit_code == 0 and api.load(out).search("document 7").doc_ids
    settings = ["--set", "encoder=scratch"]
    said = runner.invoke(app, ["plan", "memory://shelf/corpus.csv", "--out", str(tmp_path / "job"), *settings])
    assert said.exit_code == 0, said.output


TOPICS = "<top>\n<num> Number: q1\n<title> document 7\n</top>\n<top>\n<num> q2\n<title> document 8\n</top>\n"
QUERIES = {
    "queries.jsonl": b'{"_id": "q1", "text": "document 7"}\n{"_id": "q2", "text": "document 8"}\n',
    "queries.tsv.gz": gzip.compress(b"q1\tdocument 7\nq2\tdocument 8\n"),
    "topics.txt": TOPICS.encode(),
}
JUDGED = {
    "train.tsv": b"query-id\tcorpus-id\tscore\nq1\td7\t1\nq2\td8\t2\n",
    "qrels.train.txt.gz": gzip.compress(b"q1 0 d7 1\nq2 0 d8 2\n"),
    "train.csv": b"q1,d7,1\nq2,d8,2\n",
    "train.jsonl": b"".join(
        json.dumps({"query-id": f"q{n}", "corpus-id": f"d{n + 6}", "score": n}).encode() + b"\n" for n in (1, 2)
    ),
}


@pytest.mark.parametrize("protocol", ["memory", "file"])
@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("qrels", JUDGED)
def test_queries_and_judgements_behind_urls(protocol, queries, qrels, memory, tmp_path):
    (tmp_path / "train").mkdir()  # the split is in the name of the file, not in that of a folder
    for name, contents in (QUERIES | JUDGED).items():
        memory.pipe(f"/shelf/dev/{name}", contents)
        (tmp_path / "train" / name).write_bytes(contents)
    place = "memory://shelf/dev" if protocol == "memory" else f"file://{tmp_path}/train"
    given = {"queries": f"{place}/{queries}", "qrels": f"{place}/{qrels}"}
    corpus = load_corpus("memory://shelf/corpus.jsonl", **given)
    assert {query_id: query.text for query_id, query in corpus.queries.items()} == {
        "q1": "document 7",
        "q2": "document 8",
    }
    assert corpus.judgements == {"train": {"q1": {"d7": 1}, "q2": {"d8": 2}}}
    stream = CorpusStream("memory://shelf/corpus.jsonl", **given)
    assert stream.judged({doc_id: doc_id for doc_id in corpus.doc_ids}) == (corpus.queries, corpus.judgements)


def test_commands_take_urls_of_queries_and_judgements(memory, tmp_path):
    from typer.testing import CliRunner

    register()
    for name, contents in (QUERIES | JUDGED).items():
        memory.pipe(f"/shelf/{name}", contents)
    given = ["--queries", "memory://shelf/queries.jsonl", "--qrels", "memory://shelf/train.tsv"]
    index, job, url = str(tmp_path / "index"), tmp_path / "job", "memory://shelf/corpus.jsonl"
    for command in (
        ["fit", url, *given, "--method", "memory", "--set", "encoder=scratch", "--out", index],
        ["plan", url, *given, "--set", "encoder=scratch", "--out", str(job)],
        ["evaluate", index, url, *given, "--split", "train", "--json", str(tmp_path / "report.json")],
    ):
        said = CliRunner().invoke(app, command)
        assert said.exit_code == 0, (command, said.output, said.exception)
    assert len(api.load(index).asked_texts) == 2
    assert len(json.loads((job / "judged.json").read_text())["queries"]) == 2
    assert json.loads((tmp_path / "report.json").read_text())["queries"] == 2


def test_wrong_urls_of_queries_and_judgements_are_named_without_their_secrets(memory):
    memory.pipe("/shelf/train.tsv", b"q1\td7\t1\nq1\tnobody\t1\n")
    memory.pipe("/shelf/empty.jsonl", b"\n")
    memory.pipe("/shelf/queries.jsonl", QUERIES["queries.jsonl"])
    shelf, secret = "memory://me:secret@shelf", "?sig=abc"
    for queries, qrels, problem in (
        ("absent.jsonl", "train.tsv", "absent.jsonl: no such file"),
        ("empty.jsonl", "train.tsv", "empty.jsonl: no queries"),
        ("queries.jsonl", "absent.tsv", "absent.tsv: no such file"),
        ("queries.jsonl", "train.tsv", r"train.tsv:2: .*no document has the id 'nobody'"),
    ):
        with pytest.raises(BadInput, match=problem) as caught:
            load_corpus(
                "memory://shelf/corpus.jsonl", queries=f"memory://shelf/{queries}", qrels=f"memory://shelf/{qrels}"
            )
        assert "memory://shelf/" in str(caught.value)
    memory.pipe(f"{shelf}/empty.jsonl{secret}", b"\n")
    with pytest.raises(BadInput, match="no queries") as caught:
        load_corpus("memory://shelf/corpus.jsonl", queries=f"{shelf}/empty.jsonl{secret}")
    memory.rm(f"{shelf}/empty.jsonl{secret}")
    assert "secret" not in str(caught.value) and "sig=" not in str(caught.value)


def test_what_cannot_be_read_is_said_with_a_remedy(memory, monkeypatch):
    memory.pipe("/shelf/damaged.jsonl.zst", FILES["corpus.jsonl.zst"][:200])
    memory.pipe("/shelf/corrupt.jsonl.zst", FILES["corpus.jsonl.zst"][:60] + b"\xff" * 90)
    memory.pipe("/shelf/wrong.jsonl.zst", JSONL)
    memory.pipe("/shelf/line.jsonl", JSONL + b"no JSON\n")
    cases = {
        "memory://shelf/absent.jsonl": "no such file",
        "nope://shelf/corpus.jsonl": "Protocol not known",
        "memory://shelf/damaged.jsonl.zst": "truncated",
        "memory://shelf/corrupt.jsonl.zst": "cannot be read",
        "memory://shelf/wrong.jsonl.zst": "not Zstandard",
        "memory://shelf/line.jsonl": ":41:",
        "memory://shelf/corpus": "does not show the format",
    }
    for url, problem in cases.items():
        with pytest.raises(BadInput, match=problem) as caught:
            load_corpus(url)
        assert caught.value.remedy and url in caught.value.problem
    with pytest.raises(Unsupported, match="copy the corpus") as refused:
        load_corpus("memory://shelf/corpus.csv", format="beir")
    assert "beir" in refused.value.problem
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(BadInput, match="s3fs") as caught:
        load_corpus("s3://bucket/corpus.jsonl")
    assert "Install" in caught.value.remedy


def test_errors_of_a_protocol_while_reading_name_the_line(memory, monkeypatch):
    from fsspec.implementations.memory import MemoryFile

    def broken(self, *_):
        raise RuntimeError("the connection was lost")

    monkeypatch.setattr(MemoryFile, "read", broken)
    with pytest.raises(BadInput, match="the connection was lost"):
        load_corpus("memory://shelf/corpus.jsonl")


def test_without_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtra, match="URL") as caught:
        load_corpus("memory://shelf/corpus.jsonl")
    assert "callslip[remote]" in caught.value.remedy
    (tmp_path / "corpus.jsonl.zst").write_bytes(FILES["corpus.jsonl.zst"])
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=r"\.zst"):
        load_corpus(tmp_path / "corpus.jsonl.zst")


def test_a_url_of_a_manifest_is_not_read_without_consent(memory, monkeypatch):
    url = "memory://shelf/corpus.jsonl"
    monkeypatch.setattr(consent, "_from_manifests", {url})
    with pytest.raises(CallslipError, match="manifest"):
        load_corpus(url)
    monkeypatch.setenv(consent.HUB, url)
    assert len(load_corpus(url)) == 40


def test_secrets_of_a_url_are_not_shown():
    assert without_secrets("https://me:secret@host/a.jsonl?sig=abc#x") == "https://host/a.jsonl"
    with pytest.raises(BadInput) as caught:
        load_corpus("nope://me:secret@host/a.jsonl?sig=abc")
    assert "secret" not in str(caught.value) and "sig=" not in str(caught.value)


def test_what_is_a_url(tmp_path):
    assert is_url("s3://bucket/x") and is_url("simplecache::s3://bucket/x") and is_url("https://host/x")
    assert not any(map(is_url, ["demo", "ir_datasets:x", "C:/x", "/a/b", "a://", tmp_path]))
