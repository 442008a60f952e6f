"""Logs of users and items: three ways to write one log, one corpus; leave-one-out against a plain loop."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.corpus import Document, Query, load_corpus
from callslip.corpus.interactions import parse_time
from callslip.corpus.lines import Flaw
from callslip.errors import BadInput

name = st.text("abcdefgh123", min_size=1, max_size=3)
logs = st.dictionaries(name, st.lists(name, min_size=1, max_size=7), min_size=1, max_size=6)


def naive_split(log):
    """The queries and judgements of a log, one user at a time."""
    queries, judgements = {}, {"train": {}, "dev": {}, "test": {}}
    for user, items in log.items():
        items = list(items)
        for split in ("test", "dev", "train"):
            target = items.pop() if items else None
            if items:
                queries[f"{user}#{split}"] = Query(f"{user}#{split}", "", tuple(items))
                judgements[split][f"{user}#{split}"] = {target: 1}
    return queries, judgements


@settings(max_examples=60, deadline=None)
@given(log=logs, seed=st.integers(0, 99))
def test_four_ways_to_write_a_log_give_one_corpus(log, seed):
    queries, judgements = naive_split(log)
    events = [(user, item, 1000 + rank) for user, items in log.items() for rank, item in enumerate(items)]
    random.Random(seed).shuffle(events)
    texts = {
        "a.txt": ("s3rec", "\n".join(" ".join([user, *items]) for user, items in log.items())),
        "a.csv": (None, "\n".join(["user,item,time", *(f"{u},{i},{t}" for u, i, t in events)])),
        "a.inter": (None, "\n".join(["user_id:token\titem_id:token\tr:float\ttimestamp:float",
                                     *(f"{u}\t{i}\t5\t{t}" for u, i, t in events)])),
        "a.jsonl": (None, "\n".join(json.dumps({"user_id": u, "item_id": i, "ts": t}) for u, i, t in events)),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for file, (format, text) in texts.items():
            path = Path(folder, file)
            path.write_text(text)
            corpus = load_corpus(path, format=format)
            assert corpus.queries == queries
            assert corpus.judgements == judgements
            assert sorted(corpus.doc_ids) == sorted({item for items in log.values() for item in items})


def test_equal_times_and_no_times_keep_the_order_of_the_file(tmp_path):
    path = tmp_path / "a.csv"
    for header, tail in (("user,item,time", ",5"), ("user,item,note", ",x")):
        path.write_text("\n".join([header, *(f"u,{item}{tail}" for item in "dbca")]))
        assert load_corpus(path).queries["u#test"].history == ("d", "b", "c")


def test_columns_of_a_log(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("wer,was,wann\nu,b,2024-05-02\nu,a,2024-05-01T10:00:00+00:00\n")
    corpus = load_corpus(path, format="interactions", columns={"user": "wer", "item": "was", "time": "wann"})
    named = load_corpus(path, columns={"user": "wer", "item": "was", "time": "wann"})
    assert named.queries == corpus.queries  # who names the users' column has a log
    assert corpus.queries == {"u#test": Query("u#test", "", ("a",))}


def test_items_from_jsonl_and_from_recbole(tmp_path):
    (tmp_path / "interactions.txt").write_text("u 1 2 3 4\n")
    (tmp_path / "items.jsonl").write_text(
        "".join(f'{{"_id": {n}, "title": "T{n}", "brand": "b"}}\n' for n in range(1, 6))
    )
    corpus = load_corpus(tmp_path)  # a folder with a log, and the items beside it
    assert corpus.documents[4] == Document("5", "", "T5", {"brand": "b"})
    assert corpus.judgements["train"] == {"u#train": {"2": 1}}
    recbole = tmp_path / "beauty"
    recbole.mkdir()
    (recbole / "beauty.inter").write_text("user_id:token\titem_id:token\nu\t1\nu\t2\n")
    (recbole / "beauty.item").write_text(
        "item_id:token\ttitle:token_seq\tcategories:token_seq\tprice:float\n1\tRed lamp\tHome Light\t3.5\n2\tX\t\t\n"
    )
    corpus = load_corpus(recbole)
    assert corpus.documents[0] == Document("1", "Home Light", "Red lamp", {"categories": "Home Light", "price": 3.5})
    assert corpus.judgements["test"] == {"u#test": {"2": 1}}
    explicit = load_corpus(recbole / "beauty.inter", items=tmp_path / "items.jsonl")
    assert len(explicit) == 5


def test_bad_logs(tmp_path):
    (tmp_path / "items.jsonl").write_text('{"_id": "1"}\n{"_id": "2"}\n')
    path = tmp_path / "interactions.txt"
    for text, line, field in (
        ("u 1 2\nv 3\n", 2, "item"),
        ("u 1 2\nu 1\n", 2, "user"),
        ("u 1 2\nv\n", 2, None),
    ):
        path.write_text(text)
        with pytest.raises(BadInput) as refusal:
            load_corpus(tmp_path)
        assert (refusal.value.path, refusal.value.line, refusal.value.field) == (str(path), line, field)
        corpus = load_corpus(tmp_path, skip_bad=True)
        assert corpus.skipped.count == 1
        assert list(corpus.queries) == ["u#test"]
    path = tmp_path / "log.csv"
    path.write_text("user,item,time\nu,1,2\nu,2,soon\nu,3,inf\nu,2,3\n")
    with pytest.raises(BadInput, match=r"log\.csv:3: field 'time'.*'soon'"):
        load_corpus(path)
    corpus = load_corpus(path, skip_bad=True)
    assert (corpus.skipped.count, corpus.judgements["test"]) == (2, {"u#test": {"2": 1}})
    with pytest.raises(BadInput, match="no interaction log"):
        empty = tmp_path / "x"
        empty.mkdir()
        load_corpus(empty, format="interactions")


def test_times():
    assert parse_time("2001-09-09T01:46:40", "time") == parse_time("1e9", "time") == parse_time(10**9, "time")
    for bad in (None, True, "", "nan", [1]):
        with pytest.raises(Flaw):
            parse_time(bad, "time")
