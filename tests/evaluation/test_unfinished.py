"""A comparison that was stopped goes on with the method that it was at."""

from __future__ import annotations

import pytest

from callslip import api
from callslip.index.retriever import Retriever

METHODS = ["bm25", "dense", "dsi-semantic"]
SETTINGS = {"encoder": "scratch", "epochs": 1, "decoder_width": 16, "decoder_layers": 1, "width": 4}
OPTIONS = {"controls": False, "codes_alone": False, "measures": "nDCG@10"}


@pytest.fixture
def fits(monkeypatch):
    """The methods that are fitted; `stop_at` ends the fit of a method like Ctrl-C."""
    seen: list[str] = []
    seen_stop = {"at": None}
    fit = Retriever.fit

    def recorded(self, corpus, checkpoints=None):
        if self.method == seen_stop["at"]:
            raise KeyboardInterrupt
        seen.append(self.method)
        return fit(self, corpus, checkpoints)

    monkeypatch.setattr(Retriever, "fit", recorded)
    return seen, seen_stop


def compare(corpus, out, **more):
    return api.compare(corpus, METHODS, settings=SETTINGS, out=out, **OPTIONS | more)


def test_only_what_is_missing_is_fitted_and_the_table_is_the_same(small_corpus, tmp_path, fits):
    seen, stop = fits
    whole = compare(small_corpus, tmp_path / "whole").to_dict()["systems"]
    seen.clear()
    stop["at"] = "dsi-semantic"
    with pytest.raises(KeyboardInterrupt):
        compare(small_corpus, tmp_path / "out")
    assert seen == ["bm25", "dense"] and not (tmp_path / "out" / "comparison.json").exists()
    seen.clear()
    stop["at"] = None
    again = compare(small_corpus, tmp_path / "out").to_dict()["systems"]
    assert seen == ["dsi-semantic"]
    assert {n: s["measures"] for n, s in again.items()} == {n: s["measures"] for n, s in whole.items()}
    assert (tmp_path / "out" / "comparison.json").exists() and not (tmp_path / "out" / "unfinished").exists()


def test_a_finished_comparison_is_measured_again(small_corpus, tmp_path, fits):
    compare(small_corpus, tmp_path)
    fits[0].clear()
    compare(small_corpus, tmp_path)
    assert fits[0] == METHODS


@pytest.mark.parametrize(
    "changed", [{"measures": "RR@10"}, {"split": "train"}, {"settings": SETTINGS | {"width": 5}}, {"typos": 1}]
)
def test_reports_of_another_comparison_are_not_used(small_corpus, tmp_path, fits, changed):
    seen, stop = fits
    stop["at"] = "dsi-semantic"
    with pytest.raises(KeyboardInterrupt):
        compare(small_corpus, tmp_path)
    seen.clear()
    stop["at"] = None
    options = {"settings": SETTINGS} | OPTIONS | changed
    api.compare(small_corpus, METHODS, out=tmp_path, **options)
    assert seen == METHODS


def test_a_damaged_report_is_measured_again(small_corpus, tmp_path, fits):
    seen, stop = fits
    stop["at"] = "dsi-semantic"
    with pytest.raises(KeyboardInterrupt):
        compare(small_corpus, tmp_path)
    seen.clear()
    stop["at"] = None
    (tmp_path / "unfinished" / "report-dense.json").write_text("{")
    compare(small_corpus, tmp_path)
    assert seen == ["dense", "dsi-semantic"]
