"""Learning interactions without a fit: counted as if they had been in the log, found at once, durable."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from small_log import small_log
from typer.testing import CliRunner

import callslip
from callslip import api
from callslip.cli import app
from callslip.corpus.documents import Query
from callslip.corpus.sequences import Sequences
from callslip.errors import CallslipError, Unsupported
from callslip.methods import make
from callslip.storage.check import check

NAMES = ["tied-log", "seqrules", "transitions", "item-knn", "popularity"]
NEW = {"new user": ["soap-1", "kite-6", "lamp-3"], "u3": ["kite-6"]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Every method, fitted and saved once."""
    path = tmp_path_factory.mktemp("learning")
    for name in NAMES:
        make(name, {"encoder": "scratch", "factors": 8, "length": 12} if name == "tied-log" else {}).fit(
            small_log()
        ).save(path / name)
    return path


@pytest.fixture
def opened(saved, tmp_path):
    def open_copy(name: str):
        return api.load(shutil.copytree(saved / name, tmp_path / name))

    return open_copy


def dense(evidence) -> np.ndarray:
    rules = getattr(evidence, "rules", evidence)
    return rules.toarray() if hasattr(rules, "toarray") else np.asarray(rules)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_counted_as_if_it_had_been_in_the_log(name, opened, tmp_path):
    """Against the method's own count of the longer sequences; found at once, by others, and after opening again."""
    index, log = opened(name), small_log()
    other = api.load(tmp_path / name)
    before = index.search(Query("q", "", ("soap-1", "kite-6")), k=48)
    whole = log.sequences()
    histories = {user: rows.tolist() for user, rows in zip(whole.users, whole.each(), strict=True)}
    added = 0
    for user, items in NEW.items():
        had = histories.setdefault(user, [])
        fresh = [log.rows()[item] for item in items if log.rows()[item] not in had]
        had += fresh
        added += len(fresh)
    done = callslip.learn(index, NEW)
    assert (done.queries, done.answers, done.remembered, done.users) == (1, added, len(histories), True)
    expected = index.count(Sequences.of(histories), len(log))
    asked = [Query("q", "", ("soap-1", "kite-6")), Query("q", "", ("soap-1",))]
    hits = index.search_batch(asked, k=48)
    assert hits[0].scores != pytest.approx(before.scores)
    for same in (index, other, api.load(tmp_path / name)):
        same.refresh(now=True)
        np.testing.assert_allclose(dense(getattr(same, same.evidence)), dense(expected))
        assert [h.doc_ids for h in same.search_batch(asked, k=48)] == [h.doc_ids for h in hits]
        assert same.users.query("new user").history == tuple(NEW["new user"])
    check(tmp_path / name)
    assert callslip.learn(index, NEW).answers == 0  # the same again
    index.delete(["lamp-3"])
    index.compact()
    assert api.load(tmp_path / name).learn_answers({"u5": ["tea-1"]}).users


def test_a_rule_that_was_learned_leads_to_its_item(opened):
    index = opened("seqrules")
    callslip.learn(index, {f"n{n}": ["soap-1", "kite-6"] for n in range(40)})
    assert index.search(Query("q", "", ("soap-1",)), k=1).doc_ids == ["kite-6"]


def test_items_that_were_held_out_are_counted_when_the_log_itself_is_learned(opened):
    index, log = opened("popularity"), small_log()
    whole = {user: list(items) for user, items in index.users.histories.items()}
    callslip.learn(index, whole)
    held_out = {u: [i for i in items if i not in index.counted.histories[u]] for u, items in whole.items()}
    assert not any(held_out.values())
    assert index.counts.sum() > log.sequences().counts(len(log)).sum()


def test_mistakes_change_nothing_and_trained_methods_refuse(opened, tmp_path):
    index = opened("item-knn")
    near = dense(index.near)
    with pytest.raises(CallslipError, match="nobody"):
        callslip.learn(index, {"u1": ["soap-1", "nobody"]})
    np.testing.assert_array_equal(dense(index.near), near)
    sasrec = make("sasrec", {"encoder": "scratch", "epochs": 0, "history_width": 16}).fit(small_log(users=24))
    with pytest.raises(Unsupported, match="trained") as refusal:
        callslip.learn(sasrec, NEW)
    assert "seqrules" in refusal.value.remedy


def test_if_it_cannot_be_written_the_index_is_as_before(opened, monkeypatch):
    index = opened("seqrules")
    rules, counted = dense(index.rules), index.counted

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(index), "save_files", full)
    with pytest.raises((OSError, CallslipError)):
        callslip.learn(index, NEW)
    np.testing.assert_array_equal(dense(index.rules), rules)
    assert index.counted is counted


@pytest.mark.parametrize("name", ["log.csv", "log.txt", "log.jsonl"])
def test_the_command_reads_a_log_in_any_format(opened, tmp_path, name):
    from callslip.cli import learn  # noqa: F401

    opened("tied-log").close()
    lines = {
        "log.csv": "user,item,time\nnew,kite-6,2\nnew,soap-1,1\n",
        "log.txt": "new soap-1 kite-6\n",
        "log.jsonl": '{"user": "new", "item": "soap-1", "time": 1}\n{"user": "new", "item": "kite-6", "time": 2}\n',
    }
    Path(tmp_path / name).write_text(lines[name], encoding="utf-8")
    result = CliRunner().invoke(app, ["learn", str(tmp_path / "tied-log"), str(tmp_path / name)])
    assert result.exit_code == 0, result.output
    assert "learned 2 new interactions" in result.stderr + result.stdout
    index = api.load(tmp_path / "tied-log")
    assert index.users.query("new").history == ("soap-1", "kite-6")
    bad = tmp_path / "bad.csv"
    bad.write_text("user,item\nnew,unheard-of\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["learn", str(tmp_path / "tied-log"), str(bad)])
    assert result.exit_code != 0 and "unheard-of" in str(result.exception or "") + result.output + result.stderr
