"""Bad input is refused with file, line, field and remedy, or skipped and counted; nothing else escapes."""

from __future__ import annotations

import gzip
import json
import random
import re
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from callslip.corpus import Document, load_corpus, load_judgements, load_queries
from callslip.corpus import lines as lines_module
from callslip.corpus.lines import Intake
from callslip.corpus.rows import read_documents, read_rows
from callslip.errors import BadInput, CallslipError

GOOD = b'{"_id": "1", "text": "good"}'
AFTER = b'{"_id": "9", "text": "also good"}'

BAD_LINES = {
    "invalid UTF-8": (b'{"_id": "2", "text": "\xff"}', "not valid UTF-8: byte 0xff at position 23", None),
    "UTF-8 of a surrogate": (b'{"_id": "2", "text": "\xed\xa0\x80"}', "not valid UTF-8", None),
    "escaped lone surrogate": (b'{"_id": "2", "text": "\\ud800"}', "lone surrogate, U\\+D800", "text"),
    "surrogate in an id": (b'{"_id": "\\udc00", "text": ""}', "lone surrogate", "_id"),
    "surrogate in metadata": (b'{"_id": "2", "text": "", "x": [{"y": "\\udfff"}]}', "lone surrogate", "x"),
    "surrogate in a key": (b'{"_id": "2", "text": "", "\\udfff": 1}', "lone surrogate", "metadata"),
    "NUL": (b'{"_id": "2", "text": "a\x00"}', "NUL character", None),
    "escaped NUL": (b'{"_id": "2", "text": "a\\u0000"}', "NUL character", "text"),
    "duplicate id": (GOOD, "duplicate id '1'", "doc_id"),
    "duplicate id as a number": (b'{"_id": 1, "text": ""}', "duplicate id '1'", "doc_id"),
    "empty id": (b'{"_id": "", "text": ""}', "id is empty", "_id"),
    "blank id": (b'{"_id": " \\t", "text": ""}', "id is empty", "_id"),
    "long id": (b'{"_id": "' + b"x" * 513 + b'", "text": ""}', "513 characters; 512 are allowed", "_id"),
    "null id": (b'{"_id": null, "text": ""}', "must be an id.*null", "_id"),
    "true as id": (b'{"_id": true, "text": ""}', "must be an id.*boolean", "_id"),
    "no id": (b'{"text": "x"}', "missing; the line has 'text'", "_id"),
    "no text": (b'{"_id": "2"}', "missing", "text"),
    "null text": (b'{"_id": "2", "text": null}', "must be text, not null", "text"),
    "number as text": (b'{"_id": "2", "text": 3}', "must be text, not a number", "text"),
    "list as title": (b'{"_id": "2", "text": "", "title": []}', "must be text, not a list", "title"),
    "half a line": (b'{"_id": "2", "te', "invalid JSON", None),
    "two objects": (b'{"_id": "2", "text": ""}{}', "invalid JSON", None),
    "an array": (b'["2", "x"]', "expected a JSON object, found a list", None),
    "NaN": (b'{"_id": "2", "text": "", "x": NaN}', "NaN is not JSON", None),
    "infinity": (b'{"_id": "2", "text": "", "x": 1e999}', "not a finite number", "x"),
    "huge integer": (b'{"_id": ' + b"1" * 5000 + b', "text": ""}', "invalid JSON", None),
    "too deep": (
        b'{"_id": "2", "text": "", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "nested too deeply",
        None,
    ),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_refused_or_counted(tmp_path, name):
    bad, problem, field = BAD_LINES[name]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([GOOD, bad, AFTER]))
    with pytest.raises(BadInput, match=problem) as refusal:
        load_corpus(path)
    assert (refusal.value.path, refusal.value.line, refusal.value.field) == (str(path), 2, field)
    assert f"{path}:2" in str(refusal.value)
    assert "--skip-bad" in refusal.value.remedy
    str(refusal.value).encode()  # can be printed
    corpus = load_corpus(path, skip_bad=True)
    assert corpus.doc_ids == ["1", "9"]
    assert corpus.skipped.count == 1
    assert f"{path}:2" in corpus.skipped.examples[0]


