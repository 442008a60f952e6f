"""The first hour of a new user, typed as commands: a folder of own files, a BEIR folder, a shop's log, and mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from own_files import own_folder

import callslip
from callslip import Document

SMALL = ["--set", "encoder=scratch"]


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a folder, as a process of its own."""
    command = [sys.executable, "-m", "callslip", *words]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def right(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = typed(folder, *words)
    assert done.returncode == 0, done.stderr
    return done


def found(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [hit["doc_id"] for hit in json.loads(done.stdout)["hits"]]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Where the user sits: own files, a BEIR folder, a log."""
    home = tmp_path_factory.mktemp("home")
    own_folder(home / "own")
    beir = home / "beir"
    (beir / "qrels").mkdir(parents=True)
    texts = {"otter": "The otter swims in the river.", "heron": "The heron stands in the reeds.", "blank": ""}
    lines = [{"_id": i, "text": t, "metadata": {"year": 2000 + n}} for n, (i, t) in enumerate(texts.items())]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (beir / "queries.jsonl").write_text('{"_id": "q1", "text": "who swims"}\n{"_id": "q2", "text": "who stands"}\n')
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\totter\t1\nq2\theron\t1\n")
    rows = [f"u{user},{item},{time}" for user in range(8) for time, item in enumerate("abcde"[user % 2 :])]
    (home / "shop.csv").write_text("user,item,time\n" + "\n".join(rows) + "\n")
    (home / "more.jsonl").write_text('{"_id": "wolf", "text": "The wolf howls at night."}\n')
    (home / "broken.jsonl").write_text('{"_id": "a", "text": "good"}\n{"_id": "b"}\n')
    (home / "answers.jsonl").write_text('{"query": "who swims", "doc_id": "otter"}\n')
    return home


@pytest.fixture(scope="module")
def own(home) -> str:
    """An index of the user's own files."""
    done = right(home, "fit", "own", "--method", "bm25", "--out", "own-index")
    assert "read 5 files, skipped 2" in done.stderr
    assert "1 read as cp1252: alt.txt" in done.stderr
    assert "1 skipped, image: .png 1" in done.stderr and "1 skipped, archive: .zip 1" in done.stderr
    assert "next: callslip search own-index" in done.stderr
    return "own-index"


@pytest.fixture(scope="module")
def animals(home) -> str:
    """An index of the BEIR folder by the default method."""
    done = right(home, "fit", "beir", "--out", "animals", *SMALL)
    assert "1 document without any text" in done.stderr
    assert "fitting tied-residual to 3 documents" in done.stderr and "no judged train queries" in done.stderr
    return "animals"


def test_own_files_are_found_by_page_and_by_path(home, own):
    assert "manual.pdf, page 2" in right(home, "search", own, "descale the kettle", "-k", "1").stdout
    assert found(right(home, "search", own, "größerer Möbel", "--json"))[0] == "alt.txt#1"
    below = right(home, "search", own, "refunds abroad kettle", "--json", "--where", "path=docs/*")
    assert sorted(found(below)) == ["docs/refunds.md#1", "docs/refunds.md#2"]
    assert found(right(home, "search", own, "tenth leaves", "--json", "--where", "type=ipynb"))[0] == "churn.ipynb#2"


def test_a_beir_folder_is_fitted_searched_changed_and_measured(home, animals):
    assert found(right(home, "search", animals, "who swims", "--json"))[0] == "otter"
    assert "words" in right(home, "search", animals, "who swims", "--explain").stdout
    added = right(home, "add", animals, "more.jsonl").stderr
    assert "added 1 document; animals has 4" in added and "bucket" not in added
    assert found(right(home, "search", animals, "wolf howls", "--json"))[0] == "wolf"
    assert "learned 1 new answer" in right(home, "learn", animals, "answers.jsonl").stderr
    measured = " ".join(right(home, "evaluate", animals, "beir").stdout.split())
    assert "nDCG@10" in measured and "1 of 2 queries of this split has been learned" in measured
    assert "is intact" in right(home, "check", animals).stdout


def test_a_comparison_is_a_table_in_the_format_that_is_asked_for(home):
    done = right(home, "compare", "beir", "--methods", "bm25", "--no-controls", "--table", "csv")
    header, first, *_ = done.stdout.splitlines()
    assert header.startswith("system,control,measure,mean") and first.startswith("bm25,")


def test_a_log_recommends_what_comes_next(home):
    right(home, "fit", "shop.csv", "--method", "transitions", "--out", "shop")
    assert found(right(home, "search", "shop", "--history", "a,b", "--json"))[0] == "c"


MISTAKES = [
    (["fit", "nowhere", "--out", "x"], ["nowhere", "Check the path"]),
    (["fit", "own", "--out", "/proc/nope"], ["/proc/nope", "Choose another place"]),
    (["fit", "own", "--method", "bm52", "--out", "x"], ["bm52", "Did you mean 'bm25'"]),
    (["fit", "beir", "--out", "x", "--set", "lenght=3"], ["lenght", "Did you mean"]),
    (["fit", "beir", "--method", "tied-residual", "--codes", "c.csv", "--out", "x"], ["--codes", "dsi-semantic"]),
    (["fit", "broken.jsonl", "--out", "x"], ["broken.jsonl:2", "--skip-bad"]),
    (["fit", "own/logo.png", "--out", "x"], ["logo.png", "image"]),
    (["search", "nowhere", "x"], ["nowhere", "callslip fit"]),
    (["search", "own", "x"], ["own", "callslip fit"]),
    (["search", "animals", "x", "--where", "yaer=3"], ["yaer", "Did you mean 'year'"]),
    (["search", "animals", "x", "--where", "year=abc..2"], ["abc..2", "year=2000..2002"]),
    (["search", "animals", "x", "--where", "year=x.."], ["x..", "year=2000..2002"]),
    (["search", "animals", "x", "--set", "beam=3"], ["beam", "Known"]),
    (["delete", "animals", "oter"], ["oter", "otter"]),
    (["learn", "own-index", "answers.jsonl"], ["no memory", "tied-residual"]),
    (["compare", "beir", "--methods", "bm25", "--table", "xml"], ["xml", "markdown"]),
    (
        ["compare", "beir", "--methods", "bm25", "--format", "latex"],
        ["--format is that of the corpus", "--table latex"],
    ),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_is_explained_with_its_remedy(home, own, animals, words, said):
    done = typed(home, *words)
    assert done.returncode in (1, 2), done.stdout
    assert "Traceback" not in done.stderr
    plain = " ".join(done.stderr.replace("│", " ").split())
    assert all(one in plain for one in said), done.stderr
    assert not (home / "x").exists()


def test_a_fit_does_not_replace_an_index_that_was_changed_since(home) -> None:
    right(home, "fit", "more.jsonl", "--method", "bm25", "--out", "kept")
    right(home, "fit", "more.jsonl", "--method", "bm25", "--out", "kept")  # nothing but a fit is lost
    right(home, "add", "kept", "beir/corpus.jsonl")
    done = typed(home, "fit", "more.jsonl", "--method", "bm25", "--out", "kept")
    assert done.returncode == 2 and "changed after its fit" in done.stderr and "--replace" in done.stderr
    assert found(right(home, "search", "kept", "otter", "--json"))[0] == "otter"
    right(home, "fit", "more.jsonl", "--method", "bm25", "--out", "kept", "--replace")
    assert found(right(home, "search", "kept", "otter wolf", "--json")) == ["wolf"]


def test_lines_of_ids_are_a_log_and_texts_are_not(home) -> None:
    (home / "lines.txt").write_text("1 10 11 12 13\n2 10 12 13 14\n3 11 12 13 14\n")
    (home / "prose.txt").write_text("12 eggs\n3 spoons of flour\n")
    right(home, "fit", "lines.txt", "--method", "item-knn", "--out", "lines-index")
    assert "12" not in found(right(home, "search", "lines-index", "--history", "10,12", "--json"))
    assert "prose: 1 document" in right(home, "fit", "prose.txt", "--method", "bm25", "--out", "prose-index").stderr
    done = typed(home, "fit", "prose.txt", "--items", "more.jsonl", "--method", "item-knn", "--out", "x")
    assert done.returncode == 2 and "--format" in done.stderr and "s3rec" in done.stderr


def test_remedies_are_true(home, own) -> None:
    done = typed(home, "search", own, "--history", "1,2")
    assert done.returncode == 2 and "searches by text" in done.stderr and "add" not in done.stderr
    done = typed(home, "compare", "own", "--methods", "bm25")
    assert done.returncode == 2 and "--qrels" in done.stderr
    (home / "cat.png").write_bytes(b"\x89PNG")
    done = typed(home, "fit", "cat.png", "--method", "bm25", "--out", "x")
    assert done.returncode == 2 and "image" in done.stderr and "--format" not in done.stderr
    told = right(home, "inspect", own).stderr
    assert "fitted to 8 documents of own in" in told
    assert "without any text" not in right(home, "fit", "shop.csv", "--method", "popularity", "--out", "z").stderr


WRONG = {
    "a document by itself": lambda index: index.add(Document("a", "b")),
    "a dictionary": lambda index: index.add([{"_id": "a", "text": "b"}]),
    "a text": lambda index: index.update(["a text"]),
    "a number as an id": lambda index: index.add([Document(3, "b")]),
    "no text": lambda index: index.add([Document("a", None)]),
    "deleting a number": lambda index: index.delete([3]),
    "k as a text": lambda index: index.search("a", k="3"),
    "no corpus": lambda index: callslip.fit(None),
    "a corpus of numbers as ids": lambda index: callslip.fit([Document(3, "b")], method="bm25"),
    "no folder": lambda index: callslip.load(None),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_arguments_have_a_remedy(mistake: str) -> None:
    index = callslip.fit([Document("one", "first text"), Document("two", "second text")], method="bm25")
    with pytest.raises(callslip.CallslipError) as told:
        WRONG[mistake](index)
    assert told.value.remedy and len(index) == 2


def test_the_code_of_a_hybrids_hit_is_short() -> None:
    from callslip.cli.search import code_text
    from callslip.search.hits import Hit

    part = SimpleNamespace(identifiers=object(), tree_levels=1)
    hybrid = SimpleNamespace(parts=[SimpleNamespace(), part])
    assert code_text(Hit("a", 1.0, 1, code=tuple(range(96))), hybrid) == "0-…"
