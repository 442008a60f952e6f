"""Recommenders that begin at counts: untrained they rank as the counts do, and held-out items decide the rest."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from callslip import api
from callslip.corpus.documents import Document, Query
from callslip.corpus.sequences import Sequences
from callslip.index import start as module
from callslip.index.counts import Counts, CountSettings, repeated
from callslip.index.start import HeldOut, Start, best_of, climbed, count_settings, joined
from callslip.methods import make
from callslip.training.log import TrainingLog

QUICK = {"encoder": "scratch", "decoder_width": 16, "history_width": 16, "batch_size": 64, "width": 4, "length": 2}
HISTORY = ("soap-2", "tea-3", "soap-3")
ASKED = Query("q", "", HISTORY)


@pytest.fixture(scope="module")
def fitted(log):
    @functools.cache
    def fit(method="dsi-semantic", **values):
        known = vars(make(method).settings)
        return make(method, {k: v for k, v in (QUICK | values).items() if k in known}).fit(log)

    return fit


def rows(log, history=HISTORY) -> np.ndarray:
    return np.array([log.rows()[item] for item in history])


def plain_scores(counts: Counts, history: np.ndarray) -> np.ndarray:
    """The score of every item by loops over the history."""
    s, texts, total = counts.settings, len(counts.centre), np.zeros(len(counts))
    for age, item in enumerate(reversed(history.tolist())):
        left, right = counts.inputs[item].astype(float), counts.outputs.astype(float)
        parts = left * right
        total += s.decay**age * s.factor_weight * parts[:, : parts.shape[1] - texts].sum(axis=1)
        total += s.decay**age * s.text_weight * parts[:, parts.shape[1] - texts :].sum(axis=1)
        total += s.decay**age * s.memory_weight * counts.rules.toarray()[item]
    return total


def test_scores_of_counts_are_those_of_a_plain_loop(fitted, log):
    counts, history = fitted(epochs=0).reader.start.counts, rows(log)
    expected = plain_scores(counts, history)
    assert counts.scores([history])[0] == pytest.approx(expected, abs=1e-3)
    some = np.array([40, 3, 7])
    assert counts.scores([history], some)[0] == pytest.approx(expected[some], abs=1e-3)


@pytest.mark.parametrize("values", [{}, {"queries": "set"}, {"items": "id"}], ids=str)
@pytest.mark.parametrize("ranking", ["union", "bucket"])
def test_an_untrained_model_ranks_as_the_counts_do(fitted, log, ranking, values):
    """Against every code and item scored; the beam holds all codes."""
    index = fitted(epochs=0, ranking=ranking, beam=99, **values)
    start, history = index.reader.start, rows(log)
    assert start.trust == 0
    weights = start.log_weights([history])[0]
    p = np.exp(weights) / np.exp(weights).sum()
    codes = [tuple(code) for code in index.identifiers.in_row_order()[1].tolist()]
    best = {code: np.log(max(q for q, other in zip(p, codes, strict=True) if other == code)) for code in codes}
    by_code = [best[code] for code in codes]
    first = by_code if ranking == "bucket" else weights
    order = sorted(range(len(log)), key=lambda row: (-first[row], -weights[row], row))
    hits = index.search(ASKED, k=48, keep_history=True)
    assert hits.doc_ids == [log.documents[row].doc_id for row in order]
    assert hits.scores == pytest.approx([first[row] for row in order], abs=1e-3)


@pytest.mark.parametrize("method", ["tiger", "uri", "deep-retrieval", "sasrec"])
def test_other_methods_begin_there_as_well(fitted, log, method):
    short = {"warmup_epochs": 0, "level_epochs": 1, "level_steps": 1, "rqvae_epochs": 1, "rounds": 0}
    index = fitted(method, epochs=0, ranking="union", beam=99, **short)
    weights = (index if method == "sasrec" else index.reader).start.log_weights([rows(log)])[0]
    order = sorted(range(len(log)), key=lambda row: (-weights[row], row))
    assert index.search(ASKED, k=48, keep_history=True).doc_ids == [log.documents[row].doc_id for row in order]


def test_a_trained_model_is_added_as_far_as_it_is_trusted(fitted, log):
    """With a given trust: similarity and code score are those of the counts plus so much of the model's."""
    index = fitted(epochs=1, ranking="union", beam=99)
    kept = index.reader.start
    plain = index.reader.document_vectors(index.vectors) @ index.reader.query_vectors([ASKED])[0]
    try:
        index.reader.start = replace(kept, trust=0.3)
        expected = kept.log_weights([rows(log)])[0] + 0.3 * plain
        hits = index.search(ASKED, k=48, keep_history=True, explain=True)
        row_of = log.rows()
        assert hits.scores == pytest.approx([expected[row_of[doc_id]] for doc_id in hits.doc_ids], abs=1e-3)
        inputs = index.reader.batch(index.reader.inputs([ASKED], np.zeros((1, 0))))
        with torch.inference_mode():
            _, level = index.model.start(inputs)
            _, counted = index.searched.start(inputs)
            index.reader.start = replace(kept, trust=0.0)
            _, alone = index.searched.start(inputs)
        torch.testing.assert_close(counted, alone + 0.3 * level)
    finally:
        index.reader.start = kept
    for hit in hits:
        assert set(hit.why["because"]) <= set(HISTORY)
    assert any(hit.why["because"] for hit in hits)


