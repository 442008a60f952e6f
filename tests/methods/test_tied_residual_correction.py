"""The trained correction of the query: it begins at zero, is trained listwise, and held-out queries decide about it."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from callslip import api
from callslip.corpus.documents import Corpus
from callslip.methods import make
from callslip.methods.tied_residual import correction as module
from callslip.methods.tied_residual.correction import Correction, candidate_lists, chosen, listwise_loss, padded
from callslip.training import held_out as held_module
from callslip.training.checkpoints import Checkpoints
from callslip.training.held_out import judged_held_out

FAST = {"encoder": "scratch:dim=32", "length": 12}
QUESTION = "which violin has the mark"


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(held_module, "LEAST", 4)
    monkeypatch.setattr(module, "EPOCHS", 3)


def fit(corpus: Corpus, **values):
    return make("tied-residual", FAST | values).fit(corpus)


@pytest.fixture(scope="module")
def index(small_corpus):
    return fit(small_corpus)


def some_correction(strength: float = 1.0, seed: int = 0) -> Correction:
    rng = np.random.default_rng(seed)
    shapes = ((32, 8), (8,), (8, 32))
    return Correction(*(rng.normal(size=shape).astype(np.float32) for shape in shapes), strength)


def test_the_loss_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    states, documents = rng.normal(size=(3, 4)), rng.normal(size=(3, 5, 4))
    gains = np.array([[0, 2, 0, 1, -1], [1, 0, 0, 0, 0], [0, 0, 3, -1, -1]], float)
    total = 0.0
    for state, some, grades in zip(states, documents, gains, strict=True):
        kept = [number for number in range(5) if grades[number] >= 0]
        weights = [np.exp(sum(state * some[number]) / 0.3) for number in kept]
        for number, weight in zip(kept, weights, strict=True):
            total -= grades[number] / sum(grades[kept]) * np.log(weight / sum(weights))
    found = listwise_loss(*(torch.from_numpy(array) for array in (states, documents, gains)), 0.3)
    assert float(found) == pytest.approx(total / 3)
    with pytest.raises(ValueError, match="fit"):
        listwise_loss(torch.zeros(3, 4), torch.zeros(3, 5, 4), torch.zeros(3, 4))


def test_it_begins_at_exactly_zero(small_corpus, index, monkeypatch):
    """Untrained, the states are the vectors, and the ranking is that of an index without it."""
    monkeypatch.setattr(module, "EPOCHS", 0)
    texts = [query.text for query in small_corpus.split("train")[0].values()]
    begun = module.trained(index, texts, [{row: 1} for row in range(40)])
    assert begun.inner.any() and not begun.outer.any()
    vectors = index.texts.encode(texts)
    np.testing.assert_array_equal(begun(vectors), vectors)
    other = fit(small_corpus)
    other.correction = begun
    for one, another in zip(other.search_batch(texts, 40), index.search_batch(texts, 40), strict=True):
        assert one.doc_ids == another.doc_ids and one.scores == another.scores


def test_training_lowers_the_loss_of_its_queries(small_corpus, index, monkeypatch):
    monkeypatch.setattr(module, "EPOCHS", 20)
    texts = [query.text for query in small_corpus.split("train")[0].values()]
    graded = [{row: 1} for row in range(40)]
    whole, vectors = module.trained(index, texts, graded), index.texts.training(texts)
    rows, gains = padded(candidate_lists(index, texts, vectors, graded))
    documents = torch.from_numpy(index.maker.decode(index.entries.codes_of(rows.reshape(-1))).reshape(*rows.shape, -1))
    before, after = (
        float(listwise_loss(torch.from_numpy(one), documents, torch.from_numpy(gains)))
        for one in (vectors, whole(vectors))
    )
    assert after < before - 0.05


def test_lists_have_the_answers_the_first_hits_and_siblings(small_corpus, index, monkeypatch):
    monkeypatch.setattr(module, "CANDIDATES", 3)
    monkeypatch.setattr(module, "SIBLINGS", 2)
    texts = [query.text for query in small_corpus.split("train")[0].values()]
    graded = [{row: 1, (row + 20) % 40: 2} for row in range(40)]
    lists = candidate_lists(index, texts, index.texts.training(texts), graded)
    for (rows, gains), grades in zip(lists, graded, strict=True):
        assert dict(zip(rows.tolist(), gains.tolist(), strict=True)).items() >= grades.items()
        assert len(rows) <= 3 + 2 + 2 and gains.sum() == 3
    shared = np.zeros((40, 1), np.int64)
    monkeypatch.setattr(index, "codes_by_row", lambda: shared)  # all in one leaf
    monkeypatch.setattr(module, "CANDIDATES", 0)
    for rows, gains in candidate_lists(index, texts, index.texts.training(texts), graded):
        assert 2 <= len(rows) <= 4 and (gains > 0).sum() == 2
    assert any(len(rows) == 4 for rows, _ in candidate_lists(index, texts, index.texts.training(texts), graded))
    rows, gains = padded([(np.array([4]), np.array([1.0])), (np.array([5, 6]), np.array([0.0, 2.0]))])
    assert rows.tolist() == [[4, 0], [5, 6]] and gains.tolist() == [[1, -1], [0, 2]]


def test_held_out_queries_decide_and_doubt_drops_it(small_corpus, index, monkeypatch):
    held = judged_held_out(small_corpus, 0)
    calls = []
    plain = module.evidences

    def better(gaining):
        """Rankings in which half of the correction puts the answers of some queries first, and those of one last."""

        def evidences(index, texts, vectors, k, states=None):
            half = states is not None and np.allclose(states, some_correction(0.5)(vectors))
            for number, one in enumerate(plain(index, texts, vectors, k)):
                calls.append(half)
                right = np.isin(one.rows, list(held.grades[number]))
                place = np.where(right, 1.5, np.arange(len(right)))  # the answer is the second or third without it
                if half and number < gaining + 1:
                    place[right] = -1 if number < gaining else 99
                one.features[:] = 0
                one.features[:, 0] = -place
                yield one

        return evidences

    monkeypatch.setattr(module, "evidences", better(7))
    found, record = chosen(index, some_correction(), held)
    assert found.strength == record["strength"] == 0.5 and any(calls) and record["held_out"] == 8
    monkeypatch.setattr(module, "evidences", better(2))
    found, record = chosen(index, some_correction(), held)
    assert found is None and record["strength"] == 0
    assert record["nDCG@10, strength 0.5"] > record["nDCG@10, strength 0"]  # but not by more than its error


def test_the_setting_trains_on_what_is_not_held_out(small_corpus, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "trained", lambda index, texts, graded: asked.append(texts) or some_correction())
    monkeypatch.setattr(module, "chosen", lambda index, whole, held: (whole, {"strength": 1.0, "held_out": len(held)}))
    assert fit(small_corpus).correction is None and not asked
    index = fit(small_corpus, correction=True)
    gone = {query.text for query in judged_held_out(small_corpus, 0).queries}
    assert len(asked[0]) == 32 and len(gone) == 8 and not gone & set(asked[0])
    assert index.correction is not None
    blind = dataclasses.replace(small_corpus, judgements={"test": small_corpus.judgements["test"]})
    assert fit(blind, correction=True).correction is None


def test_documents_are_read_by_the_state_and_the_memory_by_the_vector(small_corpus, tmp_path):
    index = fit(small_corpus, words=False)
    index.correction, index.correction_record = some_correction(0.3), {"strength": 0.3}
    vector = index.texts.encode([QUESTION])
    table, plain = index.tables(index.correction(vector))[0], index.tables(vector)[0]
    evidence = index.evidence(table, [], 40, text=QUESTION, asked=plain)
    expected = index.entries.scores_of_rows(table.codes, evidence.rows)
    np.testing.assert_allclose(evidence.similarity, expected, atol=1e-5)
    votes = index.memory.ask(plain.codes, index.rows.mask(None), None, QUESTION)
    np.testing.assert_array_equal(evidence.votes.shares, votes.shares)
    hits = index.search(QUESTION, k=40, explain=True)
    by_row = dict(zip(evidence.rows.tolist(), expected, strict=True))
    for hit in hits:
        assert hit.why["similarity"] == pytest.approx(by_row[index.row_of()[hit.doc_id]], abs=1e-5)
    index.save(tmp_path / "i")
    loaded = api.load(tmp_path / "i")
    assert loaded.correction.strength == pytest.approx(0.3) and loaded.correction_record == {"strength": 0.3}
    again = loaded.search(QUESTION, k=40)
    assert again.doc_ids == hits.doc_ids and again.scores == pytest.approx(hits.scores, abs=1e-5)
    said = json.loads(next((tmp_path / "i").rglob("weights.json")).read_text(encoding="utf-8"))
    assert said["correction"] == {"strength": 0.3}


def test_a_stopped_training_is_resumed_bit_for_bit(small_corpus, tmp_path, monkeypatch):
    whole, steps = [], []
    plain, loss = module.trained, module.listwise_loss
    monkeypatch.setattr(module, "BATCH", 16)
    monkeypatch.setattr(module, "trained", lambda *given: whole.append(plain(*given)) or whole[-1])

    def counted(*given):
        steps.append(1)
        if len(steps) == 4:
            raise InterruptedError
        return loss(*given)

    fit(small_corpus, correction=True)
    monkeypatch.setattr(module, "listwise_loss", counted)
    values = FAST | {"correction": True}
    with pytest.raises(InterruptedError):
        make("tied-residual", values).fit(small_corpus, Checkpoints(tmp_path / "c", every=0.0))
    make("tied-residual", values).fit(small_corpus, Checkpoints(tmp_path / "c", every=0.0, resume=True))
    assert len(steps) == 7  # two steps in each of three epochs, and the one that was stopped
    straight, resumed = whole
    np.testing.assert_array_equal(resumed.outer, straight.outer)
    assert straight.outer.any()
