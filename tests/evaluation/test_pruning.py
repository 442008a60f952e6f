"""What the beam loses to pruning, against every code scored by teacher forcing and a beam in plain loops."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from reference.search import ranked, score_every_code, step_by_step_beam

from callslip import api
from callslip.cli import main
from callslip.errors import Unsupported
from callslip.evaluation.comparison import Comparison
from callslip.evaluation.pruning import FIRST_HITS, Loss, _losses
from callslip.evaluation.report import Report
from callslip.evaluation.significance import Interval, paired_test
from callslip.methods import make

QUICK = {"encoder": "scratch", "epochs": 5, "decoder_width": 32, "width": 4, "leaf": 1, "batch_size": 64}
MEASURES = "RR@3 R@3"


@pytest.fixture(scope="module")
def folder(small_corpus, tmp_path_factory):
    """Nearly every document has a code of its own, and the model is not sure of any."""
    path = tmp_path_factory.mktemp("pruning") / "index"
    api.fit(small_corpus, "dsi-semantic", path, settings=QUICK)
    return path


@pytest.fixture
def index(folder, tmp_path):
    return api.load(shutil.copytree(folder, tmp_path / "copy"))


def pruning_of(index, corpus, beam, **options):
    report = api.evaluate(
        index.adjust({"beam": beam}), corpus, **{"measures": MEASURES, "depth": 3} | options, exact=True
    )
    assert report.pruning is not None
    return report.pruning


class Plain:
    """The codes and hits of every query of the test split, one query, code and document at a time."""

    def __init__(self, index, corpus, beam, deleted=()):
        queries, self.judgements = corpus.split("test")
        ids, table = index.identifiers.in_row_order()
        self.beam = beam
        self.code_of = {d: tuple(code) for d, code in zip(ids, table.tolist(), strict=True) if d not in deleted}
        self.vectors = dict(zip(ids, index.vectors, strict=True))
        self.weight = index.settings.similarity_weight
        codes = sorted(set(self.code_of.values()))
        self.written, self.best, self.hits = {}, {}, {}
        for qid, vector in zip(queries, index.texts.encode([query.text for query in queries.values()]), strict=True):
            scores = score_every_code(index.model, torch.from_numpy(vector), codes)
            self.written[qid] = step_by_step_beam(index.model, torch.from_numpy(vector), codes, beam)
            self.best[qid] = ranked(scores)[:beam]
            self.hits[qid] = [self.rank(vector, scores, some) for some in (self.written[qid], self.best[qid])]

    def rank(self, vector, scores, codes):
        score = {d: scores[c] + self.weight * float(self.vectors[d] @ vector) for d, c in self.code_of.items()}
        return sorted((d for d, code in self.code_of.items() if code in codes), key=lambda d: -score[d])

    def best_lost(self):
        return np.mean([self.best[qid][0] not in self.written[qid] for qid in self.best])

    def codes_found(self):
        return np.mean([len(set(self.best[q]) & set(self.written[q])) / len(self.best[q]) for q in self.best])

    def reciprocal_ranks(self, which):
        values = []
        for qid, judged in self.judgements.items():
            ranks = [rank for rank, d in enumerate(self.hits[qid][which][:3], start=1) if judged.get(d, 0) > 0]
            values.append(1 / ranks[0] if ranks else 0.0)
        return values


@pytest.mark.parametrize("beam", [3, 5])
def test_the_figures_are_those_of_plain_loops(index, small_corpus, beam):
    """Three hits never need more than three codes, so nothing grows and the measures are the beam's own."""
    pruning, plain = pruning_of(index, small_corpus, beam), Plain(index, small_corpus, beam)
    assert (pruning.beam, pruning.grown) == (beam, 0)
    assert pruning.best_lost == pytest.approx(plain.best_lost())
    assert pruning.codes_found == pytest.approx(plain.codes_found())
    assert pruning.codes_found < 1
    first, second = plain.reciprocal_ranks(0), plain.reciprocal_ranks(1)
    loss = pruning.measures["RR@3"]
    assert (loss.beam, loss.exact) == pytest.approx((np.mean(first), np.mean(second)))
    assert loss.difference == pytest.approx(paired_test(first, second)[:3])
    differ = [some[:3] != best[:3] for some, best in plain.hits.values()]
    assert 0 < pruning.hits_differ == pytest.approx(np.mean(differ))


