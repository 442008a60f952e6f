"""The recommenders' own parts, against plain loops and against one another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import recommenders as naive
from small_log import small_log

from callslip.api import load
from callslip.corpus.documents import Query
from callslip.corpus.sequences import Sequences
from callslip.decoders.histories import HistoryEncoder, ItemTable
from callslip.errors import BadSetting
from callslip.identifiers import RQVAE, VQVAE
from callslip.identifiers.vector_table import VectorTable
from callslip.methods import make
from callslip.methods.deep_retrieval import chosen_paths, even_penalty, some_of_each
from callslip.methods.item_knn import ItemKNN, ItemKNNSettings, co_occurrence, nearest_only
from callslip.methods.sasrec import next_items
from callslip.methods.seqrules import SeqRules, SeqRulesSettings, rules
from callslip.methods.transitions import Transitions, TransitionsSettings, steps, walks

logs = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), min_size=1, max_size=6)


def of(items):
    flat = np.array([item for some in items for item in some], np.int64)
    return Sequences([str(n) for n in range(len(items))], flat, np.cumsum([0, *map(len, items)]))


@settings(max_examples=40, deadline=None)
@given(items=logs, powers=st.tuples(*[st.sampled_from([0.0, 0.2, 0.5, 1.0])] * 3), decay=st.sampled_from([0.5, 1.0]))
def test_item_knn_is_that_of_a_plain_loop(items, powers, decay):
    a, b, c = powers
    chosen = ItemKNNSettings(user_power=a, popularity_power=b, neighbour_power=c, decay=decay)
    near = co_occurrence(of(items), 7, chosen)
    expected = naive.co_occurrence(items, 7, a, b, c)
    assert near.toarray() == pytest.approx(np.array(expected), abs=1e-9)
    index = ItemKNN(chosen)
    index.near = near
    histories = [np.array([0, 3, 3, 6]), np.zeros(0, np.int64), np.array([2])]
    for history, scores in zip(histories, index.scores(histories), strict=True):
        assert scores == pytest.approx(naive.knn_scores(expected, history.tolist(), decay), abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(items=logs, count=st.integers(1, 4))
def test_only_the_nearest_are_kept(items, count):
    near = co_occurrence(of(items), 7, ItemKNNSettings())
    full, thin = near.toarray(), nearest_only(near, count).toarray()
    for row, kept in zip(full, thin, strict=True):
        best = sorted((j for j in range(7) if row[j] > 0), key=lambda j: (-row[j], j))[:count]
        assert np.flatnonzero(kept).tolist() == sorted(best)
        assert kept[best].tolist() == row[best].tolist()


def test_item_knn_says_because_of_what_and_refuses_nonsense():
    index = make("item-knn").fit(small_log())
    for hit in index.search(Query("q", "", ("soap-2", "tea-3")), k=5, explain=True):
        assert sum(hit.why["because"].values()) == pytest.approx(hit.score, abs=1e-5)
        assert set(hit.why["because"]) <= {"soap-2", "tea-3"}
    with pytest.raises(BadSetting, match="decay"):
        ItemKNNSettings(decay=0)


HISTORIES = [np.array([0, 3, 3, 6]), np.zeros(0, np.int64), np.array([2])]


@settings(max_examples=40, deadline=None)
@given(
    items=logs,
    gap=st.sampled_from([0.5, 1.0]),
    back=st.sampled_from([0.0, 0.3, 1.0]),
    powers=st.tuples(*[st.sampled_from([0.0, 0.2, 1.0])] * 3),
    window=st.sampled_from([1, 2, 50]),
)
def test_sequential_rules_are_those_of_a_plain_loop(items, gap, back, powers, window):
    a, b, c = powers
    chosen = SeqRulesSettings(
        gap=gap, back=back, window=window, user_power=a, popularity_power=b, neighbour_power=c, decay=0.5
    )
    index = SeqRules(chosen)
    index.rules = rules(of(items), 7, chosen)
    counts = [max(1, sum(some.count(item) for some in items)) for item in range(7)]
    plain = naive.rules(items, 7, gap, back, a, window)
    plain = [[plain[i][j] * counts[i] ** -b * counts[j] ** -c for j in range(7)] for i in range(7)]
    assert index.rules.toarray() == pytest.approx(np.array(plain), abs=1e-9)
    for history, scores in zip(HISTORIES, index.scores(HISTORIES), strict=True):
        assert scores == pytest.approx(naive.knn_scores(plain, history.tolist(), 0.5), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    items=logs,
    back=st.sampled_from([0.0, 0.3]),
    smoothing=st.sampled_from([0.0, 2.0]),
    hops=st.integers(1, 3),
    continuation=st.sampled_from([0.5, 1.0]),
)
def test_a_walk_over_transitions_is_that_of_a_plain_loop(items, back, smoothing, hops, continuation):
    chosen = TransitionsSettings(back=back, smoothing=smoothing, hops=hops, continuation=continuation, decay=0.5)
    index = Transitions(chosen)
    index.walks = walks(steps(of(items), 7, chosen), chosen)
    pairs = naive.rules(items, 7, 1.0, back, 0.0, 1)
    plain = [[weight / max(sum(row) + smoothing, 1e-12) for weight in row] for row in pairs]
    for history, scores in zip(HISTORIES, index.scores(HISTORIES), strict=True):
        assert scores == pytest.approx(naive.walk(plain, history.tolist(), 0.5, hops, continuation), abs=1e-9)


@pytest.mark.parametrize("name", ["seqrules", "transitions"])
def test_counting_says_because_of_what_and_refuses_nonsense(name):
    index = make(name).fit(small_log())
    for hit in index.search(Query("q", "", ("soap-2", "tea-3")), k=5, explain=True):
        assert sum(hit.why["because"].values()) == pytest.approx(hit.score, abs=1e-5)
        assert hit.why["because"]
    with pytest.raises(BadSetting, match="decay"):
        make(name, {"decay": 0})


def test_every_place_of_a_history_is_trained_against_the_next_item():
    torch.manual_seed(0)
    model = HistoryEncoder(ItemTable(9, 8, "id"), "sequence", longest=6, heads=2).eval()
    histories = torch.tensor([[3, 7, 2, 5], [1, 4, 0, 0], [6, 0, 0, 0]])
    states, rows = next_items(model, histories)
    before = [[3], [3, 7], [3, 7, 2], [1]]
    assert rows.tolist() == [6, 1, 4, 3]
    for state, history in zip(states, before, strict=True):
        torch.testing.assert_close(state, model(torch.tensor([history])).vector[0])


@given(seed=st.integers(0, 99), penalty=st.sampled_from([0.0, 0.05, 1.0]))
def test_items_choose_paths_as_a_plain_loop_has_it(seed, penalty):
    rng = np.random.default_rng(seed)
    weights, paths = rng.random((8, 3)), rng.integers(0, 2, (8, 3, 2)).astype(np.int32)
    order = rng.permutation(8)
    found = chosen_paths(weights, paths, order, penalty)
    assert found.tolist() == naive.chosen_paths(weights.tolist(), paths.tolist(), order.tolist(), penalty)


def test_a_penalty_spreads_items_over_paths():
    weights, paths = np.tile([0.9, 0.1], (20, 1)), np.tile(np.array([[[0], [1]]], np.int32), (20, 1, 1))
    crowded = chosen_paths(weights, paths, np.arange(20), 0.0)
    shared = chosen_paths(weights, paths, np.arange(20), 1.0)
    assert not crowded.any() and 8 <= shared.sum() <= 12


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="paths"):
        chosen_paths(np.zeros((2, 3)), np.zeros((2, 2, 1), np.int32), np.arange(2), 0.0)


@given(rows=st.lists(st.integers(0, 4), min_size=1, max_size=30), count=st.integers(1, 4))
def test_so_many_examples_of_each_item_have_a_say(rows, count):
    chosen = some_of_each(np.array(rows), count, np.random.default_rng(0))
    assert sorted(set(chosen.tolist())) == chosen.tolist()
    found = {row: int((np.array(rows)[chosen] == row).sum()) for row in rows}
    assert found == naive.best_of_each(rows, count)


def test_paths_gather_what_the_same_users_have():
    """After some rounds, items of one ring share paths more often than chance has it; before them they do not."""
    log = small_log()
    quick = {"encoder": "scratch", "decoder_width": 32, "history_width": 32, "batch_size": 64, "width": 6, "length": 1}
    quick |= {"queries": "set", "epochs": 0, "round_epochs": 3, "penalty": 1e-4}

    def gathered(rounds):
        codes = make("deep-retrieval", quick | {"rounds": rounds}).fit(log).identifiers.in_row_order()[1][:, 0]
        ring = np.repeat(np.arange(6), 8)
        others = ~np.eye(48, dtype=bool)
        same = codes[:, None] == codes[None, :]
        return same[(ring[:, None] == ring[None, :]) & others].mean() / same[others].mean()

    assert gathered(0) < 1.3
    assert gathered(4) > 1.7


def test_a_fitted_log_is_spread_over_its_paths():
    quick = {"encoder": "scratch", "decoder_width": 32, "history_width": 32, "batch_size": 64, "width": 4, "length": 2}
    index = make("deep-retrieval", quick | {"epochs": 0, "rounds": 2, "round_epochs": 2}).fit(small_log())
    codes = index.identifiers.in_row_order()[1]
    assert np.unique(codes, axis=0, return_counts=True)[1].max() <= 3 * len(codes) / 16
    assert np.bincount(codes[:, 0]).max() <= 2 * len(codes) / 4


def test_paths_stay_even_whatever_the_number_of_items():
    """The default penalty is worth as much for a few items as for many; without one a few paths hold most."""
    rng = np.random.default_rng(0)
    for items, paths in ((60, 12), (3000, 12), (3000, 1000), (50, 1000)):
        liked = rng.dirichlet(np.full(paths, 0.3))  # some paths are far more popular than others
        candidates = np.stack([rng.choice(paths, 8, replace=False, p=liked * 0.9 + 0.1 / paths) for _ in range(items)])
        weights, given = liked[candidates], candidates[:, :, None].astype(np.int32)

        def fullest(penalty, weights=weights, given=given, items=items, paths=paths):
            found = chosen_paths(weights, given, np.arange(items), penalty)[:, 0]
            return np.bincount(found, minlength=paths).max() / max(1, items / paths)

        assert fullest(even_penalty(items, paths)) < 3.5
        assert fullest(0.0) > 1.8 * fullest(even_penalty(items, paths))


def test_tiger_tells_items_of_a_code_apart_and_puts_a_new_one_beside_the_nearest():
    from callslip.corpus.documents import Document

    log = small_log()
    quick = {"encoder": "scratch", "epochs": 1, "decoder_width": 32, "history_width": 32, "rqvae_epochs": 3}
    index = make("tiger", quick | {"width": 8, "length": 1}).fit(log)
    assert index.identifiers.unique == len(log) and index.identifiers.length == 2
    same = log.documents[0]
    index.add([Document("twin", same.text, same.title)])
    codes = index.identifiers.in_row_order()[1]
    assert codes[-1].tolist() == codes[0].tolist()  # of all items with its token, this is the nearest
    index.vectors = VectorTable(np.zeros(index.vectors.shape, np.float32))
    assert index._place(np.array([99]), np.zeros(1)) == 0  # a token that nobody has
    shared = make("tiger", quick | {"width": 8, "length": 1, "collisions": "bucket"}).fit(log)
    assert shared.identifiers.length == 1 and shared.identifiers.unique <= 8


@pytest.mark.parametrize("name", ["deep-retrieval", "sasrec"])
def test_a_training_that_was_stopped_ends_as_if_it_had_not_been(name, tmp_path, monkeypatch):
    """Stopped in the middle of every phase; paths that were chosen already are not chosen again."""
    from callslip.errors import TrainingStopped
    from callslip.training import loop
    from callslip.training.checkpoints import Checkpoints

    log = small_log(users=30)
    values = {"encoder": "scratch", "history_width": 16, "batch_size": 64, "epochs": 2}
    if name == "deep-retrieval":
        values |= {"decoder_width": 16, "width": 4, "length": 2, "rounds": 1, "round_epochs": 2}
    whole = make(name, values).fit(log)
    step, seen = loop._step, []

    def stopping(*arguments):
        done = step(*arguments)
        seen.append(1)
        if len(seen) in (2, 8):
            keep.stop.signal = 15
        return done

    monkeypatch.setattr(loop, "_step", stopping)
    stops = 0
    while True:
        keep = Checkpoints(tmp_path / "training", resume=stops > 0, every=0.0)
        try:
            index = make(name, values).fit(log, keep)
            break
        except TrainingStopped:
            stops += 1
    assert stops >= 1
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, index.model.state_dict()[key]), key
    if name == "deep-retrieval":
        assert (whole.identifiers.codes == index.identifiers.codes).all()


@pytest.mark.parametrize(("quantiser", "kind"), [("rqvae", RQVAE), ("vqvae", VQVAE)])
def test_tigers_codes_are_those_of_the_quantiser_asked_for(quantiser, kind, tmp_path):
    log = small_log(users=24)
    values = {"encoder": "scratch", "quantiser": quantiser, "rqvae_epochs": 2, "rqvae_latent": 4, "width": 8}
    index = make("tiger", values | {"length": 2, "epochs": 0, "collisions": "bucket"}).fit(log)
    assert type(index.maker) is kind
    expected = kind(2, 8, 64, latent=4).fit(index.texts.encode([item.content for item in log]), epochs=2)
    np.testing.assert_array_equal(index.identifiers.in_row_order()[1], expected)
    index.save(tmp_path / "index")
    assert type(load(tmp_path / "index").maker) is kind