BAD_ROWS = {
    "too few cells": ("a.csv", "id,text\n1,x\n2\n9,z\n", 3),
    "too many cells": ("a.csv", "id,text\n1,x\n2,y,y\n9,z\n", 3),
    "too few cells (TSV)": ("a.tsv", "id\ttext\n1\tx\n2\n9\tz\n", 3),
    "stray quote": ("a.csv", 'id,text\n1,x\n2,"y"y\n9,z\n', 3),
    "quote never closed": ("a.csv", 'id,text\n1,x\n2,"y\n9,z\n', 3),
    "empty id": ("a.csv", "id,text\n1,x\n,y\n9,z\n", 3),
    "bare carriage return": ("a.csv", "id,text\n1,x\n2,y\ry\n9,z\n", 3),
    "after a record of two lines": ("a.csv", 'id,text\n1,"x\nx"\n2\n9,z\n', 4),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_of_a_table_costs_that_row_alone(tmp_path, name):
    file, text, line = BAD_ROWS[name]
    path = tmp_path / file
    path.write_bytes(text.encode())
    with pytest.raises(BadInput) as refusal:
        load_corpus(path)
    assert refusal.value.line == line
    corpus = load_corpus(path, skip_bad=True)
    assert corpus.doc_ids == ["1", "9"]
    assert corpus.skipped.count == 1


def test_a_bad_line_inside_a_quoted_record_spoils_that_record(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\n1,"x\n\xff\nx"\n9,z\n')
    corpus = load_corpus(path, skip_bad=True)
    assert corpus.doc_ids == ["9"]
    assert corpus.skipped.count == 3  # the byte, the opening line, and the line that is left over


def test_headers_that_cannot_be_used(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,body of it\n1,x\n")
    with pytest.raises(BadInput, match=r"a\.csv:1: field 'text': missing") as refusal:
        load_corpus(path)
    assert "columns=" in refusal.value.remedy
    path.write_text("id,text,text\n1,x,y\n")
    with pytest.raises(BadInput, match="duplicate column name"):
        load_corpus(path, skip_bad=True)


def test_judgements_of_unknown_ids_and_broken_grades(tmp_path):
    (tmp_path / "corpus.jsonl").write_bytes(GOOD + b"\n" + AFTER)
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "x"}')
    (tmp_path / "qrels").mkdir()
    path = tmp_path / "qrels" / "test.tsv"
    bad = {
        "q\t1\tx": "grade", "q\t1\t0.5": "grade", "q\t1\tinf": "grade", "q\t1\t1e99": "grade",
        "q\t1\t0": "grade", "q\t404\t1": "doc_id", "p\t1\t1": "query_id", "\t1\t1": "query_id",
        "q\t1": None, "q\t0\t1\t1": None,
    }  # fmt: skip
    for line, field in bad.items():
        path.write_text(f"query-id\tcorpus-id\tscore\nq\t1\t1\n{line}\nq\t9\t1\n")
        with pytest.raises(BadInput) as refusal:
            load_corpus(tmp_path)
        assert (refusal.value.path, refusal.value.line, refusal.value.field) == (str(path), 3, field)
        corpus = load_corpus(tmp_path, skip_bad=True)
        assert corpus.judgements == {"test": {"q": {"1": 1, "9": 1}}}
        assert corpus.skipped.count == 1
    path.write_text("q\t1\t1\nq\t1\t1\n")  # said twice, but no contradiction
    assert load_corpus(tmp_path).judgements == {"test": {"q": {"1": 1}}}


def test_truncated_gzip_keeps_what_was_read(tmp_path):
    rng = random.Random(0)
    rows = [json.dumps({"_id": str(i), "text": rng.randbytes(20).hex()}) for i in range(2000)]
    packed = gzip.compress("\n".join(rows).encode())
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(BadInput, match="truncated") as refusal:
        load_corpus(path)
    assert "--skip-bad" in refusal.value.remedy
    corpus = load_corpus(path, skip_bad=True)
    assert corpus.skipped.count == 1
    assert 500 < len(corpus) < 1500
    assert corpus.documents == [
        Document(**{"doc_id": r["_id"], "text": r["text"]}) for r in map(json.loads, rows[: len(corpus)])
    ]
    assert refusal.value.line == len(corpus) + 1
    path.write_bytes(packed[:1000] + b"\x00garbage" + packed[1010:])
    assert load_corpus_or_none(path) is None
    path.write_bytes(b"not gzip")
    with pytest.raises(BadInput, match="not gzip"):
        load_corpus(path, skip_bad=True)


def load_corpus_or_none(path, **settings):
    try:
        return load_corpus(path, **settings)
    except CallslipError:
        return None


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf", b"broken", b"id\n"])
@pytest.mark.parametrize("file", ["a.jsonl", "a.csv", "a.tsv", "a.inter"])
def test_an_empty_corpus_is_an_error_even_when_skipping(tmp_path, content, file):
    path = tmp_path / file
    path.write_bytes(content)
    with pytest.raises(BadInput, match=re.escape(str(path))):
        load_corpus(path, skip_bad=True)


def test_empty_queries_and_judgements_are_errors(tmp_path):
    path = tmp_path / "empty.tsv"
    path.write_text("")
    for load in (load_queries, load_judgements):
        with pytest.raises(BadInput, match=r"empty\.tsv"):
            load(path)
        with pytest.raises(BadInput, match="no such file"):
            load(tmp_path / "nowhere")
        with pytest.raises(BadInput, match="folder"):
            load(tmp_path)


def test_empty_text_with_an_id_is_a_document(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"_id": "1", "text": ""}')
    assert load_corpus(path).documents == [Document("1", "")]


def naive_verdict(raw: bytes, seen: set[str]) -> bool:
    """Whether a line is a good document, the plain way."""
    try:
        row = json.loads(raw.decode("utf-8"), parse_constant=lambda name: 1 / 0)
        json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError, ZeroDivisionError):
        return False
    if not isinstance(row, dict) or "\\u0000" in json.dumps(row):
        return False
    doc_id, title = row.get("_id", row.get("id")), row.get("title", "")
    if isinstance(doc_id, bool) or not isinstance(doc_id, (str, int)) or not str(doc_id).strip() or str(doc_id) in seen:
        return False
    if not isinstance(row.get("text"), str) or not isinstance(title, (str, type(None))):
        return False
    seen.add(str(doc_id))
    return True


def malformed_lines(count: int) -> list[bytes]:
    rng = random.Random(5)
    nasty = [
        b"\xff",
        b"\x00",
        b"\\ud800",
        b"\\u0000",
        b"null",
        b"{",
        b"}",
        b'"',
        b"\\",
        b"",
        b"NaN",
        b"[1]",
        b"\xc3",
        b"1e999",
        b"7",
    ]
    lines = []
    for number in range(count):
        line = bytearray(json.dumps({"_id": f"d{number % 9000}", "title": "t", "text": "some text", "y": 1}).encode())
        for _ in range(rng.randint(0, 2)):
            at = rng.randrange(len(line))
            line[at : at + rng.randint(0, 4)] = rng.choice(nasty)
        lines.append(bytes(line).replace(b"\n", b""))
    return lines


def test_ten_thousand_malformed_lines_are_each_taken_or_counted(tmp_path):
    raw = malformed_lines(10_000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(raw))
    intake = Intake(skip_bad=True)
    intake.skipped.keep = len(raw)
    documents = read_documents(path, read_rows(path, "jsonl", intake), intake)
    seen: set[str] = set()
    bad = {number for number, line in enumerate(raw, 1) if not naive_verdict(line, seen)}
    assert {document.doc_id for document in documents} == seen
    assert intake.skipped.count == len(bad) > 3000
    assert {int(reason.removeprefix(f"{path}:").split(":")[0]) for reason in intake.skipped.examples} == bad


SNIPPETS = [
    b'{"_id": "1", "text": "a"}\n', b'{"_id": ', b"\n", b"\r", b'"', b",", b"\t", b"user,item,time\n",
    b"id,text\n", b"user_id:token\titem_id:token\n", b"1 2 3\n", b"a\tb\n", b"<top>", b"</top>", b"<num>",
    b"<title>", b"<![", b"<h1>", b"<script>", b"&#xd800;", b"# t\n", b"---\n", b"====\n", b"```\n",
    b"\xef\xbb\xbf", b"\x1f\x8b\x08", b"\x00", b"\xff", b"query-id\tcorpus-id\tscore\n", b"1\t1\t1\n",
    b"[" * 2000, b"9" * 400, b"\xe2\x80\xa8", b"1e400",
]  # fmt: skip
garbage = st.binary(max_size=300) | st.lists(st.sampled_from(SNIPPETS) | st.binary(max_size=8), max_size=25).map(
    b"".join
)
FILES = [
    "a.jsonl",
    "a.csv",
    "a.tsv",
    "a.inter",
    "a.txt",
    "a.md",
    "a.rst",
    "a.html",
    "a.jsonl.gz",
    "corpus.jsonl",
]


@settings(max_examples=150, deadline=None)
@given(raw=garbage, zipped=st.booleans(), cut=st.integers(0, 8), skip_bad=st.booleans())
@example(raw=b"<![foo[", zipped=False, cut=0, skip_bad=False)
def test_garbage_raises_nothing_but_our_errors(raw, zipped, cut, skip_bad):
    if zipped:
        raw = gzip.compress(raw, mtime=0)
        raw = raw[: len(raw) - cut]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in FILES:
            path = folder / file
            path.write_bytes(raw)
            load_corpus_or_none(path, skip_bad=skip_bad)
            if file == "a.csv":
                load_corpus_or_none(path, format="s3rec", skip_bad=skip_bad)
            if file in ("a.jsonl", "a.csv", "a.tsv", "a.txt"):
                for load in (load_queries, load_judgements):
                    try:
                        load(path, skip_bad=skip_bad)
                    except CallslipError as error:
                        str(error).encode()
        load_corpus_or_none(folder, skip_bad=skip_bad)
        (folder / "corpus.jsonl").unlink()
        load_corpus_or_none(folder, format="folder", skip_bad=skip_bad)


def test_a_line_beyond_the_limit_is_one_bad_line(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "MAX_LINE", 1000)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([GOOD, b'{"_id": "2", "text": "' + b"x" * 3_000_000 + b'"}', AFTER]))
    with pytest.raises(BadInput, match=r"a\.jsonl:2: the line is longer than 1000 bytes"):
        load_corpus(path)
    assert load_corpus(path, skip_bad=True).doc_ids == ["1", "9"]


