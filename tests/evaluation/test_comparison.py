"""Comparisons: one table in four forms, marks that the tests back, a page that no name can break."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.errors import BadSetting, UnknownName
from callslip.evaluation.comparison import Comparison
from callslip.evaluation.plot import axis, dot_plot
from callslip.evaluation.report import Report, evaluate_run
from callslip.evaluation.significance import holm, paired_test
from callslip.runtime.progress import duration

QUERIES = [f"q{i}" for i in range(60)]
JUDGEMENTS = {qid: {f"a{qid}": 1} for qid in QUERIES}


def made_report(hit_rate: float, seed: int, **options) -> Report:  # type: ignore[no-untyped-def]
    """A system that ranks the answer first at a given rate, and second otherwise."""
    first = np.random.default_rng(seed).random(len(QUERIES)) < hit_rate
    run = {
        qid: [(f"a{qid}", 2.0), ("x", 1.0)] if good else [("x", 2.0), (f"a{qid}", 1.0)]
        for qid, good in zip(QUERIES, first)
    }
    return evaluate_run(
        run, JUDGEMENTS, measures="RR@10, Success@1", dataset={"name": "made", "sha256": "f"}, **options
    )


REPORTS = {
    "dense": made_report(0.55, 1, timings={"fit_seconds": 75.0, "search_seconds": 0.6}),
    "bm25": made_report(0.5, 2, timings={"fit_seconds": 0.5, "search_seconds": 0.06}),
    "dsi-semantic": made_report(0.97, 3, identifiers={"unique": 12345}),
    "dsi-random": made_report(0.02, 4),
}


def test_cells_hold_the_reports_figures_and_corrected_tests() -> None:
    comparison = Comparison(REPORTS)
    assert comparison.baseline == "bm25"
    others = [name for name in REPORTS if name != "bm25"]
    for measure in ("RR@10", "Success@1"):
        values = {n: [REPORTS[n].per_query[measure][q] for q in QUERIES] for n in REPORTS}
        tests = {n: paired_test(values["bm25"], values[n]) for n in others}
        corrected = dict(zip(others, holm([tests[n].p for n in others])))
        best = max(np.mean(values[n]) for n in REPORTS)
        for name in REPORTS:
            cell = comparison.table[name][measure]
            assert cell.mean == pytest.approx(np.mean(values[name]))
            assert (cell.low, cell.high) == REPORTS[name].measures[measure][1:]
            assert cell.best == (np.mean(values[name]) == best)
            if name == "bm25":
                assert (cell.p, cell.p_corrected, cell.mark) == (None, None, "")
            else:
                assert (cell.p, cell.p_corrected) == (tests[name].p, corrected[name])
    marks = {name: cells["Success@1"].mark for name, cells in comparison.table.items()}
    assert marks == {"dense": "", "bm25": "", "dsi-semantic": "▲", "dsi-random": "▼"}


def test_baseline_is_named_or_first() -> None:
    assert Comparison(REPORTS, baseline="dense").baseline == "dense"
    assert Comparison({"x": REPORTS["dense"], "y": REPORTS["bm25"]}).baseline == "x"
    with pytest.raises(UnknownName, match="baseline"):
        Comparison(REPORTS, baseline="dens")


def test_reports_that_do_not_compare_are_refused() -> None:
    base = REPORTS["bm25"]
    run = {qid: [("x", 1.0)] for qid in QUERIES}
    measures = "RR@10, Success@1"
    same = {"name": "made", "sha256": "f"}
    fewer = {qid: JUDGEMENTS[qid] for qid in QUERIES[1:]}
    for part, other in {
        "data set": evaluate_run(run, JUDGEMENTS, measures=measures, dataset={"sha256": "other"}),
        "split": evaluate_run(run, JUDGEMENTS, measures=measures, dataset=same, split="dev"),
        "queries": evaluate_run(run, fewer, measures=measures, dataset=same),
        "measures": evaluate_run(run, JUDGEMENTS, measures="RR@10", dataset=same),
    }.items():
        with pytest.raises(BadSetting, match=f"different {part}"):
            Comparison({"bm25": base, "other": other})
    with pytest.raises(BadSetting):
        Comparison({})


def test_markdown_is_one_table() -> None:
    lines = Comparison(REPORTS).to_markdown().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + len(REPORTS)
    assert {row.count("|") for row in rows} == {7}
    assert rows[0] == "| system | RR@10 | Success@1 | fit | search per query | unique codes |"
    row = next(row for row in rows if row.startswith("| dsi-semantic"))
    figure = REPORTS["dsi-semantic"].measures["RR@10"]
    assert f"**{figure.mean:.4f}**▲ ({figure.low:.3f}–{figure.high:.3f})" in row
    assert row.endswith("| – | – | 12,345 |")
    assert "| 1 min 15 s | 10 ms | – |" in rows[2]


def test_markdown_names_cannot_break_the_table() -> None:
    text = Comparison({"a|b\n*c* <b>&lt;": REPORTS["dense"], "`x`": REPORTS["bm25"]}).to_markdown()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert rows[2].startswith(r"| a\|b \*c\* \<b\>\&lt; |")


def test_json_has_everything_but_the_queries(tmp_path: Path) -> None:
    paths = Comparison(REPORTS).save(tmp_path / "out")
    assert [path.name for path in paths[:3]] == ["comparison.md", "comparison.json", "comparison.html"]
    assert [path.stem for path in paths[3:]] == [f"0{place}-{name}" for place, name in enumerate(REPORTS, start=1)]
    data = json.loads(paths[1].read_text())
    assert (data["baseline"], data["queries"], data["dataset"]["name"]) == ("bm25", 60, "made")
    assert data["systems"]["dsi-random"]["measures"]["Success@1"]["mark"] == "▼"
    assert data["systems"]["dsi-semantic"]["identifiers"] == {"unique": 12345}
    assert Report.load(paths[3]).per_query == REPORTS["dense"].per_query
    assert Comparison({"../../x": REPORTS["bm25"]}).save(tmp_path / "b")[-1].parent == tmp_path / "b" / "reports"


class Page(HTMLParser):
    """Collects tags and text, and checks that tags close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "circle"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_page_is_self_contained_and_well_formed() -> None:
    html = Comparison(REPORTS).to_html()
    page = Page(html)
    assert page.open == []
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "foreignobject"}
    attributes = {name for _, attrs in page.tags for name in attrs}
    assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "style", "action")}
    assert "url(" not in html and "@import" not in html and "http:" not in html and "https:" not in html
    assert "prefers-color-scheme: dark" in html
    assert sum(tag == "svg" for tag, _ in page.tags) == 2
    assert sum(tag == "circle" for tag, _ in page.tags) == 2 * len(REPORTS)