def test_the_difference_is_exact_minus_beam_pair_by_pair():
    """Values that rise and fall together: the interval of the differences is far narrower than the means' own."""
    beam = {"RR@3": {"a": 0.0, "b": 1.0, "c": 0.5}, "R@3": {"a": 1.0, "b": 1.0, "c": 1.0}}
    exact = {"RR@3": {"c": 0.75, "a": 0.25, "b": 1.25}, "R@3": {"a": 1.0, "b": 0.0, "c": 1.0}}
    losses = _losses(beam, exact, seed=3)
    assert losses["RR@3"] == Loss(0.5, 0.75, Interval(0.25, 0.25, 0.25))
    assert losses["R@3"].difference == pytest.approx(paired_test([1, 1, 1], [1, 0, 1], seed=3)[:3])
    assert losses["R@3"].difference.mean == pytest.approx(-1 / 3)


def test_a_beam_of_one_loses_something(index, small_corpus):
    pruning, plain = pruning_of(index, small_corpus, 1), Plain(index, small_corpus, 1)
    assert 0 < pruning.best_lost == pytest.approx(plain.best_lost())
    assert pruning.codes_found == pytest.approx(plain.codes_found()) == pytest.approx(1 - pruning.best_lost)
    held = [min(map(len, lists)) for lists in plain.hits.values()]
    assert 0 < pruning.grown == np.mean([documents < 3 for documents in held])


@pytest.mark.parametrize("settings", [{}, {"ranking": "bucket"}, {"ranking": "union"}])
def test_a_beam_of_all_codes_loses_nothing(index, small_corpus, settings):
    index.adjust(settings)
    for beam in (index.identifiers.unique, 1000):
        pruning = pruning_of(index, small_corpus, beam, depth=100, measures="nDCG@10 R@100")
        assert (pruning.best_lost, pruning.codes_found, pruning.hits_differ, pruning.grown) == (0, 1, 0, 0)
        for loss in pruning.measures.values():
            assert loss.difference == (0, 0, 0)
            assert loss.beam == loss.exact


def test_deleted_documents_are_not_missed(index, small_corpus):
    gone = [f"{topic}/{number}" for topic in ("fruit", "music") for number in range(10)]
    index.delete(gone)
    pruning, plain = pruning_of(index, small_corpus, 3), Plain(index, small_corpus, 3, gone)
    assert pruning.best_lost == pytest.approx(plain.best_lost())
    assert pruning.codes_found == pytest.approx(plain.codes_found())
    index.delete([d for d in small_corpus.doc_ids if d not in gone])
    nothing = pruning_of(index, small_corpus, 3)
    assert (nothing.best_lost, nothing.codes_found, nothing.hits_differ, nothing.grown) == (0, 1, 0, 0)


def test_codes_of_deleted_documents_do_not_count(index, small_corpus, tmp_path):
    """A report says of the codes what it says when deleted documents are dropped for good."""
    index.delete([f"fruit/{number}" for number in range(10)])
    before = api.evaluate(index, small_corpus, measures=MEASURES).identifiers
    index.compact()
    after = api.evaluate(index, small_corpus, measures=MEASURES).identifiers
    assert before == after and before["documents"] == len(small_corpus) - 10


def test_the_report_is_that_of_the_settings_decoding(index, small_corpus):
    by_beam = api.evaluate(index.adjust({"beam": 3}), small_corpus, measures=MEASURES, depth=3, exact=True)
    alone = api.evaluate(index, small_corpus, measures=MEASURES, depth=3)
    assert alone.pruning is None and alone.measures == by_beam.measures
    exactly = api.evaluate(index.adjust({"decoding": "exact"}), small_corpus, measures=MEASURES, depth=3, exact=True)
    for name, loss in by_beam.pruning.measures.items():
        assert by_beam.measures[name].mean == pytest.approx(loss.beam)
        assert exactly.measures[name].mean == pytest.approx(loss.exact)
    assert exactly.pruning.measures == by_beam.pruning.measures
    assert exactly.settings["decoding"] == "exact" == index.settings.decoding
    for times in (by_beam.pruning.write_ms, by_beam.pruning.search_ms):
        assert sorted(times) == ["beam", "exact"] and min(times.values()) > 0
    assert by_beam.pruning.search_ms["beam"] == pytest.approx(by_beam.timings["search_ms_per_query"])
    assert exactly.pruning.search_ms["exact"] == pytest.approx(exactly.timings["search_ms_per_query"])


