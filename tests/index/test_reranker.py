"""The reranker: features against plain loops, what it adds, and that held-out items decide whether it is used."""

from __future__ import annotations

import math
import random
import re
from itertools import pairwise

import numpy as np
import pytest

from callslip import api
from callslip.corpus.documents import Corpus, Document, Query
from callslip.corpus.interactions import leave_one_out
from callslip.index import reranker as module
from callslip.index import start as starts
from callslip.index.counts import Counts, CountSettings
from callslip.index.item_words import WORDS, ItemWords, word_hashes
from callslip.index.reranker import FEATURES, LIMIT, Evidence, Examples, Reranker, trained
from callslip.index.start import HeldOut, Start, joined, log_weights_of
from callslip.methods import make
from callslip.training.log import TrainingLog

QUICK = {"encoder": "scratch", "rerank": 60}


def brand_log(users: int = 900, seed: int = 2, brands: int = 50, size: int = 12) -> Corpus:
    """Users stay with a brand, of which they buy anything, except for one item in four. The words of an item name its
    brand, among others; few users buy any pair of items, so counts alone know little."""
    chance = random.Random(seed)
    documents = [
        Document(f"i{brand}-{n}", f"thing {chance.randrange(9)} of house{brand} made in {chance.randrange(40)}", "")
        for brand in range(brands)
        for n in range(size)
    ]
    histories = {}
    for user in range(users):
        brand = chance.randrange(brands)
        items = [f"i{brand}-{n}" for n in chance.sample(range(size), chance.randint(5, 8))]
        for place in range(len(items)):
            if chance.random() < 0.25:
                items[place] = f"i{chance.randrange(brands)}-{chance.randrange(size)}"
        histories[f"u{user}"] = items
    corpus = Corpus(documents, name="brands")
    leave_one_out(corpus, histories)
    return corpus


@pytest.fixture(scope="module")
def log() -> Corpus:
    return brand_log()


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(module, "FEWEST", 30)
    monkeypatch.setattr(starts, "FEWEST", 30)