def test_names_are_escaped_everywhere() -> None:
    evil = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;"
    report = made_report(0.5, 1, identifiers={evil: 1}, settings={"k": evil}, buckets={}, seen=[], split=evil)
    report.notes = [evil]
    report.dataset = {"name": evil, "sha256": evil}
    html = Comparison({evil: report}).to_html()
    page = Page(html)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert html.count("<script") == html.count("<img") == 0
    assert evil in "".join(page.words)


def test_plot_places_dots_by_value() -> None:
    comparison = Comparison(REPORTS)
    cells = {name: row["Success@1"] for name, row in comparison.table.items()}
    svg = ElementTree.fromstring(dot_plot("Success@1", cells, "bm25"))
    groups = list(svg.iter("g"))
    spots = [float(g.find("circle").get("cx")) for g in groups]  # type: ignore[union-attr, arg-type]
    means = [cell.mean for cell in cells.values()]
    (slope, offset), *_ = np.polyfit(means, spots, 1, full=True)
    assert slope > 0
    assert np.allclose(np.array(means) * slope + offset, spots, atol=0.1)
    for group, cell, spot in zip(groups, cells.values(), spots):
        bar = group.find("line")
        assert bar is not None
        assert float(bar.get("x1", 0)) == pytest.approx(offset + slope * cell.low, abs=0.2)
        assert float(bar.get("x1", 0)) <= spot <= float(bar.get("x2", 0))
    assert [g.get("class") for g in groups].count("system baseline") == 1


