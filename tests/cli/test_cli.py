"""The command line as a user meets it: real processes for what must be seen from outside, the app for the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from callslip.cli import app, main, register

DSI = ["--method", "dsi-semantic"]
FAST = ["--set", "encoder=scratch", "--set", "epochs=10", "--set", "decoder_width=32", "--set", "width=4"]


@pytest.fixture(scope="module")
def data(small_corpus, tmp_path_factory):
    """The small corpus as a BEIR folder."""
    folder = tmp_path_factory.mktemp("beir")
    with (folder / "corpus.jsonl").open("w") as file:
        for d in small_corpus:
            record = {"_id": d.doc_id, "title": d.title, "text": d.text, "metadata": dict(d.metadata)}
            file.write(json.dumps(record) + "\n")
    with (folder / "queries.jsonl").open("w") as file:
        for q in small_corpus.queries.values():
            file.write(json.dumps({"_id": q.query_id, "text": q.text}) + "\n")
    (folder / "qrels").mkdir()
    for split, judged in small_corpus.judgements.items():
        rows = [f"{qid}\t{doc_id}\t{grade}" for qid, grades in judged.items() for doc_id, grade in grades.items()]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n")
    return folder


def run(*arguments, input: str | None = None):
    """Run in this process through `main`, so that errors end as they do for a user."""
    register()
    return CliRunner().invoke(app, [str(a) for a in arguments], input=input)


def process(*arguments, input: str | None = None):
    command = [sys.executable, "-m", "callslip", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, input=input, check=False)


@pytest.fixture(scope="module")
def index(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "index"
    done = process("fit", data, "--out", path, *DSI, *FAST)
    assert done.returncode == 0, done.stderr
    assert "40 documents" in done.stderr
    assert f"callslip search {path}" in done.stderr
    return path


def test_an_index_that_is_replaced_is_named_first(data, tmp_path):
    first = run("fit", data, "--method", "bm25", "--out", tmp_path / "index")
    assert first.exit_code == 0 and "already" not in first.stderr
    again = run("fit", data, "--method", "bm25-classic", "--out", tmp_path / "index")
    assert again.exit_code == 0
    assert again.stderr.index("already contains an index") < again.stderr.index("fitting bm25-classic")
    assert json.loads((tmp_path / "index" / "manifest.json").read_text())["method"] == "bm25-classic"


def test_a_fit_tells_its_memory_and_the_bytes_a_document(data, tmp_path):
    """From a thousand documents on; of a few, both say nothing."""
    (tmp_path / "many.jsonl").write_text(
        "".join(f'{{"_id": "d{n}", "text": "word{n % 50} text"}}\n' for n in range(1000))
    )
    for corpus, said in ((data, False), (tmp_path / "many.jsonl", True)):
        out = tmp_path / corpus.stem
        fitted = CliRunner().invoke(app, ["fit", str(corpus), "--method", "bm25", "--out", str(out)])
        assert fitted.exit_code == 0 and ("peak memory: " in fitted.stderr) == said
    size = sum(file.stat().st_size for file in out.glob("generation-*/**/*") if file.is_file()) / 1000
    assert f"bytes a document, beside the texts: {size:.0f} (" in fitted.stderr


def test_search_prints_hits(index):
    done = process("search", index, "which violin has the mark music5", "-k", 3)
    assert done.returncode == 0, done.stderr
    assert [line.split(".")[0].strip() for line in done.stdout.splitlines() if line[:3].strip().isdigit()] == [
        "1",
        "2",
        "3",
    ]


def test_an_empty_query_is_refused(index):
    done = process("search", index, "  ")
    assert done.returncode == 2 and "the query is empty" in done.stderr and "Traceback" not in done.stderr


def test_search_as_json_with_reasons(index):
    done = run("search", index, "which violin has the mark music5", "-k", 3, "--json", "--explain")
    answer = json.loads(done.stdout)
    assert answer["query"] == "which violin has the mark music5"
    assert len(answer["hits"]) == 3
    first = answer["hits"][0]
    assert first["rank"] == 1
    assert sum(first["why"]["level_scores"]) == pytest.approx(first["why"]["code_score"], abs=1e-3)
    assert all(isinstance(token, int) for token in first["code"])


def test_search_many_queries_from_standard_input(index):
    done = run("search", index, "-k", 2, "--json", input="violin\n\nsilver\n")
    assert [json.loads(line)["query"] for line in done.stdout.splitlines()] == ["violin", "silver"]


def test_search_under_a_filter(index):
    done = run("search", index, "silver", "-k", 5, "--json", "--where", "topic=music,river", "--where", "even=True")
    hits = json.loads(done.stdout)["hits"]
    assert len(hits) == 5
    assert all(hit["doc_id"].split("/")[0] in ("music", "river") for hit in hits)


def test_evaluate_writes_run_and_report(index, data, tmp_path):
    files = ["--run", tmp_path / "x.run", "--json", tmp_path / "x.json"]
    done = process("evaluate", index, data, "--set", "ranking=bucket", *files)
    assert done.returncode == 0, done.stderr
    assert "nDCG@10" in done.stdout
    lines = [line.split() for line in (tmp_path / "x.run").read_text().splitlines()]
    assert all(len(cells) == 6 for cells in lines)
    by_query: dict[str, list[float]] = {}
    for cells in lines:
        by_query.setdefault(cells[0], []).append(float(cells[4]))
    assert len(by_query) == 40
    assert all(a > b for scores in by_query.values() for a, b in pairwise(scores))
    report = json.loads((tmp_path / "x.json").read_text())
    assert report["dataset"]["documents"] == 40
    assert set(report["per_query"]["nDCG@10"]) == set(by_query)
    assert report["shared_codes"] is not None


def test_evaluate_warns_of_other_data(index, data, tmp_path):
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", data, other], check=True)
    with (other / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "extra", "title": "", "text": "one more"}\n')
    assert "fingerprints differ" in " ".join(run("evaluate", index, other).stdout.split())
    assert "fingerprints differ" not in " ".join(run("evaluate", index, data).stdout.split())


def test_compare_prints_one_table_and_writes_a_page(data, tmp_path):
    out = tmp_path / "comparison"
    done = process("compare", data, "--methods", "bm25,dsi-semantic", "--out", out, *FAST)
    assert done.returncode == 0, done.stderr
    for name in ("bm25 (control)", "memory (control)", "dsi-random (control)", "dsi-semantic"):
        assert name in done.stdout
    assert {p.suffix for p in out.iterdir()} >= {".md", ".json", ".html"}


def test_inspect_is_the_doctor(index, tmp_path):
    healthy = run("inspect", index)
    assert "verdict:" in healthy.stdout
    figures = json.loads(run("inspect", index, "--json").stdout)
    assert figures["figures"]["documents"] == 40
    codes = tmp_path / "codes.json"
    codes.write_text(json.dumps({f"d{n}": [0, 0] for n in range(50)}))
    ill = run("inspect", codes)
    assert "ill" in ill.stdout
    assert "remedy" in ill.stdout


def test_inspect_shows_how_full_buckets_are_and_the_tree_with_its_words(index):
    said = run("inspect", index).stdout
    assert "documents per code" in said and "the tree of codes" in said
    tree = said[said.index("the tree of codes") :]
    first = next(line for line in tree.splitlines() if "documents: " in line)
    token = first.split()[0]
    below = run("inspect", index, "--prefix", token, "--depth", "1").stdout
    below = below[below.index("the tree of codes") :]
    assert all(line.split()[0].startswith(f"{token}-") for line in below.splitlines() if "documents: " in line)
    assert "the tree of codes" not in run("inspect", index, "--depth", "0").stdout
    wrong = run("inspect", index, "--prefix", "999")
    assert wrong.exit_code != 0 and "no code has the prefix '999'" in str(wrong.exception)


def test_inspect_an_index_without_codes(data, tmp_path):
    assert process("fit", data, "--method", "bm25", "--out", tmp_path / "b").returncode == 0
    assert "does not use codes" in run("inspect", tmp_path / "b").stdout


def test_methods_lists_and_describes():
    assert "dsi-semantic" in run("methods").stdout
    described = run("methods", "dsi-random").stdout
    assert "codes = random" in described
    assert "learning_rate" in described


def test_recipes(data, tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text('method = "dense"\n[settings]\nencoder = "scratch"\n')
    done = process("fit", data, "--recipe", recipe, "--out", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["method"] == "dense"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["search", "nowhere", "x"], ["nowhere", "callslip fit"]),
        (["fit", "nowhere", "--out", "x"], ["nowhere"]),
        (["fit", "demo", "--method", "dsy-semantic", "--out", "x"], ["dsy-semantic", "Did you mean"]),
        (["fit", "demo", *DSI, "--set", "epoch=3", "--out", "x"], ["epoch", "Did you mean 'epochs'"]),
        (["fit", "demo", *DSI, "--set", "epochs=many", "--out", "x"], ["epochs", "many"]),
        (["fit", "demo", *DSI, "--preset", "huge", "--out", "x"], ["huge", "quick"]),
        (["compare", "demo", "--methods", "bm25,nope"], ["nope"]),
        (["compare", "demo", "--methods", ","], ["no methods"]),
        (["inspect", "nowhere"], ["nowhere"]),
        (["methods", "nope"], ["nope"]),
    ],
)
def test_mistakes_end_with_2_and_no_traceback(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["callslip", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert "Traceback" not in said
    assert all(word in said for word in words), said
    assert not (tmp_path / "x").exists()


def test_a_bad_line_is_named_or_skipped(data, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"_id": "a", "text": "fine"}\n{"_id": "b", "text": \n{"_id": "c", "text": "fine too"}\n')
    refused = process("fit", bad, "--method", "bm25", "--out", tmp_path / "x")
    assert refused.returncode == 2
    assert "bad.jsonl:2" in refused.stderr
    assert "--skip-bad" in refused.stderr
    assert "Traceback" not in refused.stderr
    taken = process("fit", bad, "--method", "bm25", "--out", tmp_path / "x", "--skip-bad")
    assert taken.returncode == 0, taken.stderr
    assert "skipped 1 bad line" in taken.stderr


def test_a_folder_of_text_files_from_start_to_end(tmp_path):
    """The first user in the design: a folder of texts, one command to an index, one to a search."""
    texts = tmp_path / "texts"
    (texts / "deep").mkdir(parents=True)
    (texts / "fruit.md").write_text("# Fruit\n\n## Apples\n\nApples keep until spring.\n\n## Pears\n\nPears do not.\n")
    (texts / "deep" / "page.html").write_text(
        "<html><title>Ships</title><body><h1>Ships</h1><p>Masts and sails.</p></body></html>"
    )
    (texts / "notes.txt").write_text("The trumpet is a brass instrument.")
    done = process("fit", texts, "--method", "bm25", "--out", tmp_path / "i")
    assert done.returncode == 0, done.stderr
    hits = json.loads(process("search", tmp_path / "i", "sails", "--json").stdout)["hits"]
    assert hits[0]["doc_id"].startswith("deep/page.html#")


def test_help_and_version_import_nothing_heavy():
    program = (
        "import sys\nsys.argv = ['callslip', '--help']\nfrom callslip.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'sklearn'} & set(sys.modules)\nsys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "callslip 0." in process("--version").stdout


def test_inspect_says_what_came_and_went_after_the_snapshot(index, tmp_path):
    living = tmp_path / "living"
    subprocess.run(["cp", "-r", index, living], check=True)
    assert "snapshot" not in run("inspect", living).stderr
    (tmp_path / "new.jsonl").write_text('{"_id": "new", "title": "A violin", "text": "One more violin."}\n')
    assert process("add", living, tmp_path / "new.jsonl").returncode == 0
    assert process("delete", living, "music/5").returncode == 0
    said = run("inspect", living).stderr
    assert (
        "the last snapshot lacks 1 document added since and still contains 1 document deleted since" in said
        and "callslip compact" in said
    )
    assert process("compact", living).returncode == 0
    assert "snapshot" not in run("inspect", living).stderr
    assert "40 documents" in run("inspect", living).stdout


def test_a_fit_that_was_refused_does_not_stand_in_the_way_of_the_next(data, tmp_path):
    wrong = process("fit", data, "--out", tmp_path / "i", *DSI, *FAST, "--set", "codes_from=nowhere")
    assert wrong.returncode == 2 and "nowhere" in wrong.stderr
    assert not (tmp_path / "i.training").exists()
    assert process("fit", data, "--out", tmp_path / "i", *DSI, *FAST).returncode == 0


def test_an_index_with_a_setting_that_is_no_more_names_itself(index, tmp_path):
    old = tmp_path / "old"
    subprocess.run(["cp", "-r", index, old], check=True)
    from callslip.storage import folder

    manifest = folder.read_manifest(old, verify=False)
    folder.write_manifest(old, manifest | {"settings": manifest["settings"] | {"candidates": 4}})
    done = process("search", old, "violin")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    assert "saved by another version" in said and "candidates" in said and "Fit it again" in said


def test_a_model_that_was_not_trained_is_named(data, tmp_path):
    said = process("fit", data, "--out", tmp_path / "a", "--method", "dsi-semantic", *FAST, "--set", "epochs=0").stderr
    assert "epochs=0" in " ".join(said.split())
    said = process("fit", data, "--out", tmp_path / "b", "--method", "dsi-semantic", *FAST).stderr
    assert "epochs=0" not in " ".join(said.split())


def test_inspect_gives_a_remedy_that_serves_several_levels_once(tmp_path):
    lines = [{"doc_id": "a", "code": [0, 0, 0]}, {"doc_id": "b", "code": [0, 0, 1]}]
    (tmp_path / "codes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = " ".join(process("inspect", tmp_path / "codes.jsonl").stdout.split())
    assert "level 1 has only one token; level 2 has only one token" in said
    assert said.count("shorten the codes by a level") == 1


def test_free_decoding_is_not_held_against_exact_search(data, tmp_path):
    quick = ("--method", "asi++", *FAST, "--set", "decoding=free")
    assert process("fit", data, "--out", tmp_path / "a", *quick).returncode == 0
    done = process("evaluate", tmp_path / "a", data, "--exact")
    assert done.returncode == 2 and "decoding=beam" in done.stderr and "Traceback" not in done.stderr
    assert process("evaluate", tmp_path / "a", data, "--exact", "--set", "decoding=beam").returncode == 0
