"""Both stores, SQLite and PostgreSQL, keep the same promises."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
import time

import pytest
from word_codes import contents, state_of

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import BadSetting, CallslipError, IndexCorrupt
from callslip.storage.check import check
from callslip.storage.home import Home
from callslip.storage.rows import NewRow

FIRST = {"a": "one", "b": "two", "c": "three"}


def test_random_changes_by_two_machines_against_a_dictionary(new_index, tmp_path):
    new_index(tmp_path / "here", FIRST)
    if json.loads((tmp_path / "here" / "manifest.json").read_text())["store"]["kind"] == "postgres":
        shutil.copytree(tmp_path / "here", tmp_path / "there")  # another machine's folder
    else:
        (tmp_path / "there").symlink_to(tmp_path / "here")
    both = [api.load(tmp_path / "here"), api.load(tmp_path / "there")]
    model, chance = dict(FIRST), random.Random(3)
    for step in range(60):
        one = both[chance.randrange(2)].refresh(now=True)
        kind = chance.choice(["add", "update", "delete", "compact", "open"])
        if kind == "add":
            one.add([Document(f"n{step}", f"text {step % 7}", "title", {"n": step})])
            model[f"n{step}"] = f"text {step % 7}"
        elif kind == "update" and model:
            name = chance.choice(sorted(model))
            one.update([Document(name, f"new {step % 5}")])
            model[name] = f"new {step % 5}"
        elif kind == "delete" and model:
            name = chance.choice(sorted(model))
            one.delete([name])
            del model[name]
        elif kind == "compact":
            one.compact()
        else:
            number = both.index(one)
            path = one.living.home.path
            one.close()
            both[number] = api.load(path)
        for index in both:
            assert state_of(index.refresh(now=True)) == model, f"step {step}: {kind}"
    for folder in ("here", "there"):
        assert check(tmp_path / folder).documents == len(model)
        assert contents(tmp_path / folder) == model


def test_a_change_is_whole_or_not_at_all(new_index, tmp_path):
    new_index(tmp_path / "index", FIRST)
    home = Home.open(tmp_path / "index")
    with pytest.raises(CallslipError, match="'b' is in the index already"):
        home.commit([NewRow(Document("new", "x"), (1, 2, 3)), NewRow(Document("b", "y"), (1, 2, 3))], ["a"])
    with pytest.raises(CallslipError, match="no document 'zz'"):
        home.commit([NewRow(Document("new", "x"), (1, 2, 3))], ["a", "zz"])
    with pytest.raises(BadSetting, match="cannot be stored"):
        home.commit([NewRow(Document("new", "lone \ud800"), (1, 2, 3))])
    home.close()
    assert contents(tmp_path / "index") == FIRST


def test_others_see_a_change_within_a_second_without_asking(new_index, tmp_path):
    """Counted from the acknowledgement, by searches alone. On a slow machine the sleep only gets longer."""
    new_index(tmp_path / "index", FIRST)
    writer, reader = api.load(tmp_path / "index"), api.load(tmp_path / "index")
    assert reader.search("fresh", k=3).doc_ids == []
    writer.add([Document("d", "fresh")])
    writer.delete(["a"])
    assert reader.search("one", k=3).doc_ids == []  # a deletion shows at once
    time.sleep(1.0)
    assert reader.search("fresh", k=3).doc_ids == ["d"]


def test_changes_are_of_one_moment(new_index, tmp_path, monkeypatch):
    """A commit between the questions that `changes` asks is not half in the answer."""
    new_index(tmp_path / "index", FIRST)
    home, other = Home.open(tmp_path / "index"), Home.open(tmp_path / "index")
    before, came = home.store.version(), []

    def between(question: str) -> None:
        if "added >" in question and not came:
            came.append(other.commit([NewRow(Document("late", "x"), (1, 2, 3))], ["a"]))

    if hasattr(home.store, "path"):
        home.store._reader.set_trace_callback(between)
    else:
        ask = home.store._ask

        class Watched:
            def __init__(self, connection):
                self.connection = connection

            def execute(self, question, *given):
                between(question)
                return self.connection.execute(question, *given)

        monkeypatch.setattr(home.store, "_ask", lambda question: ask(lambda c: question(Watched(c))))
    found = home.store.changes(before)
    assert came and (found.version, found.added, found.deleted) == (before, [], [])
    found = home.store.changes(before)
    assert (found.version, [row.document.doc_id for row in found.added], len(found.deleted)) == (came[0], ["late"], 1)
    home.close()
    other.close()


def test_a_damaged_row_is_seen(new_index, tmp_path, request):
    new_index(tmp_path / "index", FIRST)
    home = Home.open(tmp_path / "index")
    change = "SET text = 'two, said somebody' WHERE doc_id = 'b'"
    if hasattr(home.store, "path"):
        home.store._writer.execute(f"UPDATE documents {change}")
    else:
        import psycopg

        with psycopg.connect(home.store.address) as connection:
            connection.execute(f"UPDATE callslip_documents {change} AND index = %s", (home.store.index,))
    with pytest.raises(IndexCorrupt, match="'b'"):
        home.store.verify()
    with pytest.raises(IndexCorrupt, match="'b'"):
        home.store.read([2])
    assert [d.doc_id for d in home.store.read([1, 3])] == ["a", "c"]
    home.close()


def test_a_server_that_restarts_is_found_again(postgres, tmp_path):
    """Crashed and restarted under two open indexes, one of them writing: what was acknowledged is there."""
    import word_codes

    from callslip.storage.copies import share_index

    address, restart = postgres
    word_codes.make_index(tmp_path / "index", FIRST)
    share_index(tmp_path / "index", address)
    writer, reader = api.load(tmp_path / "index"), api.load(tmp_path / "index")
    model, failures = dict(FIRST), []

    def write():
        try:
            for n in range(60):
                writer.add([Document(f"n{n}", f"text {n}")])
                model[f"n{n}"] = f"text {n}"
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(2):
        time.sleep(0.2)
        restart()
    thread.join()
    assert not failures, failures[0]
    assert state_of(reader.refresh(now=True)) == model
    assert contents(tmp_path / "index") == model


def test_an_address_with_a_password_is_not_saved(postgres, tmp_path):
    import word_codes

    from callslip.storage.copies import share_index

    word_codes.make_index(tmp_path / "index", FIRST)
    with pytest.raises(BadSetting, match="password"):
        share_index(tmp_path / "index", f"{postgres[0]} password=secret")
    assert contents(tmp_path / "index") == FIRST
    index = api.load(tmp_path / "index")
    index.add([Document("d", "and it still takes documents")])
    index.close()


def test_the_database_of_another_index_is_refused(postgres, tmp_path):
    import word_codes

    from callslip.storage.folder import read_manifest, write_manifest

    word_codes.make_index(tmp_path / "index", FIRST)
    manifest = read_manifest(tmp_path / "index")
    del manifest["digest"]
    write_manifest(tmp_path / "index", manifest | {"store": {"kind": "postgres", "address": postgres[0]}})
    with pytest.raises(IndexCorrupt, match="does not hold this index"):
        api.load(tmp_path / "index")


@pytest.mark.slow
def test_the_commands(tmp_path):
    """One life of an index, as it is typed."""
    docs = tmp_path / "docs.jsonl"
    docs.write_text("".join(json.dumps({"_id": f"d{n}", "text": f"whale number{n}"}) + "\n" for n in range(20)))
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"_id": "new", "text": "a ship"}) + "\n" + json.dumps({"_id": "d1", "text": "x"}) + "\n")
    index = tmp_path / "index"

    def run(*arguments, code=0):
        command = [sys.executable, "-c", "from callslip.cli import main; main()", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    run("fit", docs, "--out", index, "--method", "bm25")
    assert "already" in run("add", index, more, code=2)
    assert "The nearest name there is 'd19'" in run("delete", index, "dd19", code=2)
    assert "21" in run("update", index, more)
    assert "deleted 2" in run("delete", index, "d3", "d4")
    assert "no document 'd3'" in run("delete", index, "d3", code=2)
    found = json.loads(run("check", index, "--json"))
    assert found["whole"] and found["documents"] == 19 and found["drift"]["new"] == 2
    assert "new" in run("search", index, "ship")
    assert "generation 2, 19 documents" in run("compact", index)
    run("snapshot", index, tmp_path / "copy")
    assert "exists" in run("snapshot", index, tmp_path / "copy", code=2)
    assert "19 documents" in run("check", tmp_path / "copy")
    (tmp_path / "bad.jsonl").write_text('{"_id": "ok", "text": "fine"}\n{"_id": "torn", "te\n')
    assert "bad.jsonl:2" in run("add", index, tmp_path / "bad.jsonl", code=2)
    assert "added 1" in run("add", index, tmp_path / "bad.jsonl", "--skip-bad")


def test_changed_metadata_is_seen_by_whoever_filters(new_index, tmp_path):
    """A byte of a fitted row's metadata would make a filter miss the document without a word."""
    from callslip.filters.filter import Filter

    new_index(tmp_path / "index", FIRST)
    index = api.load(tmp_path / "index")
    index.update([Document("b", "two", "title", {"year": 2020, "name": "größer"})])
    index.compact()
    index.add([Document("d", "four", "", {"year": 2021})])
    index.delete(["c"])
    assert index.rows.mask(Filter({"year": 2020})).sum() == 1
    index.close()
    home = Home.open(tmp_path / "index")
    change = "SET metadata = replace(metadata, '2020', '2030') WHERE doc_id = 'b' AND deleted IS NULL"
    if hasattr(home.store, "path"):
        home.store._writer.execute(f"UPDATE documents {change}")
    else:
        import psycopg

        with psycopg.connect(home.store.address) as connection:
            connection.execute(f"UPDATE callslip_documents {change} AND index = %s", (home.store.index,))
    home.close()
    with pytest.raises(IndexCorrupt, match="'b'"):
        api.load(tmp_path / "index").rows.mask(Filter({"year": 2020}))
    with pytest.raises(IndexCorrupt, match="'b'"):
        api.load(tmp_path / "index").row_of()["b"]
    with pytest.raises(IndexCorrupt, match="'b'"):
        list(api.load(tmp_path / "index").row_of())