@given(st.floats(0, 1))
def test_axis_holds_the_highest_value(highest: float) -> None:
    step, top = axis(highest)
    assert top >= highest - 1e-9
    assert top - step < max(highest, 1e-6) + 1e-9
    assert 1 <= round(top / step) <= 6
    assert re.fullmatch(r"[125]\.?0*e[-+]\d+", f"{step:.6e}")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.000421, "0.42 ms"), (0.0018, "1.8 ms"), (0.0184, "18 ms"), (0.9999, "1.0 s"), (3.14, "3.1 s"),
     (59.97, "1 min 00 s"), (245, "4 min 05 s"), (3599.7, "1 h 00 min"), (7810, "2 h 10 min")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_terminal_table() -> None:
    text = Comparison(REPORTS).text(width=140)
    assert "made, split test, 60 queries" in text
    assert "dense, bm25, dsi-semantic, dsi-random: No query has more than 2 hits" in text.replace("\n", " ")
    line = next(line for line in text.splitlines() if line.strip().startswith("dsi-random "))
    assert "▼" in line and f"{REPORTS['dsi-random'].measures['RR@10'].mean:.4f}" in line


def test_narrow_terminals_get_whole_figures() -> None:
    for width, tables in ((60, 2), (140, 1)):
        text = Comparison(REPORTS).text(width=width)
        for name, report in REPORTS.items():
            rows = [line for line in text.splitlines() if line.strip().startswith(f"{name} ")]
            assert all(f"{figure.mean:.4f}" in rows[0] for figure in report.measures.values())
        assert sum(line.strip().startswith("system ") for line in text.splitlines()) == tables
        assert max(map(len, text.splitlines())) <= width


def test_csv_has_a_row_per_system_and_measure() -> None:
    reports = REPORTS | {
        "tuned": dataclasses.replace(REPORTS["dense"], changed_settings={"beam": 5, "parts": ["a", "b"]})
    }
    comparison = Comparison(reports, controls=["bm25"])
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    assert [(row["system"], row["measure"]) for row in rows] == [
        (n, m) for n in comparison.table for m in comparison.measures
    ]
    for row in rows:
        cell = comparison.table[row["system"]][row["measure"]]
        assert float(row["mean"]) == cell.mean and float(row["high"]) == cell.high
        assert row["p_corrected"] == ("" if cell.p_corrected is None else str(cell.p_corrected))
        assert row["control"] == str(int(row["system"] == "bm25"))
        assert row["settings"] == ("beam=5, parts=a,b" if row["system"] == "tuned" else "")


def test_latex_has_a_row_per_system_and_escapes_names() -> None:
    comparison = Comparison({"bm25": REPORTS["bm25"], "a_b&c": REPORTS["dsi-semantic"]})
    lines = comparison.to_latex().splitlines()
    assert lines[-1] == r"\end{tabular}" and r"\toprule" in lines
    columns = len(re.fullmatch(r"\\begin\{tabular\}\{l(r+)\}", lines[lines.index(r"\toprule") - 1])[1])  # type: ignore[index]
    row = next(line for line in lines if line.startswith(r"a\_b\&c"))
    best = comparison.table["a_b&c"]["RR@10"]
    assert best.best and rf"\textbf{{{best.mean:.4f}}}$^{{\blacktriangle}}$" in row
    assert row.replace(r"\&", "").count("&") == columns and row.endswith(r"\\")


def test_changed_settings_and_cached_vectors_are_noted() -> None:
    report = dataclasses.replace(REPORTS["dense"], changed_settings={"beam": 5})
    report.timings = {**report.timings, "cached_texts": 1200}
    comparison = Comparison({"bm25": REPORTS["bm25"], "one": report, "two": report})
    notes = list(comparison.notes())
    assert "settings of one, two: beam=5" in notes
    assert any("up to 1,200 texts came from the cache" in note for note in notes)
    assert comparison.extras()["fit"]["one"].endswith("*") and not comparison.extras()["fit"]["bm25"].endswith("*")
