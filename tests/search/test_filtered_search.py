"""Searches under filters, one for all queries or one for each, from Python and from the command line."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from callslip import api
from callslip.cli import main
from callslip.errors import BadSetting
from callslip.filters.filter import Filter
from callslip.methods import make

QUICK = {"encoder": "scratch", "epochs": 5, "decoder_width": 32, "width": 4, "leaf": 3, "batch_size": 64}
METHODS = ["bm25", "dsi-semantic"]


@pytest.fixture(scope="module")
def indexes(small_corpus, tmp_path_factory):
    found = {}
    for name in ("bm25", "dsi-semantic"):
        path = tmp_path_factory.mktemp("filters") / name
        make(name, QUICK if name != "bm25" else {}).fit(small_corpus).save(path)
        found[name] = path
    return found


@pytest.mark.parametrize("name", METHODS)
def test_k_hits_come_back_when_k_documents_match(name, indexes, small_corpus, tmp_path):
    index = api.load(shutil.copytree(indexes[name], tmp_path / "copy"))
    some = frozenset(small_corpus.doc_ids[::7])
    index.delete(["river/0", "river/1"])
    for filter in (
        Filter(where={"topic": "river"}),
        Filter(where={"topic": ["river", "music"], "even": "true"}),
        Filter(where_not={"topic": "river"}),
        Filter(allow=some),
        Filter(where={"even": False}, deny=some),
        Filter(predicate=lambda document: document.doc_id.endswith("3")),
    ):
        matching = {d.doc_id for d in small_corpus if filter.accepts(d)} - {"river/0", "river/1"}
        for k in (1, 3, len(matching)):
            hits = index.search("the mark", k=k, filter=filter)  # BM25 finds only documents with a word of the query
            assert len(hits) == k
            assert set(hits.doc_ids) <= matching


@pytest.mark.parametrize("name", METHODS)
def test_a_filter_for_each_query(name, indexes, small_corpus):
    index = api.load(indexes[name])
    queries = [query.text for query in small_corpus.queries.values()][:8]
    river, even = Filter(where={"topic": "river"}), Filter(where={"even": True})
    nothing = Filter(where={"topic": "nothing"})
    asked = [river, None, even, Filter(where={"topic": "river"}), nothing, None, even, Filter(allow={"fruit/3"})]
    calls = []
    search = index.find
    index.find = lambda some, *rest: calls.append(len(some)) or search(some, *rest)
    batch = index.search_batch(queries, 5, asked)
    assert calls == [2, 2, 2, 1]
    for query, filter, hits in zip(queries, asked, batch, strict=True):
        alone = index.search(query, 5, filter)
        assert hits.doc_ids == alone.doc_ids
        assert hits.scores == pytest.approx(alone.scores, abs=1e-4)
    assert [len(hits) for hits in batch][4] == 0
    assert index.search_batch([], 5, []) == []


def test_wrong_filters_for_a_batch(indexes):
    index = api.load(indexes["bm25"])
    with pytest.raises(BadSetting, match="1 filters for 2 queries"):
        index.search_batch(["a", "b"], 5, [None])
    for wrong in ("topic=river", ["topic=river"], {"topic": "river"}, 7):
        with pytest.raises(BadSetting, match="not a filter"):
            index.search_batch(["a"], 5, wrong)


@pytest.fixture
def command(indexes, monkeypatch, capsys):
    """`callslip search` on the BM25 index: doc_ids found, what was said, and the exit code."""

    def run(*arguments):
        argv = ["callslip", "search", str(indexes["bm25"]), "the mark", "-k", "40", "--json", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        hits = json.loads(said.out)["hits"] if said.out else []
        assert "Traceback" not in said.err
        return [hit["doc_id"] for hit in hits], said.err, ended.value.code

    return run


def test_the_command_line_filters(command, tmp_path):
    found, said, code = command("--where", "topic!=river,music", "--where", "even=true")
    assert sorted(found) == sorted(f"{topic}/{n}" for topic in ("fruit", "metal") for n in range(0, 10, 2))
    assert (said, code) == ("", 0)
    (tmp_path / "ids.txt").write_bytes("\ufeffriver/1\r\n\r\nriver/2\nnowhere\n".encode())
    found, said, code = command(
        "--allow", f"@{tmp_path / 'ids.txt'}", "--allow", "music/1, music/2", "--deny", "x,river/2"
    )
    assert sorted(found) == ["music/1", "music/2", "river/1"]
    assert said == "1 of 5 allowed doc_ids are not in the index: nowhere\n"
    assert code == 0


@pytest.mark.parametrize("arguments", [["--where", "topic=nothing"], ["--where", "topic=5..7"], ["--allow", ""]])
def test_the_command_line_says_when_nothing_matches(command, arguments):
    assert command(*arguments) == ([], "the filter matches no document\n", 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--where", "topik=river"], ["'topik'", "Did you mean 'topic'", "'even'"]),
        (["--where", "topic"], ["cannot parse the filter", "field=low..high"]),
        (["--where", "year=2022..2018"], ["2022..2018", "Swap"]),
        (["--allow", "@nowhere.txt"], ["nowhere.txt", "@FILE"]),
        (["--deny", "@."], ["cannot be read"]),
    ],
)
def test_the_command_line_explains_mistakes(command, arguments, words):
    found, said, code = command(*arguments)
    assert (found, code) == ([], 2)
    assert all(word in said for word in words), said


def test_the_page_on_filters_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "filters.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(block, {})
    printed = capsys.readouterr().out
    assert f"```\n{printed}```" in page, "the page shows another output than its program prints"