def test_an_id_that_the_api_could_not_address_is_refused(new_index, tmp_path):
    from callslip.corpus.documents import Corpus

    new_index(tmp_path / "index", FIRST)
    index = api.load(tmp_path / "index")
    with pytest.raises(BadSetting, match="513 characters"):
        index.add([Document("x" * 513, "text")])
    index.add([Document("x" * 512, "text")])
    assert "x" * 512 in index.row_of()
    index.close()
    with pytest.raises(BadSetting, match="513 characters"):
        Corpus([Document("x" * 513, "text")])  # before hours of training


def test_a_row_that_only_seems_deleted_is_seen(tmp_path):
    import word_codes

    word_codes.make_index(tmp_path / "index", FIRST)
    home = Home.open(tmp_path / "index")
    home.commit([], ["a"])
    home.store._writer.execute("UPDATE documents SET deleted = 2 WHERE doc_id = 'b'")
    home.close()
    with pytest.raises(IndexCorrupt, match="'b'"):
        api.load(tmp_path / "index")


def test_no_question_of_a_change_walks_the_table(tmp_path):
    """What was added or deleted since, and the row of a name, are found by indexes."""
    from callslip.storage.rows import NewRow
    from callslip.storage.sqlite_store import SqliteStore, create

    create(tmp_path / "s.sqlite", "x", ((NewRow(Document(f"d{n}", "text")), True) for n in range(50)))
    store, asked = SqliteStore(tmp_path / "s.sqlite"), []
    for connection in (store._reader, store._writer):
        connection.set_trace_callback(asked.append)
    version = store.commit([NewRow(Document("new", "text"))], ["d3"])
    store.changes(version - 1)
    store.numbers_of("new", version - 1)
    store.read([7, 51])
    questions = [question for question in asked if question.startswith("SELECT") and "documents" in question]
    assert len(questions) >= 6
    for question in questions:
        plan = [step for *_, step in store._reader.execute(f"EXPLAIN QUERY PLAN {question}")]
        assert not any("SCAN" in step for step in plan), (question, plan)
    store.close()
