"""callslip codes, and --vectors, --query-vectors and --codes of other commands."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from callslip.encoders import load_encoder
from callslip.identifiers.files import read_codes

FAST = ["--set", "epochs=1", "--set", "decoder_width=16"]
SCRATCH = ["--set", "encoder=scratch:dim=16"]


def process(*arguments):
    command = [sys.executable, "-m", "callslip", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))


def ok(*arguments):
    done = process(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def data(small_corpus, beir):
    """The corpus as a BEIR folder, with vectors of its documents and queries."""
    encoder = load_encoder("scratch:dim=16")
    np.save(beir / "vectors.npy", encoder.encode([document.content for document in small_corpus]))
    np.save(beir / "queries.npy", encoder.encode([query.text for query in small_corpus.queries.values()]))
    return beir


def test_codes_without_training_and_their_files(data, small_corpus, tmp_path):
    shown = ok("codes", data, *SCRATCH, "--set", "width=4", "-o", tmp_path / "c.csv", "-o", tmp_path / "c.json")
    assert "verdict:" in shown and "nearest neighbours" in shown
    table = read_codes(tmp_path / "c.csv")
    assert sorted(table.doc_ids) == sorted(small_corpus.doc_ids) and len(json.loads((tmp_path / "c.json").read_text()))
    # Vectors of the same encoder give the same codes, and the older file shows that nothing has changed.
    report = json.loads(
        ok(
            "codes",
            data,
            "--vectors",
            data / "vectors.npy",
            "--set",
            "width=4",
            "--against",
            tmp_path / "c.csv",
            "--json",
        )
    )
    assert report["churn"]["changed"] == [0.0] * table.length and report["churn"]["common"] == 40
    assert report["neighbours"]["shared"][0] > report["neighbours"]["by_chance"][0]
    other = json.loads(ok("codes", data, "-m", "dsi-random", *SCRATCH, "--against", tmp_path / "c.csv", "--json"))
    assert other["churn"]["regrouped"] > 0.5 and any("nearest neigh" in f["problem"] for f in other["findings"])


def test_an_index_of_given_codes_and_vectors(data, tmp_path):
    ok("codes", data, *SCRATCH, "-m", "dsi-random", "-o", tmp_path / "c.csv")
    index, given = tmp_path / "index", ["--vectors", data / "vectors.npy", "--query-vectors", data / "queries.npy"]
    ok("fit", data, "-o", index, *FAST, *given, "--codes", tmp_path / "c.csv")
    ok("codes", index, "-o", tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "c.csv").read_text()
    ok("evaluate", index, data, "--query-vectors", data / "queries.npy", "--measures", "nDCG@10")
    found = ok("search", index, "--query-vectors", data / "queries.npy", "-k", "1", "--json").splitlines()
    assert len(found) == 80 and json.loads(found[5])["query"] == "5"
    assert "against the other table" in ok("inspect", index, "--against", tmp_path / "c.csv")
    assert "nearest neighbours" in ok("inspect", index)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["codes", "DATA", "-m", "bm25"], "has no codes"),
        (["codes", "DATA", "-m", "glen"], "learns them"),
        (["codes", "DATA", "-o", "codes.xlsx"], ".xlsx"),
        (["codes", "DATA", "--against", "nowhere.csv"], "nowhere.csv"),
        (["codes", "DATA", "--vectors", "nowhere.npy"], "nowhere.npy"),
        (["fit", "DATA", "-o", "OUT", "--codes", "nowhere.csv"], "nowhere.csv"),
        (["fit", "DATA", "-o", "OUT", "-m", "dense", "--vectors", "DATA/queries.npy", *SCRATCH], "80 vectors for 40"),
        (["fit", "DATA", "-o", "OUT", "-m", "dense", "--codes", "x.csv"], "takes no codes"),
    ],
)
def test_mistakes_are_named(data, tmp_path, arguments, said):
    done = process(*(str(a).replace("DATA", str(data)).replace("OUT", str(tmp_path / "out")) for a in arguments))
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
