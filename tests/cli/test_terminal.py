"""Nothing that comes from documents, manifests or file names drives the terminal."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import callslip.cli
from callslip import api
from callslip.cli import terminal
from callslip.corpus.documents import Corpus, Document
from callslip.methods import make
from callslip.storage.folder import read_manifest, write_manifest

EVIL = "\x1b[8m\x1b]0;owned\x07\x1b[2J\x1b[1A\x9b31m\x08\r\u202eback\u2066\u2028\x7f\x85"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def run(*arguments, code=0):
    command = [sys.executable, "-m", "callslip", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False)
    out, err = done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
    assert done.returncode == code, err
    assert "Traceback" not in err
    for text in (out, err):
        assert not OBEYED.search(text), repr(text[:400])
    return out, err


@pytest.fixture(scope="module")
def evil_index(tmp_path_factory):
    path = tmp_path_factory.mktemp("evil") / "index"
    documents = [Document(f"d{n}{EVIL}", f"apple {n} {EVIL}", f"title {EVIL}", {f"f{EVIL}": EVIL}) for n in range(8)]
    settings = {"encoder": "scratch", "epochs": 1, "decoder_width": 32, "width": 4}
    make("dsi-semantic", settings).fit(Corpus(documents, name=f"corpus{EVIL}")).save(path)
    return path


def test_every_command_is_quiet_about_escape_sequences(evil_index, tmp_path):
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"_id": f"new{EVIL}", "text": f"banana {EVIL}", "title": EVIL}) + "\n")
    out, _ = run("add", evil_index, more, "--each")
    assert out.startswith("new") and out.count("\n") == 1
    run("search", evil_index, "apple", "--explain")
    run("search", evil_index, f"apple{EVIL.replace(chr(0), '')}")
    run("inspect", evil_index)
    run("check", evil_index)
    run("delete", evil_index, f"no such{EVIL}", code=2)
    run("search", evil_index, "apple", "--where", f"{EVIL}=1", code=2)
    run("search", evil_index, "apple", "--allow", f"a{EVIL}")
    run("search", tmp_path / f"no{EVIL.replace('/', '')}", "apple", code=2)


def test_json_reads_back_as_it_was(evil_index):
    out, _ = run("search", evil_index, "apple", "--json", "-k", 3)
    hits = json.loads(out)["hits"]
    assert len(hits) == 3 and all(EVIL in hit["doc_id"] and EVIL in hit["text"] for hit in hits)
    for text in (EVIL, "plain", "größe 東京 \U0001f600", "\U000e0041tag"):
        written = terminal.to_json({"x": text})
        assert json.loads(written) == {"x": text} and not OBEYED.search(written)
    assert "東京" in terminal.to_json("東京")


def test_a_manifest_cannot_speak_through_an_error(evil_index, tmp_path):
    import shutil

    shutil.copytree(evil_index, tmp_path / "index")
    manifest = read_manifest(tmp_path / "index")
    del manifest["digest"]
    changed = {"versions": {"callslip": EVIL}, "settings": {f"setting{EVIL}": 1}}
    write_manifest(tmp_path / "index", manifest | changed)
    run("search", tmp_path / "index", "apple", code=2)
    write_manifest(tmp_path / "index", manifest | {"method": f"m{EVIL}"})
    run("search", tmp_path / "index", "apple", code=2)
    assert api.load(evil_index)


def test_the_filter_on_the_streams_keeps_colours(capsys):
    import io

    stream = io.StringIO()
    guarded = terminal.Guarded(stream)
    guarded.write("\x1b[1mbold\x1b[0m \x1b[2J\x1b]0;x\x07 tab\tline\n")
    assert stream.getvalue() == "\x1b[1mbold\x1b[0m \ufffd[2J\ufffd]0;x\ufffd tab\tline\n"
    assert not OBEYED.search(terminal.clean(EVIL)) and not OBEYED.search(terminal.printable(f"{EVIL}\t\n"))
    guarded.write("lone \ud800")
    assert "\ud800" not in stream.getvalue()


def test_commands_print_by_one_module():
    """No `print`, `typer.echo` or `sys.stdout.write` beside cli/terminal.py."""
    found = []
    for path in sorted(Path(callslip.cli.__file__).parent.glob("*.py")):
        if path.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("print", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write"):
                    found.append(f"{path.name}:{node.lineno}: {called}")
    assert not found