@pytest.mark.parametrize("trust", [0.0, 0.3])
def test_the_sum_has_the_prior_once_and_the_model_as_far_as_it_is_trusted(fitted, log, trust):
    """Up to a constant: log p0(item) + trust · (log-probability of the code + inner product), for every item."""
    index = fitted(epochs=1, ranking="sum", beam=99)
    kept = index.reader.start
    codes = torch.from_numpy(index.identifiers.in_row_order()[1].astype(np.int64))
    inputs = index.reader.batch(index.reader.inputs([ASKED], np.zeros((1, 0))))
    with torch.no_grad():
        logits = index.model(inputs.expand(len(codes), -1), codes)
        levels = [one.log_softmax(-1).gather(1, codes[:, [n]]) for n, one in enumerate(logits)]
    written = torch.cat(levels, dim=1).sum(dim=1).numpy()
    plain = index.reader.document_vectors(index.vectors) @ index.reader.query_vectors([ASKED])[0]
    expected = kept.log_weights([rows(log)])[0] + trust * (written + plain)
    try:
        index.reader.start = replace(kept, trust=trust)
        hits = index.search(ASKED, k=48, keep_history=True)
    finally:
        index.reader.start = kept
    found = np.array([expected[log.rows()[doc_id]] for doc_id in hits.doc_ids])
    assert np.ptp(np.array(hits.scores) - found) < 1e-3
    assert (np.diff(found) <= 1e-4).all()


# The trust.


def test_the_last_items_of_some_users_are_held_out(log, monkeypatch):
    whole = log.sequences()
    held = HeldOut.of(whole, 0)
    assert len(held.targets) == len(whole) // 5 == len(whole.items) - len(held.rest.items)
    each, shorter = whole.each(), held.rest.each()
    changed = [n for n in range(len(whole)) if len(each[n]) != len(shorter[n])]
    for n, history, target in zip(changed, held.histories, held.targets, strict=True):
        assert each[n].tolist() == [*history.tolist(), target] and shorter[n].tolist() == history.tolist()
    monkeypatch.setattr(module, "HELD_OUT", 2)
    assert len(HeldOut.of(whole, 0).targets) == 2
    assert HeldOut.of(whole, 0).targets.tolist() != HeldOut.of(whole, 5).targets.tolist()


def test_nothing_that_decides_about_the_trust_was_counted_or_trained_on(log, monkeypatch):
    """Counts for the choice come from the rest; those of the index from the whole log."""
    counted, plain = [], Counts.of.__func__
    monkeypatch.setattr(Counts, "of", classmethod(lambda cls, s, *rest: counted.append(s) or plain(cls, s, *rest)))
    index = make("dsi-semantic", QUICK | {"epochs": 1}).fit(log)
    held = HeldOut.of(log.sequences(), 0)
    assert [len(some.items) for some in counted] == [len(held.rest.items), len(log.sequences().items)]
    examples = index.examples(log)
    assert len(examples.rows) == len(held.rest.sequential().targets)
    counted.clear()
    make("sasrec", {"encoder": "scratch", "epochs": 1, "history_width": 16}).fit(log)
    assert [len(some.items) for some in counted] == [len(held.rest.items), len(log.sequences().items)]


@pytest.mark.parametrize(("good", "expected"), [(0.15, 0.15), (0.0, 0.0), (None, 0.0)])
def test_the_trust_is_the_best_on_held_out_items_and_never_worse_than_the_start(log, good, expected):
    whole, record = log.sequences(), TrainingLog()

    def ranked(tried: Start, held: HeldOut) -> list[np.ndarray]:
        right = good is None or tried.trust == good  # None: all are alike, and the start is preferred
        return [np.array([target] if right else [0, 1, target]) for target in held.targets]

    found = joined(lambda some: Counts.of(some, len(log), None, CountSettings(factors=4)), whole, 0, 0, record, ranked)
    figures = record.records[-1]
    assert found.trust == figures["trust"] == expected and figures["held_out"] == len(HeldOut.of(whole, 0).targets)
    assert figures[f"nDCG@10, trust {expected:g}"] == max(v for k, v in figures.items() if k.startswith("nDCG"))


