"""Comparisons include controls, and say what codes alone find before vectors rank."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
from small_log import small_log

from callslip import api
from callslip.corpus.documents import Corpus
from callslip.errors import UnknownName
from callslip.evaluation.comparison import Comparison
from callslip.evaluation.report import Report
from callslip.index.retriever import Retriever
from callslip.methods import find, make

QUICK = {"encoder": "scratch", "epochs": 3, "decoder_width": 32, "batch_size": 64, "width": 4, "leaf": 3}


@pytest.fixture(scope="module")
def shared(small_corpus):
    """An index whose documents share codes, about two each."""
    index = make("dsi-semantic", QUICK | {"epochs": 15, "length": 2}).fit(small_corpus)
    assert index.identifiers.unique < len(small_corpus)
    return index


def naive_expected_success(index, corpus, ranking="share"):
    """Mean over test queries of the chance that the first hit is right, by walking all orders inside buckets."""
    queries, judgements = corpus.split("test")
    before = index.settings.ranking
    index.adjust({"ranking": ranking})
    sizes: dict[tuple[int, ...], int] = {}
    for code in map(tuple, index.identifiers.codes.tolist()):
        sizes[code] = sizes.get(code, 0) + 1
    values = []
    for qid, query in queries.items():
        buckets: dict[tuple[int, ...], list[str]] = {}
        probability = {}
        for hit in index.search(query, k=len(corpus), explain=True):
            buckets.setdefault(hit.code, []).append(hit.doc_id)
            probability[hit.code] = np.exp(hit.why["code_score"]) / sizes[hit.code]
        first = max(buckets, key=lambda code: probability[code])
        orders = list(itertools.permutations(buckets[first]))
        values.append(sum(order[0] in judgements[qid] for order in orders) / len(orders))
    index.adjust({"ranking": before})
    return float(np.mean(values))


@pytest.mark.parametrize("ranking", ["sum", "union", "bucket", "share"])
def test_codes_alone_are_the_same_whatever_ranks_the_hits(shared, small_corpus, ranking):
    truth = naive_expected_success(shared, small_corpus)
    shared.adjust({"ranking": ranking})
    report = api.evaluate(shared, small_corpus, measures="Success@1 nDCG@10")
    assert report.codes_alone is not None
    assert report.codes_alone["Success@1"].mean == pytest.approx(truth, abs=1e-6)
    assert shared.settings.ranking == ranking
    if ranking == "share":
        assert report.shared_codes is not None
        for measure, figures in report.shared_codes.items():
            assert report.codes_alone[measure].mean == pytest.approx(figures["expected"])


def test_codes_alone_can_be_left_out_and_survive_the_file(shared, small_corpus, tmp_path, monkeypatch):
    shared.adjust({"ranking": "sum"})
    report = api.evaluate(shared, small_corpus)
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json").codes_alone == report.codes_alone
    assert "codes alone" in report.text() and "ranked" in report.text()
    monkeypatch.setattr(type(shared), "adjust", lambda *_: pytest.fail("a second search"))
    assert api.evaluate(shared, small_corpus, codes_alone=False).codes_alone is None


def test_unique_codes_that_rank_alone_are_searched_once(small_corpus, monkeypatch):
    index = make("tied-atomic", {"encoder": "scratch", "epochs": 0}).fit(small_corpus)
    monkeypatch.setattr(Retriever, "adjust", lambda *_: pytest.fail("a second search"))
    report = api.evaluate(index, small_corpus)
    assert report.codes_alone is not None
    for measure, figure in report.measures.items():
        assert report.codes_alone[measure].mean == pytest.approx(figure.mean)
    assert api.evaluate(make("bm25").fit(small_corpus), small_corpus).codes_alone is None


def test_a_forest_has_codes_too():
    log = small_log()
    index = make("recforest", {"epochs": 1, "decoder_width": 32, "width": 4, "trees": 2}).fit(log)
    report = api.evaluate(index, log, measures="R@5")
    assert report.codes_alone is not None and 0 <= report.codes_alone["R@5"].mean <= 1


@pytest.fixture(scope="module")
def compared(small_corpus):
    order: list[str] = []
    table = api.compare(
        small_corpus,
        ["dsi-semantic", "bm25"],
        settings=QUICK,
        measures="Success@1 nDCG@10",
        on_report=lambda name, _: order.append(name),
    )
    return table, order


def test_controls_come_first_and_once(compared):
    table, order = compared
    controls = ["bm25", "dense", "hybrid", "memory", "dsi-random"]
    assert order == list(table.reports) == [*controls, "dsi-semantic"]
    assert table.controls == controls
    assert table.baseline == "dsi-semantic"  # the first that was named
    encoders = {name: report.settings.get("encoder") for name, report in table.reports.items()}
    assert {encoders[name] for name in ("dense", "memory", "dsi-random", "dsi-semantic")} == {"scratch"}
    assert "dense.encoder=scratch" in table.reports["hybrid"].settings["options"]


def test_controls_and_codes_alone_are_in_every_form(compared, tmp_path):
    table, _ = compared
    expected = f"{table.reports['dsi-semantic'].codes_alone['nDCG@10'].mean:.4f}"
    text, markdown, page = table.text(width=200), table.to_markdown(), table.to_html()
    head = next(line for line in markdown.splitlines() if line.startswith("| system"))
    assert head.startswith("| system | codes alone | Success@1 | nDCG@10 |")
    assert any(line.startswith(f"| dsi-semantic | {expected} |") for line in markdown.splitlines())
    assert any(line.startswith("| memory (control) | – |") for line in markdown.splitlines())
    line = next(line for line in text.splitlines() if line.strip().startswith("dsi-semantic "))
    assert line.split()[1] == expected
    assert "dsi-random (control)" in text and "expected nDCG@10 of the order by codes" in " ".join(text.split())
    assert '<span class="tag">control</span>' in page and '<span class="tag">baseline</span>' in page
    assert page.index("codes alone</th>") < page.index("Success@1</th>") and f"<td>{expected}</td>" in page
    systems = json.loads(table.save(tmp_path)[1].read_text())["systems"]
    assert systems["memory"]["control"] and not systems["dsi-semantic"]["control"]
    assert systems["dsi-semantic"]["codes_alone"]["nDCG@10"]["mean"] == pytest.approx(float(expected), abs=1e-4)
    assert systems["bm25"]["codes_alone"] is None


def test_without_controls_there_is_what_was_named(small_corpus):
    table = api.compare(small_corpus, ["bm25"], controls=False)
    assert list(table.reports) == ["bm25"] and table.controls == []
    assert "codes alone" not in table.to_markdown() and "control" not in table.to_markdown()


def test_the_controls_of_a_corpus(small_corpus):
    unjudged = Corpus(small_corpus.documents, small_corpus.queries, {"test": small_corpus.judgements["test"]})
    assert api.controls_for(unjudged, "test") == ["bm25", "dense", "hybrid", "dsi-random"]
    logged = api.controls_for(small_log(), "test")
    assert logged == ["popularity", "item-knn", "seqrules", "transitions", "dsi-random"]
    assert all(make(name).could_read(histories=True) for name in logged)


def test_a_control_that_the_settings_silence_is_left_out():
    table = api.compare(small_log(), ["popularity"], settings={"queries": "text"}, measures="R@5")
    assert list(table.reports) == table.controls == ["popularity", "item-knn", "seqrules", "transitions"]


def test_settings_reach_the_parts_of_a_hybrid_that_stands_alone(small_corpus):
    table = api.compare(small_corpus, ["bm25+dense"], settings={"encoder": "scratch"}, controls=False)
    assert table.reports["bm25+dense"].settings["options"] == ["dense.encoder=scratch"]


def test_a_misspelt_setting_is_refused_with_controls_too(small_corpus, monkeypatch):
    monkeypatch.setattr(Retriever, "fit", lambda *_: pytest.fail("it was fitted"))
    with pytest.raises(UnknownName, match="epocs"):
        api.compare(small_corpus, ["bm25"], settings={"epocs": 3})


def test_controls_have_no_beam_to_examine(small_corpus):
    """`exact` is for the methods that were named: those without a beam are refused, controls are not."""
    table = api.compare(small_corpus, ["dsi-semantic"], settings=QUICK, exact=True)
    assert table.reports["dsi-semantic"].pruning is not None
    assert all(table.reports[name].pruning is None for name in table.controls)


def test_every_method_says_whether_codes_alone_order_it(small_corpus):
    """A method with the setting `ranking` has an order by codes alone, which its search settings allow."""
    for name in ("dsi-semantic", "genret", "glen", "asi", "uri", "nci", "tiger", "deep-retrieval", "recforest"):
        cls = find(name).load()
        assert {"ranking", "bucket_limit"} <= cls.search_settings, name
        assert {"ranking", "bucket_limit"} <= {field.name for field in dataclasses.fields(cls.Settings)}, name
        assert cls.code_settings is not Retriever.code_settings, name


def test_a_comparison_marks_the_controls_it_is_given(compared):
    table, _ = compared
    again = Comparison(dict(reversed(table.reports.items())), controls=("dense",))
    assert next(iter(again.reports)) == "dense" and again.label("dense") == "dense (control)"
    assert again.label("bm25") == "bm25"