@pytest.mark.parametrize("where", ["find", "write"])
def test_settings_are_restored_after_an_error(index, small_corpus, monkeypatch, where):
    works = getattr(index, where)

    def fails(*arguments):
        if index.settings.decoding == "exact":
            raise RuntimeError("no more")
        return works(*arguments)

    monkeypatch.setattr(index, where, fails)
    before = index.settings
    with pytest.raises(RuntimeError, match="no more"):
        api.evaluate(index, small_corpus, exact=True)
    assert index.settings == before


def test_saved_shown_and_compared(index, small_corpus, tmp_path):
    report = api.evaluate(index.adjust({"beam": 2}), small_corpus, measures=MEASURES, depth=3, exact=True)
    report.save(tmp_path / "report.json")
    loaded = Report.load(tmp_path / "report.json")
    assert loaded.pruning == report.pruning
    assert loaded.to_dict() == report.to_dict()
    assert loaded.text() == report.text()
    words = " ".join(report.text().split())
    pruning = report.pruning
    for part in ("Loss by pruning with a beam of 2", f"best code for {100 * pruning.best_lost:.1f} %", "exact − beam",
                 f"first {FIRST_HITS} hits differ", "needed more codes than 2", "Milliseconds per query"):  # fmt: skip
        assert part in words
    assert f"{pruning.measures['RR@3'].difference.mean:+.4f}" in words
    plain = api.evaluate(index, small_corpus, measures=MEASURES, depth=3)
    assert "pruning" not in plain.text()
    comparison = Comparison({"a<b": report, "plain": plain})
    page = comparison.to_html()
    assert "Loss by beam pruning" in page and "a&lt;b, beam of 2" in page and "plain, beam" not in page
    assert "lose to pruning" not in Comparison({"plain": plain}).to_html()
    assert comparison.to_dict()["systems"]["a<b"]["pruning"] == report.to_dict()["pruning"]


@pytest.mark.parametrize("method", ["bm25", "dense", "bm25+dsi-semantic"])
def test_methods_without_a_beam_say_so_before_any_work(method, small_corpus, monkeypatch):
    retriever = make(method)
    monkeypatch.setattr(retriever, "search_batch", lambda *_: pytest.fail("it searched"))
    with pytest.raises(Unsupported, match="has no setting 'decoding'") as caught:
        api.evaluate(retriever, small_corpus, exact=True)
    assert method in caught.value.problem and "--exact" in caught.value.remedy
    monkeypatch.setattr("callslip.index.retriever.Retriever.fit", lambda *_: pytest.fail("it was fitted"))
    with pytest.raises(Unsupported, match="has no setting 'decoding'"):
        api.compare(small_corpus, ["dsi-semantic", method], exact=True)


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["callslip", "evaluate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return " ".join(said.out.split()), said.err, ended.value.code

    return run


def test_the_command_line(command, folder, small_corpus, tmp_path):
    lines = [json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text}) for d in small_corpus]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    queries, judgements = small_corpus.split("test")
    lines = [json.dumps({"_id": q.query_id, "text": q.text}) for q in queries.values()]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines))
    (tmp_path / "qrels").mkdir()
    rows = [f"{qid}\t{doc_id}\t{grade}\n" for qid, judged in judgements.items() for doc_id, grade in judged.items()]
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    saved = tmp_path / "report.json"
    out, said, code = command(folder, tmp_path, "--exact", "--set", "beam=1", "--json", saved)
    assert code == 0, said
    assert "Loss by pruning with a beam of 1" in out
    assert Report.load(saved).pruning.best_lost > 0
    out, said, code = command(folder, tmp_path, "--set", "beam=1")
    assert (code, "pruning" in out) == (0, False)


def test_the_command_line_refuses_before_it_reads_the_corpus(command, small_corpus, tmp_path):
    api.fit(small_corpus, "bm25", tmp_path / "bm25")
    out, said, code = command(tmp_path / "bm25", tmp_path / "nowhere", "--exact")
    assert (out, code) == ("", 2)
    assert "bm25 has no setting 'decoding'" in said and "nowhere" not in said
