"""Logs of answered queries: JSONL, TSV, CSV, and queries with judgements."""

from __future__ import annotations

import json

import pytest

from callslip.corpus.answers import as_answers, read_answers, read_judged
from callslip.corpus.lines import Intake
from callslip.errors import BadInput

KNOWN = {"a1": 0, "a2": 1, "b": 2, "7": 3, "report-7": 4}


def written(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_lines_with_the_same_query_are_merged(tmp_path):
    log = written(
        tmp_path / "log.jsonl",
        {"query": "q", "doc_id": "a1"},
        {"query": " q ", "doc_ids": ["b", "a1"]},
        {"question": "other", "doc_id": 7, "time": 3},
    )
    assert read_answers(log, Intake(), KNOWN) == {"q": ["a1", "b"], "other": ["7"]}


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("log.tsv", ["q\ta1", "q\tb"]),
        ("log.tsv", ["query\tdoc_id", "q\ta1", "q\tb"]),
        ("log.tsv", ["doc_id\twhen\tquery", "a1\tnow\tq", "b\tlater\tq"]),
        ("log.csv", ["query,doc_id", "q,a1", '"q",b']),
    ],
)
def test_tables(tmp_path, name, lines):
    assert read_answers(written(tmp_path / name, *lines), Intake(), KNOWN) == {"q": ["a1", "b"]}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            {"query": "q", "doc_id": "report-8"},
            "the index has no document 'report-8'; the nearest id there is 'report-7'",
        ),
        ({"query": "q", "doc_ids": ["b", "zzzz"]}, "field 'doc_ids': the index has no document 'zzzz'"),
        ({"query": "q"}, "field 'doc_id': is missing"),
        ({"doc_id": "b"}, "field 'query': is missing"),
        ({"query": " ", "doc_id": "b"}, "field 'query': the query is empty"),
        ({"query": 3, "doc_id": "b"}, "field 'query': must be text"),
        ({"query": "q", "doc_ids": []}, "field 'doc_ids': must be a list of ids, not an empty one"),
        ({"query": "q", "doc_ids": "b"}, "field 'doc_ids': must be a list of ids, not text"),
        ("{", "invalid JSON"),
    ],
)
def test_bad_lines_name_file_line_and_field(tmp_path, line, problem):
    log = written(tmp_path / "log.jsonl", {"query": "q", "doc_id": "b"}, line)
    with pytest.raises(BadInput) as refused:
        read_answers(log, Intake(), KNOWN)
    assert f"{log}:2: " in refused.value.problem
    assert problem in refused.value.problem
    assert "--skip-bad" in refused.value.remedy
    intake = Intake(skip_bad=True)
    assert read_answers(log, intake, KNOWN) == {"q": ["b"]}
    assert intake.skipped.count == 1


def test_queries_with_judgements(tmp_path):
    queries = written(tmp_path / "q.jsonl", {"_id": "1", "text": "one"}, {"_id": "2", "text": "two"})
    qrels = written(tmp_path / "qrels.tsv", "query-id\tcorpus-id\tscore", "1\ta1\t1", "1\tb\t0", "2\ta2\t2")
    assert read_judged(queries, qrels, Intake(), KNOWN) == {"one": ["a1"], "two": ["a2"]}
    written(qrels, "1\t0\tunknown\t1")
    with pytest.raises(BadInput, match="unknown"):
        read_judged(queries, qrels, Intake(), KNOWN)


def test_pairs_and_mappings():
    assert as_answers([("q", "a"), ("q", ["b", "a"])]) == as_answers({" q": ["a", "b"]}) == {"q": ["a", "b"]}