@pytest.fixture(scope="module")
def fitted(log):
    """A `tied-log` whose reranker is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEWEST", 30)
        patch.setattr(starts, "FEWEST", 30)
        return make("tied-log", QUICK).fit(log)


@pytest.fixture(scope="module")
def evidence(log) -> Evidence:
    rng, sequences = np.random.default_rng(0), log.sequences()
    texts = rng.normal(size=(len(log), 5)).astype(np.float32)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    words = word_hashes(document.content for document in log)
    return Evidence(Counts.of(sequences, len(log), texts, CountSettings(factors=6), 0, words))


# Evidence.


def words_cosine(log: Corpus, one: int, other: int) -> float:
    """By sets of words, each weighted by log(N / items with it)."""
    sets = [set(re.findall(r"\w+", document.content.lower())) for document in log]
    weight = {word: math.log(len(sets) / sum(word in some for some in sets)) for word in set.union(*sets)}
    lengths = [math.sqrt(sum(weight[word] ** 2 for word in sets[n])) for n in (one, other)]
    return sum(weight[word] ** 2 for word in sets[one] & sets[other]) / math.prod(lengths)


def test_words_of_items_are_compared_by_how_rare_they_are(log):
    words = ItemWords(word_hashes(document.content for document in log))
    items, others = np.array([0, 9]), np.array([[1, 9, 100], [0, 10, 3]])
    expected = [[words_cosine(log, item, other) for other in some] for item, some in zip(items, others, strict=True)]
    assert words.similarities(items, others) == pytest.approx(np.array(expected), abs=1e-5)
    assert not ItemWords(np.zeros((300, 0), np.uint32)).similarities(items, others).any()


def test_the_first_different_words_are_kept_and_hashes_do_not_depend_on_the_process():
    found = word_hashes(["Salt & salt, pepper", "", " ".join(f"w{n}" for n in range(99))])
    assert found.shape == (3, WORDS) and found.dtype == np.uint32
    assert found[0].tolist()[:3] == [2415649015, 1920799585, 0] and not found[1].any() and found[2].all()


@pytest.mark.parametrize("ordered", [True, False])
def test_features_are_those_of_plain_loops(log, evidence, ordered):
    counts = evidence.counts
    settings = counts.settings if ordered else counts.settings.unordered()
    counts = module.replace(counts, settings=settings)
    history, rows = np.array([3, 17, 40, 5]), np.array([[4, 5, 200, 18]])
    p0 = np.array([[-1.0, -1.5, -2.0, -4.0]])
    found = Evidence(counts).features([history], rows, p0)[0]
    dims = counts.inputs.shape[1] - len(counts.centre)
    rules, following = counts.rules.toarray(), counts.following.toarray()
    inputs, outputs = counts.inputs.astype(float), counts.outputs.astype(float)
    for place, row in enumerate(rows[0].tolist()):
        by = {"rules": [rules[item, row] for item in history]}
        by["factors"] = [inputs[item, :dims] @ outputs[row, :dims] for item in history]
        by["texts"] = [inputs[item, dims:] @ inputs[row, dims:] for item in history]
        by["words"] = [words_cosine(log, item, row) for item in history]
        expected = {"log p0": p0[0, place] - p0[0, 0], "in the history": float(row in history)}
        for name, parts in by.items():
            whole = sum(part * settings.decay**age for age, part in enumerate(reversed(parts)))
            average = name in ("texts", "words")
            mean, tail = (sum(parts) / 4 if average else sum(parts)), sum(parts) / 4 if average else sum(parts)
            last, before = (parts[-1], parts[-2]) if ordered else (tail, tail)
            figures = {name: whole, f"{name}, last": last, f"{name}, {'mean' if average else 'sum'}": mean}
            figures |= {f"{name}, nearest": max(0, *parts)} if average else {}
            figures |= {"rules, last but one": before} if name == "rules" else {}
            expected |= {k: v if average else math.log(0.01 + max(v, 0)) for k, v in figures.items()}
        after = following[history[-1], row] if ordered else sum(following[item, row] for item in history)
        expected["followed the last"] = math.log(0.01 + after)
        expected["share with a rule"] = sum(rules[item, row] > 0 for item in history) / 4
        expected["users"] = math.log1p(counts.users[row])
        expected |= {"length of the history": math.log(4), "rank": math.log1p(place)}
        expected["users of the first"] = np.log1p(counts.users[rows[0]]).mean()
        assert dict(zip(FEATURES, found[place].tolist(), strict=True)) == pytest.approx(expected, abs=2e-3)


def test_an_item_that_follows_is_counted_in_its_direction(log, evidence):
    expected = np.zeros((len(log), len(log)))
    for items in log.sequences().each():
        for one, other in pairwise(items.tolist()):
            expected[one, other] += (one != other) * len(items) ** -0.5
    assert evidence.counts.following.toarray() == pytest.approx(expected)


# What is added.


def network(seed: int = 0, width: int = 4) -> Reranker:
    rng = np.random.default_rng(seed)
    inner = rng.normal(size=(width, len(FEATURES))), rng.normal(size=width)
    layers = inner, (rng.normal(size=(1, width)), np.ones(1))
    centre, spread = rng.normal(size=len(FEATURES)), rng.uniform(0.5, 2, size=len(FEATURES))
    return Reranker(20, 0.7, centre, spread, layers)


def test_the_first_items_share_their_probability_anew_and_the_others_keep_theirs(log, evidence):
    begun, histories = Start(evidence.counts, reranker=network()), [np.array([3, 17]), np.array([], np.int64)]
    plain, found = begun.counted(histories), begun.log_weights(histories)
    first = np.argsort(-plain[0], kind="stable")[:20]
    seen = evidence.features(histories[:1], first[None], plain[:1, first])[0]
    values = np.clip((seen - begun.reranker.centre) / begun.reranker.spread, -LIMIT, LIMIT)
    (inner, bias), (outer, offset) = begun.reranker.layers
    scores = 0.7 * plain[0, first] + np.maximum(values @ inner.T + bias, 0) @ outer[0] + offset
    expected = plain[0].copy()
    expected[first] = np.log(np.exp(plain[0, first]).sum() * np.exp(scores) / np.exp(scores).sum())
    assert found[0] == pytest.approx(expected, abs=1e-4)
    assert (found[1] == plain[1]).all()  # no history, no evidence
    some = np.array([first[5], 200, first[0], 2])
    assert begun.log_weights(histories[:1], some)[0] == pytest.approx(found[0, some])
    fresh = Start(evidence.counts, reranker=network())  # it has kept nothing of an earlier search
    assert fresh.log_weights(histories[:1], some)[0] == pytest.approx(found[0, some])


def test_it_learns_what_p0_lacks_and_begins_at_p0():
    """One feature tells the right item in three cases of four; p0 says nothing."""
    rng, count, depth = np.random.default_rng(0), 2100, 10
    seen = rng.normal(size=(count, depth, len(FEATURES))).astype(np.float32)
    right = np.where(rng.random(count) < 0.75, seen[:, :, 7].argmax(axis=1), rng.integers(depth, size=count))
    log, flat = TrainingLog(), np.zeros((count, depth), np.float32)
    found = trained(Examples(seen[:2000], flat[:2000], right[:2000]), 0, log)
    chosen = found.network(found.standardised(seen[2000:])).argmax(axis=1)
    assert (chosen == right[2000:]).mean() > 0.6
    first = log.records[0]
    assert first["phase"] == "training the reranker" and first["reranking"] < math.log(depth) + 0.05
    assert trained(Examples(seen[:20], flat[:20], right[:20]), 0, log) is None


# Whether it is used.


def figure_of(log: Corpus, index) -> float:
    report = api.evaluate(index, log, split="test", measures=["nDCG@10"], exclude_history=True)
    return report.measures["nDCG@10"].mean


def test_it_finds_more_where_words_tell_what_counts_do_not(log, fitted):
    record = next(one for one in fitted.log.records if one["phase"] == "reranker beyond counts")
    assert record["used"] and record["nDCG@10, reranked"] > record["nDCG@10, counts"] + record["error"]
    found = figure_of(log, fitted)
    try:
        assert found > figure_of(log, fitted.adjust({"rerank": 0})) + 0.02
    finally:
        fitted.adjust({"rerank": 60})


def test_without_a_gain_it_is_left_out(log, monkeypatch):
    monkeypatch.setattr(starts, "trained", lambda examples, seed, log: network())
    index = make("tied-log", QUICK).fit(log)
    assert index.reranker is None
    record = next(one for one in index.log.records if one["phase"] == "reranker beyond counts")
    assert not record["used"] and record["nDCG@10, reranked"] <= record["nDCG@10, counts"] + record["error"]


def test_nothing_that_it_learns_from_was_counted_and_nothing_that_decides_was_learned(log, monkeypatch):
    counted, learned, whole = [], [], log.sequences()
    real = module.examples_of
    monkeypatch.setattr(starts, "examples_of", lambda *rest: learned.append(rest) or real(*rest))

    def count(some):
        counted.append(some)
        return Counts.of(some, len(log), None, CountSettings(factors=4))

    joined(count, whole, 60, 0, TrainingLog())
    held = HeldOut.of(whole, 0)
    inner = HeldOut.of(held.rest, 0, module.EXAMPLES, 1)
    assert sorted(len(some.items) for some in counted) == [len(some.items) for some in (inner.rest, held.rest, whole)]
    used, _, histories, targets, depth = learned[0]
    assert len(targets) == len(inner.targets) > len(held.targets) and depth == 60
    assert used.counts.users.sum() == len(inner.rest.items)
    before = {(*h.tolist(), target) for h, target in zip(histories, targets.tolist(), strict=True)}
    assert before <= {tuple(each.tolist()) for each in held.rest.each()}


@pytest.mark.parametrize("method", ["tied-log", "sasrec", "dsi-semantic"])
def test_a_depth_of_0_leaves_it_out_and_counts_once(log, method, monkeypatch):
    counted, plain = [], Counts.of.__func__
    monkeypatch.setattr(Counts, "of", classmethod(lambda cls, s, *rest: counted.append(s) or plain(cls, s, *rest)))
    values = {"encoder": "scratch", "epochs": 0, "width": 4, "length": 2, "decoder_width": 16, "rerank": 0}
    known = vars(make(method).settings)
    index = make(method, {name: value for name, value in values.items() if name in known}).fit(log)
    holder = index if method == "tied-log" else getattr(index, "reader", index).start
    assert holder.reranker is None and [len(some.items) for some in counted] == [len(log.sequences().items)]


# In an index.


@pytest.mark.parametrize("method", ["tied-log", "sasrec", "dsi-semantic"])
def test_it_is_saved_ranks_after_changes_and_shows_in_no_other_start(log, tmp_path, method):
    values = QUICK | {"epochs": 0, "width": 4, "length": 2, "decoder_width": 16, "history_width": 16, "beam": 99}
    known = vars(make(method).settings)
    index = make(method, {name: value for name, value in values.items() if name in known}).fit(log)
    asked = Query("q", "", ("i3-1", "i3-2"))
    index.save(tmp_path / "index")
    loaded = api.load(tmp_path / "index")
    holder = loaded if method == "tied-log" else getattr(loaded, "reader", loaded).start
    assert holder.reranker is not None and loaded.log.records[-1]["phase"] == "trust beyond counts"
    assert loaded.search(asked).scores == pytest.approx(index.search(asked).scores, abs=1e-3)
    loaded.add([Document("new", "thing 3 of house3", "")])
    loaded.delete(["i3-3"])
    hits = loaded.search(asked, k=20).doc_ids
    assert "i3-3" not in hits and len(hits) == 20 and "new" in hits
    reopened = api.load(tmp_path / "index")
    assert reopened.search(asked, k=20).doc_ids == hits
    reopened.compact()
    assert "new" in reopened.search(asked, k=20).doc_ids  # the order may change: of fewer items, words are rarer


def test_the_parts_of_a_reranked_score_add_up(fitted):
    hits = fitted.search(Query("q", "", ("i3-1", "i3-2")), k=5, explain=True)
    for hit in hits:
        parts = [hit.why.get(name, 0.0) for name in ("codes", "memory", "reranker", "repeat")]
        assert sum(parts) == pytest.approx(hit.score, abs=1e-4)
    assert any(hit.why.get("reranker") for hit in hits)


def test_learned_interactions_reach_the_evidence(log, fitted, tmp_path):
    fitted.save(tmp_path / "index")
    index = api.load(tmp_path / "index")
    asked = Query("q", "", ("i3-1",))
    before = index.evidence_of_items()
    assert "i9-1" not in index.search(asked, k=5).doc_ids
    api.learn(index, {f"new{n}": ["i3-1", "i9-1"] for n in range(40)})
    after = index.evidence_of_items()
    row = log.rows()
    assert after.counts.following[row["i3-1"], row["i9-1"]] > before.counts.following[row["i3-1"], row["i9-1"]] + 10
    assert "i9-1" in index.search(asked, k=5).doc_ids


def test_weights_of_scores_are_those_of_the_start(evidence):
    histories = [np.array([3, 17])]
    counts = evidence.counts
    assert (log_weights_of(counts, counts.scores(histories), histories) == Start(counts).counted(histories)).all()
