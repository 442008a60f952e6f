"""Run files: what is written is read back, trec_eval reads the same ranking, and bad lines are refused."""

from __future__ import annotations

from pathlib import Path

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.errors import BadInput, BadSetting
from callslip.evaluation.runs import falling_scores, read_run, run_lines, write_run

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.sampled_from(
    ["a b", "a%20b", "100%", "%", "%%41", "\t", "a\u00a0b", "\u2028", "a\x85", "50%2", "%2 5", "é", "\x00"]
)
scores = st.floats(-1e6, 1e6) | st.sampled_from([1.0, 1.0, 0.0, -0.0, 1 + 1e-12, 1e-45, -1e-45, 1e300, -1e30])
runs = st.dictionaries(names, st.lists(st.tuples(names, scores), max_size=12, unique_by=lambda hit: hit[0]), max_size=4)


@settings(max_examples=200, deadline=None)
@given(run=runs, tag=names)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, run: dict, tag: str) -> None:
    path = tmp_path_factory.mktemp("runs") / "x.run"
    write_run(run, path, tag)
    back, back_tag = read_run(path)
    assert {q: [d for d, _ in hits] for q, hits in back.items()} == {
        q: [d for d, _ in hits] for q, hits in run.items() if hits
    }
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        assert len(line.split(" ")) == 6 == len(line.split())
    for hits in back.values():
        single = np.array([score for _, score in hits], dtype=np.float32)
        assert np.all(np.diff(single.astype(np.float64)) < 0)
        assert np.all(np.diff([score for _, score in hits]) < 0)
    if back:
        assert back_tag == tag
    assert list(run_lines(back, tag)) == list(run_lines(run, tag))  # a second trip changes nothing


@settings(max_examples=200, deadline=None)
@given(st.lists(scores, max_size=30))
def test_real_scores_are_kept_where_they_fall(values: list[float]) -> None:
    falling = falling_scores(values)
    for place, (value, written) in enumerate(zip(values, falling)):
        rounded = np.float32(np.clip(value, np.finfo(np.float32).min, np.finfo(np.float32).max))
        if place == 0 or rounded < falling[place - 1]:
            assert written == rounded
        else:
            below = np.nextafter(falling[place - 1], np.float32(-np.inf))
            assert written == below


def test_trec_eval_sees_our_order(tmp_path: Path) -> None:
    """Ties by doc_id would put z first; scores that differ only in double precision are ties to trec_eval."""
    run = {"q": [("a", 1.0), ("z", 1.0), ("m", 1.0 - 1e-13), ("n", 1.0)]}
    write_run(run, tmp_path / "x.run")
    for rank, doc_id in enumerate(["a", "z", "m", "n"], start=1):
        qrels = {"q": {doc_id: 1}}
        lines = list(ir_measures.read_trec_run(str(tmp_path / "x.run")))
        assert ir_measures.pytrec_eval.calc_aggregate([ir_measures.RR], qrels, lines)[ir_measures.RR] == 1 / rank


def test_six_columns(tmp_path: Path) -> None:
    write_run({"1": [("a b", 2.5), ("c", 0.1)], "2": []}, tmp_path / "x.run", tag="my run")
    assert (tmp_path / "x.run").read_text() == "1 Q0 a%20b 1 2.5 my%20run\n1 Q0 c 2 0.1 my%20run\n"


def test_files_from_elsewhere(tmp_path: Path) -> None:
    """Tabs, blank lines, Windows line ends, lines out of order, ties by line, foreign percent signs."""
    path = tmp_path / "x.run"
    path.write_bytes(b"1\tQ0\tb%2Fc\t2\t1.0\tbm25\r\n\r\n1 Q0 a 1 3e0 bm25\r\n2 0 x 1 -1 bm25\r\n1 Q0 z 7 1.0 bm25")
    run, tag = read_run(path, decode=False)
    assert (run, tag) == ({"1": [("a", 3.0), ("b%2Fc", 1.0), ("z", 1.0)], "2": [("x", -1.0)]}, "bm25")
    assert read_run(path)[0]["1"][1][0] == "b/c"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 Q0 a 2 0.5", "found 5"),
        ("1 Q0 a b 2 0.5 tag", "found 7"),
        ("1 Q0 b 2 half tag", "field 'score'"),
        ("1 Q0 b 2 nan tag", "field 'score'"),
        ("1 Q0 b 2 inf tag", "field 'score'"),
        ("1 Q0 a 2 0.5 tag", "'a' twice"),
    ],
)
def test_malformed_lines_name_file_and_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "x.run"
    path.write_text(f"1 Q0 a 1 1.0 tag\n\n{line}\n")
    with pytest.raises(BadInput, match=problem) as caught:
        read_run(path)
    assert str(caught.value).startswith(f"{path}:3: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.run").write_bytes(b"1 Q0 caf\xe9 1 1.0 tag\n")
    for name in ("latin.run", "none.run", "."):
        with pytest.raises(BadInput):
            read_run(tmp_path / name)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_no_file_can_hold_are_refused(score: float) -> None:
    with pytest.raises(BadSetting, match="score"):
        list(run_lines({"q": [("a", score)]}))


def test_other_refusals() -> None:
    lowest = float(np.finfo(np.float32).min)
    for run in ({"q": [("a", lowest), ("b", lowest)]}, {"q": [("a", 1.0), ("a", 0.5)]}, {"": [("a", 1.0)]}):
        with pytest.raises(BadSetting):
            list(run_lines(run))
