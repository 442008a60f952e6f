"""Reports: figures with their context, saved and read back whole; JSON that any reader takes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import callslip
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadInput, BadSetting
from callslip.evaluation.plain import plain, to_json
from callslip.evaluation.report import SEEN_GROUPS, Report, evaluate_run
from callslip.evaluation.significance import bootstrap_interval
from callslip.methods import make

JUDGEMENTS = {"q1": {"a": 1}, "q2": {"b": 2, "c": 1}, "q3": {"c": 1, "d": 1}, "q4": {"d": 1, "e": 0}}
RUN = {
    "q1": [("a", 2.0), ("b", 1.0)],
    "q2": [("a", 2.0), ("b", 2.0), ("c", 2.0)],
    "q3": [("d", 1.0)],
    "q4": [("e", 1.0)],
}
BUCKETS = {"q1": [["a"], ["b"]], "q2": [["a", "b", "c"]], "q3": [["d"]], "q4": [["e"]]}


def corpus() -> Corpus:
    documents = [Document(name, f"text of {name}") for name in "abcde"]
    return Corpus(documents, {q: Query(q, f"query {q}") for q in JUDGEMENTS}, {"test": JUDGEMENTS}, name="tiny")


def full_report(**changes) -> Report:  # type: ignore[no-untyped-def]
    options = {
        "corpus": corpus(),
        "name": "dsi-semantic",
        "buckets": BUCKETS,
        "seen": {"a", "c", "e"},
        "identifiers": {"unique": np.int64(3), "perplexity": np.array([2.0, math.nan])},
        "timings": {"fit_seconds": np.float32(12.5), "search_seconds": 0.2},
        "settings": {"width": 32, "path": Path("x"), "levels": (1, 2)},
        "seed": 5,
    }
    return evaluate_run(RUN, JUDGEMENTS, **(options | changes))


def test_means_and_intervals_are_those_of_the_values_per_query() -> None:
    report = full_report(measures="RR@10, Success@1")
    assert report.per_query["RR@10"] == {"q1": 1.0, "q2": 0.5, "q3": 1.0, "q4": 0.0}
    expected = bootstrap_interval([1.0, 0.5, 1.0, 0.0], seed=5)
    assert report.measures["RR@10"] == pytest.approx(expected)
    assert report.queries == 4
    assert report.dataset == corpus().fingerprint()
    assert report.versions["numpy"] == np.__version__
    assert "torch" in report.versions and "python" in report.versions


def test_shared_codes_figures() -> None:
    shared = full_report(measures="RR@10").shared_codes
    assert shared is not None
    assert shared["RR@10"]["ranked"] == pytest.approx((1 + 1 / 2 + 1 + 0) / 4)
    assert shared["RR@10"]["optimistic"] == pytest.approx((1 + 1 + 1 + 0) / 4)
    # q2: two of three documents are relevant; the first relevant one is first 2/3 of the time, else second.
    assert shared["RR@10"]["expected"] == pytest.approx((1 + (2 / 3 + 1 / 3 * 1 / 2) + 1 + 0) / 4)
    assert shared["RR@10"]["expected_by"] == "exact"
    assert full_report(buckets=None).shared_codes is None
    assert "code" not in shared["RR@10"]


def test_figures_by_code_stand_beside_the_expected_ones() -> None:
    from callslip.evaluation.comparison import Comparison

    codes = {qid: [n for n, bucket in enumerate(buckets) for _ in bucket] for qid, buckets in BUCKETS.items()}
    code_of = {d: n for buckets in BUCKETS.values() for n, bucket in enumerate(buckets) for d in bucket}
    report = full_report(measures="RR@10", codes=codes, code_of=code_of)
    assert report.shared_codes is not None
    figures = report.shared_codes["RR@10"]
    assert "by code" in report.text() and f"{figures['code']:.4f}" in report.text()
    comparison = Comparison({"dsi-semantic": report})
    assert comparison.extras()["RR@10 by code"]["dsi-semantic"] == f"{figures['code']:.4f}"
    assert comparison.extras()["RR@10 expected"]["dsi-semantic"] == f"{figures['expected']:.4f}"
    assert "by code" in comparison.to_html()
    assert Report.from_dict(report.to_dict()).shared_codes == report.shared_codes
    without = Comparison({"dsi-semantic": full_report(measures="RR@10")})
    assert "RR@10 by code" not in without.extras() and "dsi-semantic, by code" not in without.to_html()


@pytest.mark.parametrize("ranking", ["bucket", "share", "code"])
def test_an_evaluation_counts_codes_and_the_queries_of_each(small_corpus, ranking) -> None:

    values = {"encoder": "scratch", "width": 3, "length": 2, "epochs": 2, "decoder_width": 16, "ranking": ranking}
    index = make("dsi-semantic", values).fit(small_corpus)
    report = callslip.evaluate(index, small_corpus, measures="R@1, RR@10", depth=10)
    assert report.shared_codes is not None
    queries, judgements = small_corpus.split("test")
    code_of = {d: tuple(c) for d, c in zip(small_corpus.doc_ids, index.identifiers.in_row_order()[1].tolist())}
    right = []
    for query in queries.values():
        first = index.search(query, k=1)[0].code
        right.append(any(code_of[d] == first for d in judgements[query.query_id]))
    assert report.shared_codes["R@1"]["code"] == pytest.approx(np.mean(right))
    assert report.shared_codes["R@1"]["code"] >= report.shared_codes["R@1"]["expected"]
    sizes = Counter(code_of.values())  # one query for each document
    assert report.identifiers["codes_asked"] == len(sizes)
    assert report.identifiers["queries_per_code_max"] == max(sizes.values())
    assert report.identifiers["queries_per_code_mean"] == pytest.approx(40 / len(sizes))


def test_seen_and_unseen_queries() -> None:
    """Seen are a, c and e: q1 is all seen, q2 (b, c) and q3 (c, d) in part, q4 (d; e is no answer) not."""
    seen = full_report(measures="RR@10").seen
    assert seen is not None and list(seen) == list(SEEN_GROUPS)
    assert {key: group.queries for key, group in seen.items()} == {
        "all_seen": 1,
        "some_seen": 2,
        "none_seen": 1,
    }
    assert seen["all_seen"].measures["RR@10"].mean == 1.0
    assert seen["some_seen"].measures["RR@10"].mean == pytest.approx(0.75)
    assert seen["none_seen"].measures["RR@10"].mean == 0.0
    nothing = full_report(seen=set()).seen
    assert nothing is not None
    assert (nothing["none_seen"].queries, nothing["all_seen"].queries, nothing["all_seen"].measures) == (
        4,
        0,
        {},
    )
    assert full_report(seen=None).seen is None


def test_notes_tell_what_the_figures_hide() -> None:
    judgements = {**JUDGEMENTS, "q5": {"a": 1}, "q6": {"a": 0}}
    notes = " ".join(evaluate_run(RUN, judgements, measures="R@2, R@100").notes)
    assert "2 of 6 queries have no hits" in notes
    assert "1 of 6 queries have no relevant document" in notes
    assert "more than 3 hits, which limits R@100" in notes
    assert evaluate_run(RUN, JUDGEMENTS, measures="R@2").notes == []


def test_answers_that_the_index_does_not_hold_are_counted() -> None:
    def notes(index: callslip.Retriever) -> list[str]:
        return [
            note for note in callslip.evaluate(index, corpus(), split="test").notes if "missing from the index" in note
        ]

    assert notes(make("bm25").fit(corpus())) == []
    part = make("bm25").fit(Corpus([d for d in corpus() if d.doc_id not in "de"], name="part"))
    assert notes(part) == [  # e answers nothing: its grade is 0
        "1 of 4 documents that answer queries are missing from the index: 'd'."
    ]
    part.delete(["b"])
    assert [note.split(" that")[0] for note in notes(part)] == ["2 of 4 documents"]
    assert notes(part)[0].endswith("'b' and others.")


def test_save_and_load(tmp_path: Path) -> None:
    report = full_report()
    report.save(tmp_path / "new" / "report.json")
    loaded = Report.load(tmp_path / "new" / "report.json")
    assert loaded == Report.from_dict(report.to_dict())
    assert loaded.to_dict() == report.to_dict()
    assert loaded.measures == report.measures and loaded.seen == report.seen
    assert loaded.per_query == report.per_query
    assert loaded.identifiers == {"unique": 3, "perplexity": [2.0, None]}
    assert loaded.text() == report.text()


def test_per_query_json_is_by_query() -> None:
    values = json.loads(full_report(measures="RR@10, Success@1").per_query_json())
    assert list(values) == ["q1", "q2", "q3", "q4"]
    assert values["q2"] == {"RR@10": 0.5, "Success@1": 0.0}


START = '{"format": "callslip-report"'


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", "{", "null", "\x00", START + "}", START + ', "format_version": 99}',
     START + ', "format_version": 1}', START + ', "format_version": 1, "measures": {"a": 3}}'],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(BadInput, match=r"x\.json") as caught:
        Report.load(tmp_path / "x.json")
    assert caught.value.remedy
    with pytest.raises(BadInput):
        Report.load(tmp_path / "missing.json")


def test_nothing_to_evaluate_is_refused() -> None:
    with pytest.raises(BadSetting, match="no judged queries"):
        evaluate_run(RUN, {})
    with pytest.raises(BadSetting, match="no query of the run is judged"):
        evaluate_run({"1": [("a", 1.0)]}, JUDGEMENTS)
    assert evaluate_run({}, JUDGEMENTS).measures["nDCG@10"].mean == 0.0


def test_text_shows_what_matters() -> None:
    text = full_report().text(width=110)
    for part in ("dsi-semantic on tiny, split test: 4 queries", "nDCG@10", "95 % interval", "optimistic",
                 "seed 5", "all answers had a training query", "unique 3", "fit seconds 12.5"):  # fmt: skip
        assert part in text
    markup = full_report(name="[bold]x[/bold]", buckets=None, seen=None).text()
    assert "[bold]x[/bold]" in markup


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(json_values)
def test_json_has_no_nan_and_loses_nothing_else(value: object) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(to_json(value), parse_constant=refuse) == plain(value)


def test_plain_takes_what_reports_hold() -> None:
    @dataclass
    class Point:
        x: float
        y: object

    value = {
        1: Point(float("inf"), {3, 2}),
        "array": np.ones((1, 2), dtype=np.float32),
        "flag": np.bool_(True),
    }
    assert plain(value) == {"1": {"x": None, "y": [2, 3]}, "array": [[1.0, 1.0]], "flag": True}
    assert plain(Path("a") / "b") == str(Path("a") / "b")


def test_evaluation_needs_no_torch() -> None:
    parts = "measures, runs, shared_codes, significance, report, comparison, page, plot, plain, terminal, typos"
    code = f"import sys; from callslip.evaluation import {parts}; print('torch' in sys.modules)"
    root = str(Path(callslip.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": root}, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_public_names_are_loaded_on_demand() -> None:
    import callslip.evaluation as evaluation

    for name in evaluation.__all__:
        assert getattr(evaluation, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        evaluation.nonsense  # noqa: B018