def test_larger_trusts_are_tried_until_three_in_a_row_find_no_more():
    tried = []
    assert climbed(lambda trust: tried.append(trust) or -trust) == {0: 0, 0.05: -0.05, 0.1: -0.1, 0.15: -0.15}
    assert best_of(climbed(lambda trust: -abs(trust - 0.19))) == 0.2
    assert best_of(climbed(lambda trust: {0.0: 0.5, 0.15: 0.7}.get(trust, 0.4))) == 0.15  # a dip does not end it
    assert best_of({0.0: 0.5, 0.05: 0.7, 0.1: 0.7}) == 0.05 and best_of({}) == 0
    assert list(climbed(lambda trust: trust)) == list(module.TRUSTS)


def test_the_figure_is_that_of_a_plain_sum():
    held = HeldOut(None, [np.array([1, 2]), np.array([3]), np.array([4])], np.array([5, 6, 7]))
    ranked = [np.array([1, 9, 5]), np.array([6]), np.array([8, 9])]
    assert held.gain(ranked) == pytest.approx((1 / np.log2(3) + 1 + 0) / 3)  # an item of the history is passed over


def test_the_choice_is_in_the_log_and_saved_with_the_index(fitted, tmp_path):
    index = fitted(epochs=3)
    record = index.log.records[-1]
    assert record["phase"] == "trust beyond counts" and record["trust"] == index.reader.start.trust
    index.reader.start = replace(index.reader.start, trust=0.5)
    index.save(tmp_path / "index")
    loaded = api.load(tmp_path / "index")
    assert loaded.reader.start.trust == 0.5
    assert loaded.search(ASKED).scores == pytest.approx(index.search(ASKED).scores, abs=1e-4)


def test_start_none_leaves_the_counts_out(fitted, log):
    for method in ("dsi-semantic", "sasrec"):
        index = fitted(method, epochs=1, start="none")
        assert (index if method == "sasrec" else index.reader).start is None
        assert all("trust" not in record for record in index.log.records)
    plain = fitted(epochs=1, start="none")
    assert plain.searched is plain.model
    assert len(plain.examples(log).rows) == len(log.sequences().sequential().targets)


@pytest.mark.parametrize("method", ["uri", "tiger", "dsi-semantic", "recforest", "deep-retrieval", "nci", "ultron-pq"])
def test_papers_begin_at_nothing(method):
    assert make(method, preset="paper").settings.start == "none"


# Items of the history, new items, sets.


def test_items_had_are_demoted_as_far_as_the_log_never_repeats_them(log):
    once = Sequences(["a", "b"], np.array([0, 1, 2, 1, 2, 3]), np.array([0, 3, 6]))
    twice = Sequences(["a", "b"], np.array([0, 1, 0, 1, 2, 1]), np.array([0, 3, 6]))
    assert repeated(once) == 0 and repeated(twice) == 2 / 4
    found = {
        name: Start(Counts.of(some, 4, None, CountSettings(factors=2))).log_weights([np.array([1, 2])])[0]
        for name, some in (("once", once), ("twice", twice))
    }
    counts = Counts.of(once, 4, None, CountSettings(factors=2))
    without = Start(replace(counts, repeats=1.0)).log_weights([np.array([1, 2])])[0]
    assert (without - found["once"]) == pytest.approx([0, np.log(1000), np.log(1000), 0])
    some = np.array([2, 0])
    assert Start(counts).log_weights([np.array([1, 2])], some)[0] == pytest.approx(found["once"][some])


def test_a_new_item_is_found_by_its_text_and_read_in_a_history_of_one(fitted, tmp_path):
    fitted(epochs=0, ranking="union", beam=99).save(tmp_path / "index")
    index = api.load(tmp_path / "index")
    index.add([Document("soap-new", "A soap of kind 5, made for soap lovers.", "soap 5")])
    near = index.search(Query("q", "", ("soap-5",)), k=49).doc_ids
    far = index.search(Query("q", "", ("kite-5",)), k=49).doc_ids
    assert near.index("soap-new") < far.index("soap-new")
    first = index.search(Query("q", "", ("soap-new",)), k=3).doc_ids  # no user has had it: the text alone
    assert all(doc_id.startswith("soap") for doc_id in first)


def test_a_set_is_counted_without_order():
    assert count_settings(ordered=True) == CountSettings()
    unordered = count_settings(ordered=False)
    assert (unordered.gap, unordered.back, unordered.decay) == (1, 1, 1)