def traced(load):
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        kept = load()
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return kept, now - before, peak - before


@pytest.mark.parametrize("file", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv"])
def test_loading_holds_the_corpus_once(tmp_path, file):
    rows = [(f"doc-{number}", f"word {number} " * 8) for number in range(10_000)]
    if "json" in file:
        text = "\n".join(json.dumps({"_id": doc_id, "text": words}) for doc_id, words in rows)
    else:
        joint = "," if file == "a.csv" else "\t"
        text = "\n".join([f"id{joint}text", *(f"{doc_id}{joint}{words}" for doc_id, words in rows)])
    path = tmp_path / file
    path.write_bytes(gzip.compress(text.encode(), 1) if file.endswith("gz") else text.encode())
    corpus, stays, peak = traced(lambda: load_corpus(path))
    assert len(corpus) == len(rows)
    assert stays > sum(len(doc_id) + len(words) for doc_id, words in rows)
    assert peak < 1.5 * stays


def test_a_line_of_fifty_megabytes_takes_a_few_copies(tmp_path):
    size = 50_000_000
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"_id": "1", "text": "' + b"x" * size + b'"}\n' + AFTER)
    corpus, stays, peak = traced(lambda: load_corpus(path))
    assert len(corpus.documents[0].text) == size <= stays
    assert peak < 5 * size
