"""Parts of other packages: a package that is really installed, and classes that are given in Python."""

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import callslip
from callslip.encoders import load_encoder
from callslip.errors import BadSetting, CallslipError, UnknownName
from callslip.identifiers.makers import code_maker
from callslip.methods import find, known, make
from callslip.runtime import plugins
from callslip.storage.folder import read_manifest

SOURCE = Path(__file__).parent / "plugin_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package, installed by pip into a folder of its own, without the network."""
    if importlib.util.find_spec("setuptools") is None or importlib.util.find_spec("pip") is None:
        pytest.skip("setuptools or pip is not installed, so that no package can be built")
    place = tmp_path_factory.mktemp("plugin")
    shutil.copytree(SOURCE, place / "source", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    command += ["--disable-pip-version-check", "--target", str(place / "site"), str(place / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place / "site"


@pytest.fixture
def plugin(installed, monkeypatch):
    """The package as this process sees it."""
    monkeypatch.syspath_prepend(str(installed))
    importlib.invalidate_caches()
    plugins.plugins.cache_clear()
    yield
    plugins.plugins.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "callslip_example"]:
        del sys.modules[name]


def run(*arguments, path=None):
    environment = os.environ | ({"PYTHONPATH": f"{path}{os.pathsep}{Path(__file__).parent.parent}"} if path else {})
    command = [sys.executable, "-m", "callslip", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_command_line_uses_every_part_of_the_package(installed, tmp_path):
    corpus, index = tmp_path / "corpus.lines", tmp_path / "index"
    corpus.write_text("the violin is music\nthe danube is a river\nan apple is a fruit\n" * 4)
    listed = run("methods", path=installed)
    assert "overlap" in listed.stdout and "callslip-example 1.2" in listed.stdout
    fitted = run("fit", corpus, "--format", "lines", "--method", "overlap", "--preset", "strict", "-o", index,
                 path=installed)  # fmt: skip
    assert fitted.returncode == 0, fitted.stderr
    found = run("search", index, "a violin of music", "-k", "1", path=installed)
    assert found.returncode == 0 and "the violin is music" in found.stdout
    assert run("check", index, path=installed).returncode == 0
    values = ["--set", "encoder=letters", "--set", "codes=signs", "--set", "length=3", "--set", "epochs=1"]
    other = tmp_path / "other"
    fitted = run("fit", corpus, "--format", "lines", "-m", "dsi-semantic", *values, "-o", other, path=installed)
    assert fitted.returncode == 0, fitted.stderr
    assert run("search", other, "apple", path=installed).returncode == 0


def test_an_index_says_which_package_opens_it(installed, plugin, small_corpus, tmp_path):
    index = callslip.fit(small_corpus, "overlap", tmp_path / "index")
    assert index.method == "overlap"
    expected = {"class": "callslip_example:Overlap", "package": "callslip-example", "version": "1.2"}
    assert read_manifest(tmp_path / "index")["plugin"] == expected
    again = callslip.load(tmp_path / "index")
    assert [hit.doc_id for hit in again.search("mark music3")] == [hit.doc_id for hit in index.search("mark music3")]
    without = run("search", tmp_path / "index", "violin")  # another process, without the package
    assert without.returncode == 2 and "callslip-example 1.2" in without.stderr
    assert "pip install callslip-example" in without.stderr and "Traceback" not in without.stderr


def test_a_plugin_is_added_to_fused_compared_and_changed_like_any_method(plugin, small_corpus, tmp_path):
    fused = callslip.fit(small_corpus, "bm25+overlap", tmp_path / "fused", settings={"overlap.least": "2"})
    assert fused.parts[1].settings.least == 2
    assert callslip.load(tmp_path / "fused").search("violin music0")[0].doc_id == "music/0"
    comparison = callslip.compare(small_corpus, ["bm25", "overlap:strict"], measures="nDCG@10", controls=False)
    assert set(comparison.reports) == {"bm25", "overlap:strict"}
    index = callslip.fit(small_corpus, "overlap")
    index.add([callslip.Document("new", "a zeppelin")])
    assert index.search("zeppelin")[0].doc_id == "new"
    index.delete(["new"])
    assert not index.search("zeppelin")


def test_parts_by_name(plugin):
    assert "overlap" in known() and find("overlap").load().__name__ == "Overlap"
    assert load_encoder("letters").encode(["abba"], kind="query").shape == (1, 26)
    assert code_maker("signs", width=4, length=2, seed=0).length == 2
    assert make("dsi-semantic", {"codes": "signs"}).settings.codes == "signs"
    with pytest.raises(UnknownName, match="overlap"):
        find("overlapp")
    with pytest.raises(UnknownName, match="letters"):
        load_encoder("letterz")
    with pytest.raises(UnknownName, match="lines"):
        callslip.load_corpus("demo", format="linez")


def test_a_plugin_that_cannot_be_imported_is_named(monkeypatch):
    broken = {"odd": plugins.Plugin("odd", "no_such_module_at_all:X", "odd-package", "3")}
    monkeypatch.setattr(plugins, "plugins", lambda group: broken)
    with pytest.raises(CallslipError, match="odd-package 3") as caught:
        callslip.fit([callslip.Document("1", "a")], "odd")
    assert "no_such_module" in caught.value.problem
    strange = {"odd": plugins.Plugin("odd", "json:JSONDecoder", "odd-package", "3")}
    monkeypatch.setattr(plugins, "plugins", lambda group: strange)
    with pytest.raises(BadSetting, match="JSONDecoder is not a method"):
        callslip.fit([callslip.Document("1", "a")], "odd")
    monkeypatch.setattr(plugins, "plugins", lambda group: {"odd": plugins.Plugin("odd", "json:dumps", "odd", "3")})
    with pytest.raises(BadSetting, match="gives a str"):
        load_encoder("odd")


def test_a_class_of_ones_own(small_corpus, tmp_path):
    from callslip.methods.bm25 import BM25

    class Mine(BM25):
        """BM25, called otherwise."""

    Mine.__module__, Mine.__qualname__ = "my_module", "Mine"
    index = callslip.fit(small_corpus, Mine, tmp_path / "index", settings={"k1": 1.2})
    assert index.settings.k1 == 1.2 and index.method == "my_module:Mine"
    again = callslip.load(tmp_path / "index", method=Mine)
    assert type(again) is Mine and again.settings.k1 == 1.2 and again.search("violin")[0].doc_id.startswith("music")
    with pytest.raises(CallslipError, match=r"class my_module:Mine.*no installed plugin") as caught:
        callslip.load(tmp_path / "index")  # a manifest cannot have modules imported
    assert "method=Mine" in caught.value.remedy
    assert callslip.fit(small_corpus, BM25).method == "bm25"
    with pytest.raises(BadSetting, match="dict is not a method"):
        callslip.fit(small_corpus, dict)
