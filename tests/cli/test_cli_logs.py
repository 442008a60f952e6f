"""Recommendation at the command line: fit a log, ask with a history or a user, measure."""

from __future__ import annotations

import json

import pytest
from small_log import small_log
from typer.testing import CliRunner

from callslip.cli import app


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The small log as RecBole writes it, without its .item, and items as JSONL."""
    folder, log = tmp_path_factory.mktemp("log"), small_log()
    with (folder / "log.inter").open("w") as file:
        file.write("user_id:token\titem_id:token\ttimestamp:float\n")
        for query_id, grades in log.judgements["test"].items():
            items = [*log.queries[query_id].history, *grades]
            user = query_id.removesuffix("#test")
            file.writelines(f"{user}\t{item}\t{time}\n" for time, item in enumerate(items))
    with (folder / "items.jsonl").open("w") as file:
        for d in log:
            file.write(json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text}) + "\n")
    return folder


def run(*arguments):
    from callslip.cli import compare, evaluate, fit, search  # noqa: F401

    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def index(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "index"
    done = run("fit", data / "log.inter", "--items", data / "items.jsonl", "--method", "item-knn", "--out", path)
    assert done.exit_code == 0, done.stderr
    assert f"callslip search {path} --history id,id,id" in done.stderr
    return path


def test_a_history_and_a_user_are_queries(index):
    done = run("search", index, "--history", "soap-2, soap-3", "-k", 3, "--json")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["query"] == "soap-2,soap-3" and len(answer["hits"]) == 3
    done = run("search", index, "--user", "u7", "-k", 5, "--json")
    answer = json.loads(done.stdout)
    had = answer["query"].split(",")
    assert len(had) >= 7 and not set(had) & {hit["doc_id"] for hit in answer["hits"]}
    done = run("search", index, "--user", "u7", "-k", 48, "--json", "--keep-history")
    assert set(had) <= {hit["doc_id"] for hit in json.loads(done.stdout)["hits"]}
    done = run("search", index, "--history", "soap-2,soap-3", "--explain")
    assert "because" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "problem", "remedy"),
    [
        (["--user", "u770"], "unknown user 'u770'", "Did you mean"),
        (["--history", "soap-2,soap-99"], "no item 'soap-99'", "Did you mean"),
        (["--history", " , "], "empty", "--history id,id,id"),
        (["soap", "--user", "u7"], "more than one of", "Give only one"),
        (["soap"], "fitted on histories", "--history"),
    ],
)
def test_mistakes_name_their_remedy(index, arguments, problem, remedy):
    done = run("search", index, *arguments)
    assert done.exit_code != 0
    assert problem in str(done.exception) and remedy in str(done.exception)


def test_evaluation_says_whether_histories_were_left_out(index, data, tmp_path):
    figures = {}
    for option, words in (("--keep-history", "may be among the hits"), ("--exclude-history", "left out")):
        path = tmp_path / "report.json"
        arguments = ["evaluate", index, data / "log.inter", "--items", data / "items.jsonl", "--json", path, option]
        done = run(*arguments)
        assert done.exit_code == 0, done.stderr
        report = json.loads(path.read_text())
        assert any(words in note for note in report["notes"])
        assert list(report["measures"]) == ["R@5", "R@10", "nDCG@5", "nDCG@10"]
        figures[option] = report["measures"]["R@5"]["mean"]
        assert "none_seen" in report["seen"]
    assert figures["--keep-history"] > 0.3
    assert figures["--exclude-history"] != figures["--keep-history"]


def test_methods_are_compared_on_a_log(data):
    done = run(
        "compare", data / "log.inter", "--items", data / "items.jsonl", "-m", "popularity,item-knn", "--no-controls"
    )
    assert done.exit_code == 0, done.stderr
    assert "item-knn" in done.stdout and "nDCG@10" in done.stdout


def test_texts_know_no_users(data, tmp_path):
    assert run("fit", data / "items.jsonl", "--method", "bm25", "--out", tmp_path / "texts").exit_code == 0
    done = run("search", tmp_path / "texts", "--user", "u1")
    assert "has no users" in str(done.exception)
    done = run("search", tmp_path / "texts", "--history", "soap-1")
    assert "searches by text" in str(done.exception)


def test_a_forest_that_was_refused_does_not_block_the_next_fit(data, tmp_path):
    out = tmp_path / "forest"
    command = ["fit", data / "log.inter", "--items", data / "items.jsonl", "--method", "recforest", "--out", out]
    quick = ["--set", "encoder=scratch", "--set", "epochs=1", "--set", "history_width=16"]
    done = run(*command, *quick, "--set", "decoder_width=33")
    assert done.exit_code and "33" in str(done.exception)
    assert not (tmp_path / "forest.training").exists()
    assert run(*command, *quick, "--set", "decoder_width=16").exit_code == 0
    done = run("evaluate", out, data / "log.inter", "--items", data / "items.jsonl", "--exact")
    assert "merges the hits" in str(done.exception)


def test_a_log_with_too_little_to_train_on_is_no_corpus_of_texts(tmp_path):
    (tmp_path / "log.inter").write_text("user_id:token\titem_id:token\ttimestamp:float\nu\ta\t1\nu\tb\t2\n")
    done = run("fit", tmp_path / "log.inter", "--method", "tiger", "--out", tmp_path / "index")
    assert "enough items" in str(done.exception)


def test_who_reads_texts_says_that_histories_are_left_out(data, tmp_path):
    done = run("fit", data / "log.inter", "--items", data / "items.jsonl", "-m", "bm25", "--out", tmp_path / "words")
    assert done.exit_code == 0 and "ignores the log's histories" in done.stderr
