"""URI: its equations against plain loops, its levels, ranker and codes, on texts and on a log."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import uri as plain
from small_t5 import save_small_t5
from training_spies import Killed, kill_at

import callslip
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, UnknownName, Unsupported
from callslip.identifiers import Identifiers, average_partition_entropy, random_codes
from callslip.identifiers.levels import prefix_groups, renamed
from callslip.identifiers.partitions import even_clusters, parting_scores
from callslip.methods import make
from callslip.methods.uri import Indexer, Ranker, balance, commitment, e_step, m_step, memory, ranking
from callslip.methods.uri.items import items_of
from callslip.training.batches import Members
from callslip.training.negatives import Siblings

QUICK = {
    "encoder": "scratch", "epochs": 10, "level_epochs": 2, "level_steps": 60, "decoder_width": 32, "width": 4,
    "leaf": 3, "batch_size": 64, "ranker_epochs": 2, "history_width": 32, "history_layers": 1,
    "level_learning_rate": 3e-3,
}  # fmt: skip


@pytest.fixture(scope="module")
def fitted(small_corpus, log):
    """An index of the small corpus, or of the small log, fitted once for each set of settings."""
    return functools.cache(
        lambda on="texts", **more: make("uri", QUICK | more).fit(log if on == "log" else small_corpus)
    )


# The equations.


def distributions(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.softmax(2 * torch.randn(shape, generator=generator), dim=-1) for shape in shapes]


SIZES = (st.integers(0, 999), st.integers(1, 6), st.integers(2, 5))


@settings(max_examples=25, deadline=None)
@given(*SIZES)
def test_both_steps_equal_plain_loops(seed, size, k):
    item, query = distributions(seed, (size, k), (size, k))
    assert float(e_step(item, query)) == pytest.approx(plain.cross_entropy(item.tolist(), query.tolist()), abs=1e-4)
    assert float(m_step(query, item)) == pytest.approx(plain.cross_entropy(query.tolist(), item.tolist()), abs=1e-4)
    assert float(commitment(item)) == pytest.approx(plain.commitment(item.tolist()), abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(*SIZES, st.booleans())
def test_balance_equals_plain_loops(seed, size, k, adaptive):
    (p,) = distributions(seed, (size, k))
    assert float(balance(p, adaptive)) == pytest.approx(plain.balance(p.tolist(), adaptive), abs=1e-4)


def test_each_step_teaches_one_side_only():
    item, query = (p.requires_grad_() for p in distributions(0, (3, 4), (3, 4)))
    e_step(item, query).backward()
    assert item.grad is None and query.grad.abs().sum() > 0
    query.grad = None
    m_step(query, item).backward()
    assert query.grad is None and item.grad.abs().sum() > 0


def test_a_token_used_as_it_should_be_has_the_weight_one():
    even = torch.full((5, 4), 0.25)
    assert float(balance(even)) == pytest.approx(float(balance(even, adaptive=False))) == pytest.approx(np.log(4))
    uneven = torch.tensor([[0.7, 0.1, 0.1, 0.1]])
    assert float(balance(uneven)) > float(balance(uneven, adaptive=False)) > np.log(4)


def test_the_weight_of_a_token_is_no_path_for_gradients():
    """Then the gradient is that of the plain sum with the weights put in as numbers."""
    (p,) = distributions(5, (4, 3))
    p.requires_grad_()
    balance(p).backward()
    use = p.detach().mean(dim=0)
    weight = (np.log(1 / 3) - use.log()).abs() + 1
    torch.testing.assert_close(p.grad, (-(weight / use) / 3 / 4).expand(4, 3))


def test_a_probability_of_nothing_is_no_infinity():
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert float(e_step(sure, sure.flip(1))) == pytest.approx(-np.log(1e-9), rel=1e-4)
    assert np.isfinite(float(balance(sure)))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(1, 5), st.integers(0, 3))
def test_memory_equals_plain_loops(seed, size, length):
    generator = torch.Generator().manual_seed(seed)
    logits = [torch.randn(size, 3, generator=generator) for _ in range(length)]
    code = torch.randint(0, 3, (size, length), generator=generator)
    expected = plain.memory([one.tolist() for one in logits], code.tolist())
    assert float(memory(logits, code)) == pytest.approx(expected, abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(1, 5), st.integers(1, 4))
def test_ranking_equals_plain_loops(seed, size, negatives):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(size, 3, generator=generator)
    compared = torch.randn(size, 1 + negatives, 3, generator=generator)
    same = torch.rand(size, negatives, generator=generator) < 0.3
    expected = plain.ranking(query.tolist(), compared.tolist(), same.tolist())
    assert float(ranking(query, compared, same)) == pytest.approx(expected, abs=1e-4)


def test_shapes_are_checked():
    (p,) = distributions(0, (3, 4))
    for wrong in (p[:2], p[:, :3], p[0]):
        with pytest.raises(ValueError, match="distributions"):
            e_step(p, wrong)
    with pytest.raises(ValueError, match="distributions"):
        balance(p[0])
    with pytest.raises(ValueError, match="do not fit"):
        ranking(p, torch.zeros(2, 3, 4), torch.zeros(2, 2, dtype=torch.bool))


# Parts.


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999), st.integers(1, 30), st.integers(1, 3))
def test_hard_negatives_are_of_the_leaves_beside(seed, size, length):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, (size, length))
    beside = [plain.siblings(codes.tolist(), row) for row in range(size)]
    drawn = Siblings(Identifiers(map(str, range(size)), codes)).draw(np.arange(size), 40, rng)
    for row, some in enumerate(drawn.tolist()):
        own = {other for other in range(size) if (codes[other] == codes[row]).all()}
        assert set(some) <= (beside[row] or set(range(size)) - own or own)
        if 0 < len(beside[row]) <= 3:
            assert set(some) == beside[row]  # in forty draws each of three comes up


def test_random_items_come_from_few_groups_and_every_item_as_often():
    groups = np.repeat([0, 1, 2], [10, 20, 30])
    members, rng = Members(groups), np.random.default_rng(0)
    drawn = [members.draw(40, 16, rng) for _ in range(2000)]
    assert all(len(some) == 40 and len(np.unique(groups[some])) <= 3 for some in drawn)
    assert all(len(np.unique(groups[some[start : start + 16]])) == 1 for some in drawn[:50] for start in (0, 16, 32))
    counts = np.bincount(np.concatenate(drawn), minlength=60)
    assert counts.min() / counts.mean() > 0.85 and counts.max() / counts.mean() < 1.15


def test_first_scores_part_the_items_of_every_prefix_alike():
    """Three clusters in each of two prefixes that lie far apart: scores find the clusters, whatever the prefix."""
    rng = np.random.default_rng(0)
    offsets = np.array([[0.3, 0, 0, 0], [-0.3, 0, 0, 0], [0, 0.4, 0, 0]])
    groups, kinds = np.repeat([0, 1], 60), np.tile([0, 1, 2], 40)
    states = np.array([[0, 0, 9.0, 1], [0, 0, -5.0, 2]])[groups] + offsets[kinds] + rng.normal(0, 0.02, (120, 4))
    weights, offset = parting_scores(states.astype(np.float32), groups, 3)
    tokens = (states @ weights.T + offset).argmax(axis=1)
    assert {len(set(tokens[kinds == kind])) for kind in range(3)} == {1}
    assert len(set(tokens)) == 3


def test_states_without_a_difference_are_parted_by_nothing():
    weights, offset = parting_scores(np.ones((5, 4), np.float32), np.zeros(5, np.int64), 3)
    assert not weights.any() and not offset.any()


def test_even_clusters_are_those_of_kmeans_where_they_are_even():
    """Three kinds of vectors of 20 items in each of two prefixes: each kind is a cluster of its own."""
    rng = np.random.default_rng(0)
    groups, kinds = np.repeat([0, 1], 60), np.tile([0, 1, 2], 40)
    vectors = np.eye(4)[kinds + groups] * rng.uniform(1, 9, (120, 1)) + rng.normal(0, 0.02, (120, 4))
    found = even_clusters(vectors, groups, 3)
    for group in (0, 1):
        assert {len(set(found[(groups == group) & (kinds == kind)])) for kind in range(3)} == {1}
        assert len(set(found[groups == group])) == 3


@settings(max_examples=25, deadline=None)
@example(52, 29, 5)  # items that are alike have fewer centres than clusters
@given(st.integers(0, 999), st.integers(1, 60), st.integers(1, 6))
def test_even_clusters_are_even_in_every_group(seed, size, k):
    rng = np.random.default_rng(seed)
    vectors, groups = rng.normal(size=(size, 3)) + 2, rng.integers(0, 4, size)
    vectors[rng.random(size) < 0.1] = 0  # an item that nothing is known of
    found = even_clusters(vectors, prefix_groups(groups[:, None]), k)
    assert found.min() >= 0 and found.max() < k
    for group in set(groups):
        own = found[groups == group]
        assert np.bincount(own).max() <= max(1, -(-len(own) // min(k, len(own))))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(1, 40), st.sampled_from(["uniform", "by-prefix"]))
def test_renaming_keeps_buckets_and_prefixes(seed, size, how):
    codes = np.random.default_rng(seed).integers(0, 4, (size, 2))
    changed = renamed(codes, how, 4, seed)
    assert (changed[:, 0] == codes[:, 0]).all()
    for one in range(size):
        assert ((changed == changed[one]).all(axis=1) == (codes == codes[one]).all(axis=1)).all()
    names = {(int(a), int(b), int(c)) for (a, b), (_, c) in zip(codes, changed, strict=True)}
    if how == "uniform":  # the same token has the same new name everywhere
        assert len({(old, new) for _, old, new in names}) == len({old for _, old, _ in names})
    assert len(names) == len({(prefix, old) for prefix, old, _ in names})


def test_the_rankers_items_can_be_folded_into_the_query():
    torch.manual_seed(0)
    ranker = Ranker(5)
    query, items = torch.randn(5), torch.randn(7, 5)
    torch.testing.assert_close(items @ ranker.folded(query), items @ query)  # it begins as no change at all
    for side in (ranker.query_side, ranker.item_side):
        torch.nn.init.normal_(side.weight)
    torch.testing.assert_close(items @ ranker.folded(query), ranker.items(items) @ ranker.queries(query))


# Levels.


@pytest.mark.parametrize("on", ["texts", "log"])
def test_no_token_has_more_items_than_its_share(on, fitted):
    """Inside every prefix: the share is the number of items over that of tokens, rounded up."""
    _, codes = fitted(on).identifiers.in_row_order()
    groups = prefix_groups(codes[:, :1])
    assert np.bincount(codes[:, 0], minlength=4).max() <= -(-len(codes) // 4)
    for group in range(groups.max() + 1):
        own = codes[groups == group, 1]
        assert np.bincount(own).max() <= -(-len(own) // 4)


def test_codes_gather_what_users_have_in_common(fitted, log):
    """Lower entropy than random codes of the same shape, in the log and by counting again."""
    index = fitted("log")
    (record,) = [record for record in index.log.records if record["phase"] == "codes"]
    positives = log.sequences().each()
    chance = average_partition_entropy(random_codes(len(log), 2, 4, seed=0), positives)
    assert record["ape_random"] == pytest.approx(chance, abs=1e-3)
    assert record["ape"] == pytest.approx(
        average_partition_entropy(index.identifiers.in_row_order()[1], positives), abs=1e-3
    )
    assert record["ape"] < 0.9 * record["ape_random"]


def test_every_level_is_watched_and_every_phase_is_there(fitted):
    records = fitted().log.records
    phases = list(dict.fromkeys(record["phase"] for record in records))
    assert phases == ["level 1", "level 2", "codes", "training the decoder", "training the ranker"]
    for record in records[:4]:
        assert {"unique_codes", "diversity", "within_prefix", "e_step", "m_step", "commitment", "balance"} <= set(
            record
        )
    assert "memory" not in records[0] and "memory" in records[3]
    *_, trained, start = fitted("log").log.records
    assert "ranking" in trained  # the ranker of histories is trained with the decoder
    assert start["phase"] == "trust beyond counts"


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"commitment_weight": 0}, "commitment"),
        ({"balance_weight": 0}, "balance"),
        ({"memory_weight": 0}, "memory"),
    ],
)
def test_a_part_that_is_left_out_has_no_term(small_corpus, values, gone):
    short = {"epochs": 0, "level_epochs": 1, "level_steps": 1, "ranker_epochs": 0}
    record = make("uri", QUICK | short | values).fit(small_corpus).log.records[1]
    assert record["phase"] == "level 2"
    assert {"e_step", "m_step", "commitment", "balance", "memory"} - set(record) == {gone}


@pytest.mark.parametrize(
    "values",
    [
        {"adaptive": False}, {"random_items": False}, {"evenness": "level"}, {"begin": "chance"}, {"begin": "clusters"},
        {"hard_negatives": 0}, {"ranker_softmax": "full"}, {"ranker_softmax": "shared"},
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_changes_what_is_learned(small_corpus, fitted, values):
    short = {"epochs": 1, "level_epochs": 1, "level_steps": 4, "ranker_epochs": 1}
    index, other = fitted(**short), make("uri", QUICK | short | values).fit(small_corpus)
    same = [
        torch.equal(a, b)
        for one, two in ((index.model, other.model), (index.ranker.maps, other.ranker.maps))
        for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    ]
    assert not all(same)


def test_items_learn_their_clusters_in_the_head_start(small_corpus, log):
    """With nothing but a head start the codes are the clusters, once they are learned; by default only in logs."""
    values = {"begin": "clusters", "head_start": 1.0, "level_epochs": 8, "level_steps": 600, "epochs": 0, "length": 1}
    index = make("uri", QUICK | values | {"ranker_epochs": 0}).fit(small_corpus)
    assert {"clusters", "e_step"} <= set(index.log.records[0]) and "commitment" not in index.log.records[0]
    expected = even_clusters(index.vectors, np.zeros(len(small_corpus), np.int64), 4)
    assert np.mean(index.identifiers.in_row_order()[1][:, 0] == expected) > 0.9
    short = {"epochs": 0, "level_epochs": 1, "level_steps": 1}
    for corpus, there in ((small_corpus, False), (log, True)):
        records = make("uri", QUICK | short | {"ranker_epochs": 0}).fit(corpus).log.records
        assert any("clusters" in record for record in records) == there


# Recommendation.


def share_found(index, log, k=5):
    queries, judgements = log.split("test")
    hits = index.search_batch(list(queries.values()), k=k, keep_history=True)  # users of this log walk in rings
    return np.mean([bool(set(h.doc_ids) & set(judgements[q])) for q, h in zip(queries, hits, strict=True)])


def test_it_finds_what_comes_next(fitted, log):
    index = fitted("log")
    assert index.reads_histories and share_found(index, log) > 0.6  # 5 of 48 by chance are 0.1
    assert "soap-5" in index.search(Query("q", "", ("soap-2", "soap-3", "soap-4")), k=3).doc_ids


@pytest.mark.parametrize(
    "values", [{"items": "id", "queries": "set"}, {"items": "text"}, {"history_memory": "states"}], ids=str
)
def test_items_and_queries_of_every_kind(fitted, log, values):
    short = {"epochs": 6, "level_epochs": 1, "level_steps": 20}
    assert share_found(fitted("log", **short, **values), log, k=8) > 0.35


def test_a_new_item_is_coded_by_its_text(log):
    """Where items are texts, one with the text of another has the code that the decoder finds most probable for it."""
    short = {"epochs": 1, "level_epochs": 1, "level_steps": 5, "items": "text"}
    index = make("uri", QUICK | short).fit(log)
    row = index.row_of()["kite-3"]
    expected = Indexer(index, items_of(index, log.documents)).code(2)
    index.add([Document("kite-new", log.documents[row].text, log.documents[row].title)])
    table = index.identifiers
    assert table.codes[table.position_of("kite-new")].tolist() == expected[row].tolist()
    assert len(index.search(Query("q", "", ("kite-new", "kite-1")), k=3)) == 3


# Codes that are given.


def test_other_methods_take_its_codes(fitted, saved, log):
    """Deep Retrieval and TIGER, too: the codes of every document are those of the index."""
    expected = dict(zip(fitted("log").identifiers.doc_ids, fitted("log").identifiers.codes.tolist(), strict=True))
    for name in ("dsi-semantic", "tiger", "deep-retrieval", "nci", "uri"):
        values = {key: value for key, value in QUICK.items() if hasattr(make(name).settings, key)}
        index = make(name, values | {"epochs": 1, "codes_from": str(saved("log"))}).fit(log)
        assert dict(zip(index.identifiers.doc_ids, index.identifiers.codes.tolist(), strict=True)) == expected, name


def test_an_index_with_given_codes_is_saved_and_loaded(saved, small_corpus, tmp_path):
    index = make("dsi-semantic", {"encoder": "scratch", "epochs": 1, "codes_from": str(saved("texts"))}).fit(
        small_corpus
    )
    index.save(tmp_path / "given")
    again = callslip.load(tmp_path / "given")
    assert again.search("violin music3", k=5).doc_ids == index.search("violin music3", k=5).doc_ids
    with pytest.raises(Unsupported, match="cannot code"):
        again.add([Document("new", "the violin is a music")])


def test_codes_that_cannot_be_taken_are_refused_with_the_reason(saved, small_corpus, tmp_path):
    more = Corpus([*small_corpus.documents, Document("stranger", "nobody knows it")])
    with pytest.raises(BadSetting, match="no code for 1 of 41 documents, such as 'stranger'") as caught:
        make("dsi-semantic", {"encoder": "scratch", "codes_from": str(saved("texts"))}).fit(more)
    assert "compact" in caught.value.remedy
    make("bm25").fit(small_corpus).save(tmp_path / "words")
    with pytest.raises(BadSetting, match="gives no codes"):
        make("uri", QUICK | {"codes_from": str(tmp_path / "words")}).fit(small_corpus)
    with pytest.raises(callslip.CallslipError, match="nowhere"):
        make("uri", QUICK | {"codes_from": str(tmp_path / "nowhere")}).fit(small_corpus)
    for name in ("genret", "glen"):
        with pytest.raises(UnknownName, match="codes_from"):
            make(name, {"codes_from": "anything"})


@pytest.mark.parametrize("how", ["uniform", "by-prefix"])
def test_renamed_codes_have_the_same_entropy(saved, fitted, log, how):
    index = make("uri", QUICK | {"epochs": 1, "codes_from": str(saved("log")), "renaming": how}).fit(log)
    (record,) = [record for record in index.log.records if record["phase"] == "codes"]
    (before,) = [record for record in fitted("log").log.records if record["phase"] == "codes"]
    assert record["ape"] == before["ape"] and record["unique_codes"] == before["unique_codes"]
    assert (index.identifiers.in_row_order()[1] != fitted("log").identifiers.in_row_order()[1]).any()


def test_random_codes_are_the_control(small_corpus):
    index = make("uri", QUICK | {"codes": "random", "epochs": 1, "ranker_epochs": 0}).fit(small_corpus)
    assert not any(record["phase"].startswith("level") for record in index.log.records)
    with pytest.raises(Unsupported, match="cannot code documents"):
        index.add([Document("new/1", "the violin is a music")])


def test_inspect_shows_the_entropy(saved):
    from typer.testing import CliRunner

    from callslip.cli import app, inspect  # noqa: F401  (it registers the command)

    shown = CliRunner().invoke(app, ["inspect", str(saved("log"))])
    assert "average partition entropy" in shown.output and "random codes" in shown.output
    figures = json.loads(CliRunner().invoke(app, ["inspect", str(saved("log")), "--json"]).stdout)
    assert figures["partition_entropy"]["ape"] < figures["partition_entropy"]["ape_random"]
    assert "greedy recovery (URI, Theorem 1)" in shown.output
    bound = figures["greedy_recovery"]
    holds = "the bound holds" if bound["queries"] >= bound["queries_needed"] else "the bound fails"
    assert holds in " ".join(shown.output.split()) and 0 < bound["recovered"] <= 1


def test_mistakes_are_refused():
    for values in (
        {"temperature": 0},
        {"random_negatives": 0, "hard_negatives": 0},
        {"head_start": 2},
    ):
        with pytest.raises(BadSetting):
            make("uri", values)


# Other models, and trainings that were stopped.


def test_t5_is_a_decoder_for_it(small_corpus, tmp_path):
    words = sorted({word.strip(".,").lower() for d in small_corpus for word in d.content.split()})
    folder = save_small_t5(tmp_path / "t5", words, d_model=32, d_ff=64, dropout_rate=0.0)
    short = {"seq2seq": str(folder), "level_epochs": 1, "level_steps": 5, "epochs": 1, "ranker_epochs": 1}
    index = make("uri", QUICK | short).fit(small_corpus)
    index.save(tmp_path / "index")
    asked = [query.text for query in list(small_corpus.queries.values())[:4]]
    for before, after in zip(
        index.search_batch(asked, 5), callslip.load(tmp_path / "index").search_batch(asked, 5), strict=True
    ):
        assert before.doc_ids == after.doc_ids


@pytest.mark.parametrize(("on", "step"), [("texts", 15), ("log", 15), ("texts", 27)])
def test_a_fit_that_was_killed_goes_on_to_the_same_codes_and_weights(
    small_corpus, log, tmp_path, monkeypatch, on, step
):
    from callslip.training.checkpoints import Checkpoints

    corpus = log if on == "log" else small_corpus
    values = QUICK | {"level_steps": 10, "level_epochs": 1, "epochs": 2, "ranker_epochs": 2}
    whole = make("uri", values).fit(corpus)
    with monkeypatch.context() as patched:
        kill_at(patched, step)
        with pytest.raises(Killed):
            make("uri", values).fit(corpus, Checkpoints(tmp_path / "c", every=0.0))
    index = make("uri", values).fit(corpus, Checkpoints(tmp_path / "c", resume=True))
    assert (index.identifiers.codes == whole.identifiers.codes).all()
    for one, two in ((whole.model, index.model), *([(whole.ranker.maps, index.ranker.maps)] if on == "texts" else [])):
        for name, value in one.state_dict().items():
            assert torch.equal(value, two.state_dict()[name]), name
