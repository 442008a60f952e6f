"""`callslip serve` and `callslip report` as a user starts them."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import httpx2
import pytest

from callslip.errors import CallslipError
from callslip.server.keys import own_keys
from callslip.server.page import FILES, PAGE
from callslip.server.run import serve

START = "import sys; sys.argv = ['callslip', *sys.argv[1:]]; from callslip.cli import main; main()"


def callslip(*arguments, **options):
    command = [sys.executable, "-c", START, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_serve_makes_a_key_answers_and_stops(folder, tmp_path):
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    command = [sys.executable, "-c", START, "serve", str(folder), "--port", "0", "--set", "beam=2"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
    try:
        said = ""
        while "keys for writing" not in said:
            line = server.stderr.readline()
            assert line, said
            said += line
        url = re.search(r"http://127\.0\.0\.1:\d+", said)[0]
        keys = Path(re.search(r"keys for writing: (.+)", said)[1])
        assert stat.S_IMODE(keys.stat().st_mode) == 0o600
        key = keys.read_text().splitlines()[1].split()[0]
        with httpx2.Client(base_url=url, trust_env=False, verify=False, timeout=30) as client:
            assert client.get("/v1/indexes").json()["indexes"][0]["beam"] == 2
            assert client.put("/v1/documents/x", json={"text": "x"}).status_code == 401
            sent = {"authorization": f"Bearer {key}"}
            assert client.put("/v1/documents/x", json={"text": "x"}, headers=sent).status_code == 200
        server.send_signal(signal.SIGINT)
        rest = server.stderr.read()
        assert server.wait(timeout=20) == 0
        assert rest.splitlines()[-1] == "stopped" and "Traceback" not in rest
        assert key not in said + rest  # a terminal is looked at by many
    finally:
        server.kill()
        server.stderr.close()


def test_mistakes_are_told_without_a_traceback(fitted_folder, tmp_path, monkeypatch):
    done = callslip("serve", tmp_path / "nothing", env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)})
    assert done.returncode == 2
    assert "nothing" in done.stderr and "Traceback" not in done.stderr
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for arguments, problem in (
        ({"paths": [fitted_folder], "keys": tmp_path / "none"}, "keys"),
        ({"paths": [fitted_folder], "settings": {"epochs": "3"}}, "epochs"),
        ({"paths": [fitted_folder], "settings": {"beam": "none"}}, "beam"),
        ({"paths": [fitted_folder], "host": "192.0.2.1", "keys": own_keys(tmp_path)[0]}, "cannot listen"),
    ):
        with pytest.raises(CallslipError, match=problem):
            serve(**{"host": "127.0.0.1", "port": 0} | arguments)


def test_without_the_extra_it_says_what_to_install(tmp_path):
    program = "import sys; sys.modules['fastapi'] = None; " + START
    done = subprocess.run(
        [sys.executable, "-c", program, "serve", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "callslip[serve]" in done.stderr and "Traceback" not in done.stderr


class Tags(HTMLParser):
    """Tags of a page, and whether each that must be closed is."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs), (tag, attrs)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("which", ["fitted_folder", "words_folder"])
def test_a_report_is_one_page_that_needs_nothing_else(which, request, tmp_path):
    out = tmp_path / "report.html"
    done = callslip("report", request.getfixturevalue(which), "--out", out)
    assert done.returncode == 0, done.stderr
    page = out.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and not tags.seen & {"script", "link", "img", "iframe"}
    assert "http://" not in page and "https://" not in page
    if which == "fitted_folder":
        assert "svg" in tags.seen and "Level 1: use of tokens" in page and "prefix tree" in page
    else:
        assert "does not use codes" in page


def test_a_name_with_markup_is_shown_in_the_report():
    from callslip.server import plots

    tree = {"documents": 1, "children": [{"name": "<b>", "documents": 1, "words": ["<script>"], "end": True}]}
    assert "<script>" not in plots.icicle(tree) and "&lt;script&gt;" in plots.icicle(tree)
    assert "<i>" not in plots.lines({"<i>": [1.0, 0.5]})


def test_the_page_is_whole_and_from_here():
    folder = Path(__file__).parents[2] / "callslip" / "server" / "page"
    assert {path.name for path in folder.iterdir() if path.suffix in (".js", ".css", ".svg")} == set(FILES)
    for path, (kind, contents) in PAGE.items():
        text = contents.decode("utf-8")
        assert "charset=utf-8" in kind
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
        assert not re.search(r"\sstyle=|\son[a-z]+=|javascript:", text) or not path.endswith(("html", "/")), path


def test_a_query_and_its_items_are_drawn_epoch_by_epoch():
    from xml.etree import ElementTree

    from callslip.server import plots

    epochs = [
        {"query": {"<q>": [0.5, 0.5]}, "items": {"a": [0.6, 0.4], "b": [0.5, 0.5]}},
        {"query": {"<q>": [0.9, 0.1]}, "items": {"a": [1.0, 0.0], "b": [0.8, 0.2]}},
    ]
    drawn = plots.probe([{"phase": "level 1", "epoch": n + 1, "probe": one} for n, one in enumerate(epochs)])
    assert drawn is not None and ElementTree.fromstring(drawn).tag == "svg" and "<q>" not in drawn
    assert drawn.count("<rect") == 3 * 2 * 2 - 1  # a token of no probability is not drawn
    assert "query &lt;q&gt;, epoch 2: token 0, 90.0%" in drawn and "a, epoch 2: token 0, 100.0%" in drawn
    bars = [(float(y), float(tall)) for y, tall in re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', drawn)]
    assert bars[0][0] + bars[0][1] == pytest.approx(bars[1][0], abs=0.1)  # one on top of the other
    assert plots.probe([{"phase": "level 1", "e_step": 1.0}]) is None


def test_the_health_page_has_the_query_and_its_items(small_corpus, tmp_path):
    from callslip.methods import make
    from callslip.server.health import health
    from callslip.training.loop import TrainingLog

    index = make("bm25").fit(small_corpus)
    index.save(tmp_path / "index")
    records = [{"phase": "level 1", "epoch": 1, "e_step": 1.0}]
    for probe in ({}, {"probe": {"query": {"q": [0.5, 0.5]}, "items": {"a": [1.0, 0.0]}}}):
        index.log = TrainingLog([records[0] | probe])
        drawn = {plot["name"]: plot["svg"] for plot in health("index", index)["plots"]}
        assert ("probe" in drawn) == bool(probe) and "training-0" in drawn
    assert "a, epoch 1: token 0, 100.0%" in drawn["probe"]


def test_plots_hold_what_they_are_given():
    from callslip.server import plots
    from callslip.server.health import binned

    bars = plots.buckets({1: 10, 2: 4, 3: 2, 4: 1, 9: 1, 16: 1})
    told = re.findall(r"<title>([^<]+)</title>", bars)
    assert told == [
        "1 documents: 10 codes",
        "2 documents: 4 codes",
        "3–4 documents: 3 codes",
        "9–16 documents: 2 codes",
    ]
    import numpy as np

    assert binned(np.array([1, 5, 3])) == [5, 3, 1]
    assert binned(np.arange(8), 4) == [6.5, 4.5, 2.5, 0.5]
    found = plots.training(
        [{"phase": "a", "epoch": 0, "loss": 2.0, "seconds": 1}, {"phase": "a", "epoch": 1, "loss": 1.0}]
    )
    assert [title for title, _ in found] == ["A"]
    assert "loss, epoch 2: 1" in found[0][1] and "seconds" not in found[0][1]
