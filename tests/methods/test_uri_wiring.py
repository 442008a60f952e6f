"""The wiring of URI: every setting and preset reaches the quantity that it names.

Most tests fit with a training loop that only records what it is asked to do: the phases, their schedules, batches and
objectives. An objective is then evaluated on a batch and compared with plain loops over the paper's equations.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from reference import uri as plain
from small_log import small_log
from training_spies import Plan, plan

from callslip.api import load
from callslip.corpus.documents import Corpus, Document
from callslip.errors import Unsupported
from callslip.identifiers import average_partition_entropy, random_codes
from callslip.identifiers.levels import level_figures, prefix_groups, renamed
from callslip.identifiers.partition_em import PartitionEM, recovered, recovery_queries, relations_of
from callslip.identifiers.partitions import even_clusters, parting_scores
from callslip.methods import make
from callslip.methods.uri import Indexer, Training
from callslip.methods.uri import method as method_module
from callslip.methods.uri import ranker as ranker_module
from callslip.methods.uri import training as training_module
from callslip.methods.uri.items import items_of
from callslip.methods.uri.ranker import TextRanker, with_negatives
from callslip.methods.uri.training import positives_of
from callslip.recipes import read_recipe
from callslip.training.batches import Members

pytestmark = pytest.mark.usefixtures("whole_precision")

BASE: dict[str, Any] = {
    "encoder": "scratch", "decoder_width": 16, "decoder_layers": 1, "decoder_heads": 2, "dropout": 0.0, "noise": 0.0,
    "history_width": 16, "history_layers": 1, "history_heads": 1, "history_dropout": 0.0, "history_length": 6,
    "seed": 7, "batch_size": 48, "weight_decay": 0.03, "epochs": 3, "learning_rate": 4e-3,
    "width": 4, "length": 2, "level_epochs": 2, "level_steps": 23, "level_learning_rate": 2e-3, "head_start": 0.3,
    "commitment_weight": 0.5, "balance_weight": 0.7, "memory_weight": 0.3, "warmup_epochs": 4,
    "ranker_epochs": 6, "ranker_learning_rate": 3e-3, "random_negatives": 5, "hard_negatives": 2, "temperature": 0.1,
    "ranker_weight": 0.4, "ranker_negatives": 11, "start": "none",
}  # fmt: skip
"""No value is a default, so that a setting that is ignored shows; neither dropout nor noise, so that losses repeat."""


def plan_uri(corpus: Corpus, **values: Any) -> Plan:
    return plan("uri", corpus, BASE | values)


def items(made: Plan) -> Any:
    """The documents as the decoder reads them."""
    return items_of(made.index, list(made.corpus))


@pytest.fixture(scope="module")
def log() -> Corpus:
    return small_log(users=24)


@pytest.fixture(scope="module")
def planned(small_corpus, log):
    """A plan for texts or for the log, made once for each set of values."""
    return functools.cache(lambda on="texts", **values: plan_uri(log if on == "log" else small_corpus, **values))


# The codes.


@pytest.mark.parametrize(
    ("values", "length"), [({"length": 3}, 3), ({"length": None, "leaf": 3}, 2), ({"length": None, "leaf": 1}, 3)]
)
def test_length_is_the_number_of_levels_and_leaf_chooses_it(planned, values, length):
    assert planned(**values).codes.shape == (40, length)
    assert [head.out_features for head in planned(**values).index.model.heads] == [4] * length


def test_random_codes_are_those_of_the_seed_and_cannot_be_extended(small_corpus):
    index = plan_uri(small_corpus, codes="random").index
    assert (index.identifiers.in_row_order()[1] == random_codes(40, 2, 4, seed=7)).all()
    with pytest.raises(Unsupported):
        index.add([Document("new", "the violin is a music")])


def test_new_documents_get_the_likeliest_tokens_one_after_the_other(small_corpus):
    index = plan_uri(small_corpus).index
    model, vectors = index.model, torch.from_numpy(np.asarray(index.vectors))
    with torch.no_grad():
        model.tokens[0].weight.mul_(200)  # untrained, the second token would hardly depend on the first
        blank = torch.zeros((40, 2), dtype=torch.int64)
        first = model(vectors, blank)[0].argmax(dim=1)
        second = model(vectors, torch.stack([first, first], dim=1))[1].argmax(dim=1)
        assert (second != model(vectors, blank)[1].argmax(dim=1)).any()
    index.add([Document(f"new {document.doc_id}", document.text, document.title) for document in small_corpus])
    found = index.identifiers.in_row_order()[1][40:]
    assert found.tolist() == torch.stack([first, second], dim=1).tolist()


def test_codes_from_another_index_replace_the_levels(planned, small_corpus, tmp_path):
    source = plan_uri(small_corpus, codes="random").index
    source.save(tmp_path / "source")
    made = plan_uri(small_corpus, codes_from=str(tmp_path / "source"))
    assert (made.codes == source.identifiers.in_row_order()[1]).all()
    assert list(made.phases) == ["training the decoder", "training the ranker"]


def test_renaming_renames_the_last_level_by_the_seed(planned):
    before = planned().codes
    for how in ("uniform", "by-prefix"):
        assert (planned(renaming=how).codes == renamed(before, how, 4, 7)).all()
        assert (planned(renaming=how).codes != before).any()


@pytest.mark.parametrize("slack", [1.0, 1.4, 2.0])
@pytest.mark.parametrize("evenness", ["prefix", "level"])
def test_slack_bounds_the_items_of_a_token(small_corpus, monkeypatch, slack, evenness):
    """Where all items want one token, it gets exactly slack times its even share; in each prefix, or in the level."""
    wanted = np.tile([0.1, 0.7, 0.15, 0.05], (40, 1))
    monkeypatch.setattr(Indexer, "distributions", lambda self, codes: wanted)
    codes = plan_uri(small_corpus, slack=slack, evenness=evenness).codes
    level = int(np.ceil(slack * 10))
    assert np.bincount(codes[:, 0], minlength=4)[1] == level
    if evenness == "level":
        assert np.bincount(codes[:, 1], minlength=4)[1] == level
        return
    for first in np.unique(codes[:, 0]):
        own = codes[codes[:, 0] == first, 1]
        assert np.bincount(own, minlength=4)[1] == min(len(own), int(np.ceil(slack * -(-len(own) // 4))))


def test_the_entropy_of_random_codes_is_that_of_the_seed(planned, log):
    (record,) = [one for one in planned("log").index.log.records if one["phase"] == "codes"]
    positives = log.sequences().each()
    chance = average_partition_entropy(random_codes(len(log), 2, [4, 4], seed=7), positives)
    assert record["ape_random"] == pytest.approx(chance, abs=1e-3)
    assert record["ape"] == pytest.approx(average_partition_entropy(planned("log").codes, positives), abs=1e-3)


# How a level begins.


def test_weights_come_from_the_seed(planned):
    """Where a level begins at random, a fit without training leaves the model as the seed makes it."""
    index = planned(begin="chance").index
    other = make("uri", BASE)
    other.read_corpus(planned().corpus)
    torch.manual_seed(7)
    other.new_model([4, 4])
    for name, value in other.model.state_dict().items():
        assert torch.equal(value, index.model.state_dict()[name]), name


@pytest.mark.parametrize("begin", ["auto", "parted"])
def test_a_parted_level_begins_with_the_scores_that_separate_its_items(planned, begin):
    made = planned(begin=begin)
    for level in (0, 1):
        prefix = made.codes[:, :level]
        states = np.concatenate([some.numpy() for some in Indexer(made.index, items(made)).states(prefix)])
        weights, offsets = parting_scores(states, prefix_groups(prefix), 4, 7)
        np.testing.assert_allclose(made.index.model.heads[level].weight.detach(), weights, atol=1e-5)
        np.testing.assert_allclose(made.index.model.heads[level].bias.detach(), offsets, atol=1e-4)


@pytest.mark.parametrize(
    ("on", "begin", "kind"),
    [("texts", "auto", "parted"), ("texts", "clusters", "clusters"), ("texts", "chance", "chance"),
     ("log", "auto", "clusters"), ("log", "parted", "parted"), ("log", "chance", "chance")],
)  # fmt: skip
def test_begin_chooses_what_a_level_begins_with(planned, on, begin, kind):
    """Only clusters have a term of their own, and only parted scores replace the output weights."""
    made = planned(on, begin=begin)
    assert ("clusters" in level_terms(made, 1, progress=0.0)) == (kind == "clusters")
    heads = (planned(on, begin=other).index.model.heads[0].weight for other in (begin, "chance"))
    assert torch.equal(*heads) == (kind != "parted")


@pytest.mark.parametrize(("on", "level"), [("texts", 1), ("texts", 2), ("log", 1), ("log", 2)])
def test_items_learn_the_even_clusters_of_the_seed_in_the_head_start(planned, on, level):
    made = planned(on, begin="clusters")
    prefix = prefix_groups(made.codes[:, : level - 1])
    model = made.index.model
    vectors = model.items.all().detach().numpy() if on == "log" else made.index.vectors
    expected = even_clusters(vectors, prefix, 4, 7)
    assert (expected != even_clusters(vectors, prefix, 4, 0)).any()  # the seed decides
    numbers, strangers = made.phases[f"level {level}"].first()
    rows = np.concatenate([made.examples.rows_of(numbers), strangers])
    p = item_distributions(made, rows, level)
    target = np.eye(4)[expected[rows]]
    terms = level_terms(made, level, progress=0.29)
    assert set(terms) - {"ranking", "memory"} == {"e_step", "clusters"}
    assert float(terms["clusters"]) == pytest.approx(plain.cross_entropy(target.tolist(), p.tolist()), abs=1e-3)
    after = level_terms(made, level, progress=0.3)
    assert set(after) - {"ranking", "memory"} == {"e_step", "m_step", "commitment", "balance"}


def test_a_level_clusters_the_items_of_a_log_as_training_has_left_them(log):
    made = plan_uri(log)
    made.index.reader.document_vectors(made.index.vectors)  # computed before
    with torch.no_grad():
        made.index.model.items.ids.weight.mul_(3)
    np.testing.assert_array_equal(items(made).vectors(), made.index.model.items.all().detach().numpy())


# Items as the decoder reads them.


def test_the_decoder_reads_items_of_texts_as_queries_and_items_of_a_log_by_their_vectors(planned):
    rows = np.array([5, 0, 33])
    texts, of_log = planned(), planned("log")
    np.testing.assert_array_equal(items(texts).batch(rows), texts.index.vectors[rows])
    model = of_log.index.model
    with torch.no_grad():
        read, vectors = items(of_log).batch(rows), model.items.all()[rows]
        expected = model.item_norm(vectors + model.item_encoder(vectors))
    torch.testing.assert_close(read.vector, expected)
    torch.testing.assert_close(read.states.values, expected[:, None])
    assert read.states.mask.all() and (len(items(texts)), len(items(of_log))) == (40, 48)


# The training of a level.


def level_terms(made: Plan, level: int, progress: float = 0.9) -> dict[str, torch.Tensor]:
    phase = made.phases[f"level {level}"]
    with torch.no_grad():
        return phase.objective(phase.first(), progress)


def item_distributions(made: Plan, rows: np.ndarray, level: int) -> torch.Tensor:
    with torch.no_grad():
        logits = made.index.model(items(made).batch(rows), torch.from_numpy(made.codes[rows]))
    return logits[level - 1].softmax(dim=1)


def plain_terms(made: Plan, level: int, values: dict[str, Any]) -> dict[str, float]:
    """The terms of the level's first batch by plain loops, each times its weight in `values`."""
    numbers, strangers = made.phases[f"level {level}"].first()
    rows, model = made.examples.rows_of(numbers), made.index.model
    code = torch.from_numpy(made.codes[rows])
    with torch.no_grad():
        query = model(made.index.reader.read(made.examples, numbers), code)
        item = model(items(made).batch(rows), code)
    p_query, p_item = (some[level - 1].softmax(dim=1).tolist() for some in (query, item))
    terms = {"e_step": plain.cross_entropy(p_item, p_query), "m_step": plain.cross_entropy(p_query, p_item)}
    written = code[:, : level - 1].tolist()
    if level > 1 and values["memory_weight"]:
        remembered = sum(plain.memory([x.tolist() for x in some[: level - 1]], written) for some in (query, item))
        terms["memory"] = values["memory_weight"] * remembered
    own = np.concatenate([rows, strangers]) if values["random_items"] else rows
    p = item_distributions(made, own, level)
    if values["commitment_weight"]:
        terms["commitment"] = values["commitment_weight"] * plain.commitment(p.tolist())
    if values["balance_weight"]:
        groups = prefix_groups(made.codes[:, : level - 1 if values["evenness"] == "prefix" else 0])
        balanced = set(groups[strangers if values["random_items"] else rows].tolist())
        parts = [p[groups[own] == group].tolist() for group in balanced]
        each = sum(len(part) * plain.balance(part, values["adaptive"]) for part in parts)
        terms["balance"] = values["balance_weight"] * each / sum(map(len, parts))
    return terms


PARTS = {"adaptive": True, "random_items": True, "evenness": "prefix"}


@pytest.mark.parametrize(
    "values",
    [
        {}, {"commitment_weight": 0.0}, {"commitment_weight": 2.0}, {"balance_weight": 0.0}, {"balance_weight": 2.0},
        {"memory_weight": 0.0}, {"memory_weight": 2.0}, {"adaptive": False}, {"random_items": False},
        {"evenness": "level"},
    ],
    ids=str,
)  # fmt: skip
def test_a_levels_terms_are_the_equations_times_their_weights(planned, values):
    made = planned(**values)
    for level in (1, 2):
        terms = level_terms(made, level)
        expected = plain_terms(made, level, BASE | PARTS | values)
        assert set(terms) == set(expected)
        for name, value in expected.items():
            assert float(terms[name]) == pytest.approx(value, abs=2e-3), (level, name)


def test_the_m_step_is_absent_for_the_head_start_and_no_longer(small_corpus, monkeypatch):
    """Of the ten steps of a level, three by head_start=0.3, in a training that runs."""
    seen: list[bool] = []
    plain_objective = Training.level_objective

    def watched(*arguments):
        terms = plain_objective(*arguments)
        seen.append("m_step" in terms)
        return terms

    monkeypatch.setattr(Training, "level_objective", watched)
    values = {"batch_size": 512, "level_epochs": 1, "level_steps": 10, "epochs": 0, "ranker_epochs": 0}
    index = make("uri", BASE | values).fit(small_corpus)
    assert seen == ([False] * 3 + [True] * 7) * 2
    assert [record["phase"] for record in index.log.records] == ["level 1", "level 2", "codes"]


def test_a_level_has_its_own_epochs_steps_and_learning_rate(planned):
    made = planned()
    batches = len(made.examples)
    for level in (1, 2):
        phase = made.phases[f"level {level}"]
        assert phase.epochs == 2 and phase.learning_rate == 2e-3
        assert phase.steps == -(-23 // (2 * batches)) * batches == len(list(phase.batches(0)))
    assert planned(level_steps=0).phases["level 1"].steps == batches


@pytest.mark.parametrize("evenness", ["prefix", "level"])
def test_a_levels_batches_are_pairs_and_random_items_by_the_seed(planned, evenness):
    made = planned(evenness=evenness)
    phase, epoch = made.phases["level 2"], 1
    rounds = phase.steps // len(made.examples)
    order = [some for turn in range(epoch * rounds, (epoch + 1) * rounds) for some in made.examples.order(7, turn)]
    groups = prefix_groups(made.codes[:, :1])
    members, rng = Members(groups if evenness == "prefix" else np.zeros_like(groups)), np.random.default_rng([7, 1, 1])
    found = list(phase.batches(epoch))
    assert len(found) == len(order)
    for (numbers, strangers), expected in zip(found, order, strict=True):
        assert (numbers == expected).all()
        assert (strangers == members.draw(len(expected), 16, rng)).all()


def test_a_level_is_watched_with_its_own_number_of_tokens(planned, log):
    made = planned("log")
    prefix = made.codes[:, :1]
    tokens = Indexer(made.index, items(made)).distributions(prefix).argmax(axis=1)
    figures = made.phases["level 2"].more["after_epoch"](0)
    entropy = average_partition_entropy(np.column_stack([prefix, tokens]), log.sequences().each())
    assert figures == level_figures(prefix_groups(prefix), tokens, 4) | {"ape": pytest.approx(entropy, abs=1e-4)}


@pytest.mark.parametrize("on", ["log", "texts"])
def test_the_first_level_records_a_query_and_its_items(planned, log, small_corpus, on):
    """Figure 5: the distributions are those of the decoder, of the query as it is searched, after no tokens."""
    made, corpus = planned(on), log if on == "log" else small_corpus
    probe = made.phases["level 1"].more["after_epoch"](0).get("probe")
    queries, judged = corpus.split("train")
    held = {q: [*query.history, *(d for d, grade in judged[q].items() if grade > 0)] for q, query in queries.items()}
    if max(map(len, held.values())) < 2:
        assert probe is None
        return
    (query,), shown = probe["query"], probe["items"]
    best = min(abs(len(dict.fromkeys(own)) - 5) for own in held.values() if len(dict.fromkeys(own)) > 1)
    assert abs(len(dict.fromkeys(held[query])) - 5) == best and list(shown) == list(dict.fromkeys(held[query]))[-5:]
    rows, index = [corpus.rows()[doc_id] for doc_id in shown], made.index
    expected = Indexer(index, items(made)).distributions(np.zeros((len(corpus), 0), np.int64))[rows]
    np.testing.assert_allclose(list(shown.values()), expected, atol=1e-4)
    asked = [queries[query]]
    batch = index.reader.batch(index.reader.inputs(asked, index.reader.query_vectors(asked)))
    with torch.no_grad():
        _, first = index.model.eval().start(batch)
    np.testing.assert_allclose(probe["query"][query], first[0, 0].softmax(0).numpy(), atol=1e-3)
    assert "probe" not in made.phases["level 2"].more["after_epoch"](0)


# The ranker of texts.


def test_the_ranker_has_its_own_schedule(planned):
    phase = planned().phases["training the ranker"]
    assert (phase.epochs, phase.steps) == (6, len(planned().examples))
    assert phase.learning_rate == 3e-3 and phase.more["weight_decay"] == 0.03
    assert phase.module is planned().index.ranker.maps
    assert "training the ranker" not in planned(ranker_epochs=0).phases


def plain_negatives(made: Plan, rows: np.ndarray, count: int, epoch: int) -> np.ndarray:
    others = np.random.default_rng([7, epoch, 2]).integers(1, len(made.corpus), (len(rows), count))
    return (rows[:, None] + others) % len(made.corpus)


@pytest.mark.parametrize("counts", [(5, 2), (3, 0), (0, 2)])
def test_negatives_are_random_items_and_items_of_sibling_leaves(planned, counts):
    made = planned(random_negatives=counts[0], hard_negatives=counts[1])
    batches = list(with_negatives(made.index, made.examples, 1))
    assert all((one == two).all() for (one, _), two in zip(batches, made.examples.order(7, 1), strict=True))
    numbers, others = batches[0]
    rows = made.examples.rows_of(numbers)
    assert others.shape == (len(rows), sum(counts))
    assert (others[:, : counts[0]] == plain_negatives(made, rows, counts[0], 1)).all()
    for row, hard in zip(rows.tolist(), others[:, counts[0] :].tolist(), strict=True):
        assert set(hard) <= plain.siblings(made.codes.tolist(), row)


@pytest.mark.parametrize("softmax", ["shared", "full"])
def test_a_batch_that_shares_its_negatives_has_none_per_pair(planned, softmax):
    made = planned(ranker_softmax=softmax)
    assert all(others.shape[1] == 0 for _, others in made.phases["training the ranker"].batches(0))


@pytest.mark.parametrize("softmax", ["sampled", "shared", "full"])
def test_the_rankers_softmax_is_over_the_negatives_asked_for(planned, softmax):
    """Of inner products over the temperature; with maps that are not the identity."""
    made = planned(ranker_softmax=softmax)
    phase, maps = made.phases["training the ranker"], made.index.ranker.maps
    torch.manual_seed(1)
    for side in (maps.query_side, maps.item_side):
        torch.nn.init.normal_(side.weight, std=0.1)
    numbers, others = phase.first()
    rows, vectors = made.examples.rows_of(numbers), torch.from_numpy(np.asarray(made.index.vectors))
    others[:9, :1] = rows[:9, None]  # negatives that are the right item do not count
    torch.manual_seed(3)
    with torch.no_grad():
        found = phase.objective((numbers, others), 0.5)
        torch.manual_seed(3)
        drawn = {"shared": torch.randint(40, (11,)), "full": torch.arange(40)}.get(softmax)
        wrong = torch.from_numpy(others) if drawn is None else drawn.expand(len(rows), -1)
        right = torch.from_numpy(rows)[:, None]
        query = maps.queries(torch.from_numpy(made.examples.inputs[numbers])) / 0.1
        compared = maps.items(vectors[torch.cat([right, wrong], dim=1)])
    expected = plain.ranking(query.tolist(), compared.tolist(), (wrong == right).tolist())
    assert set(found) == {"ranking"} and float(found["ranking"]) == pytest.approx(expected, rel=1e-3)


def test_the_rankers_queries_have_the_noise_of_the_settings(planned, monkeypatch):
    made, given = planned(noise=0.3), []
    monkeypatch.setattr(ranker_module, "with_noise", lambda batch, noise: given.append(noise) or batch)
    phase = made.phases["training the ranker"]
    phase.objective(phase.first(), 0.5)
    assert given == [0.3]


def test_where_the_decoder_reads_tokens_the_ranker_reads_vectors_in_batches_of_the_same_size(planned, small_corpus):
    @dataclass
    class Tokens:
        inputs: list[list[int]]
        rows: np.ndarray

    index, pairs = planned().index, planned().index.training_pairs(small_corpus)
    found = TextRanker(64).examples(index, small_corpus, Tokens([[1]], planned().examples.rows))
    assert found.batch_size == 48 and len(found.rows) == len(pairs)
    np.testing.assert_allclose(found.inputs, index.texts.encode([pair.query for pair in pairs]), atol=1e-6)


# The ranker of histories.


@pytest.mark.parametrize("values", [{"warmup_epochs": 0}, {"ranker_weight": 0.0}, {"codes": "random"}], ids=str)
def test_a_warm_up_can_be_left_out(planned, values):
    assert "warm-up" in planned("log").phases and "warm-up" not in planned("log", **values).phases
    assert "warm-up" not in planned().phases  # texts have none


def test_the_warm_up_trains_the_ranker_alone(planned):
    made = planned("log")
    phase = made.phases["warm-up"]
    assert next(iter(made.phases)) == "warm-up"
    assert (phase.epochs, phase.steps) == (4, len(made.examples))
    assert phase.learning_rate == 4e-3 and phase.more["decay"] is False and phase.more["share"] is None
    assert all((one == two).all() for one, two in zip(phase.batches(1), made.examples.order(7, 1), strict=True))
    terms = phase.objective(phase.first(), 0.5)
    assert set(terms) == {"ranking"}
    made.index.model.zero_grad()
    terms["ranking"].backward()
    moved = {name.split(".")[0] for name, p in made.index.model.named_parameters() if p.grad is not None}
    made.index.model.zero_grad()
    assert moved == {"encoder"}


@pytest.mark.parametrize(("softmax", "levels", "final"), [("sampled", 11, None), ("shared", 11, 11), ("full", 0, 0)])
def test_histories_are_ranked_against_the_negatives_asked_for(planned, monkeypatch, softmax, levels, final):
    """Random items that a batch shares, or all (0); in the final phase, if sampled, negatives of each pair."""
    made, asked = planned("log", ranker_softmax=softmax), []
    monkeypatch.setattr(ranker_module, "ranking_term", lambda *given: asked.append(given[3]) or torch.zeros(()))
    for phase in list(made.phases.values())[:3]:
        phase.objective(phase.first(), 0.5)
    assert asked == [levels] * 3
    asked.clear()
    phase = made.phases["training the decoder"]
    phase.objective(phase.first(), 0.5)
    assert asked == ([] if final is None else [final])


@pytest.mark.parametrize("values", [{}, {"memory_weight": 0.0}, {"ranker_weight": 0.0}], ids=str)
def test_the_final_phase_of_a_log_has_codes_items_and_ranking(planned, values):
    made = planned("log", **values)
    phase, weights = made.phases["training the decoder"], BASE | values
    assert (phase.epochs, phase.steps, phase.learning_rate) == (3, len(made.examples), 4e-3)
    numbers, others = phase.first()
    rows, model = made.examples.rows_of(numbers), made.index.model
    code = torch.from_numpy(made.codes[rows])
    with torch.no_grad():
        found = phase.objective((numbers, others), 0.5)
        read = made.index.reader.read(made.examples, numbers)
        compared = model.items(torch.from_numpy(np.column_stack([rows, others])) + 1)
        written, of_items = (model(some, code) for some in (read, items(made).batch(rows)))
    expected = {"generation": plain.memory([some.tolist() for some in written], code.tolist())}
    if weights["memory_weight"]:
        expected["items"] = 0.3 * plain.memory([some.tolist() for some in of_items], code.tolist())
    if weights["ranker_weight"]:
        same = (others == rows[:, None]).tolist()
        expected["ranking"] = 0.4 * plain.ranking(read.vector.tolist(), compared.tolist(), same)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-3), name


@pytest.mark.parametrize("weight", [0.4, 0.0])
def test_a_levels_ranking_has_its_weight(planned, monkeypatch, weight):
    made = planned("log", ranker_weight=weight)
    monkeypatch.setattr(ranker_module, "ranking_term", lambda *given: torch.tensor(10.0))
    terms = level_terms(made, 1)
    assert float(terms.get("ranking", 0)) == pytest.approx(10 * weight) and ("ranking" in terms) == bool(weight)


# A training that runs, and search.

SHORT = {"level_epochs": 1, "level_steps": 1, "warmup_epochs": 1, "epochs": 1, "ranker_epochs": 1, "batch_size": 256}


@pytest.fixture(scope="module")
def trained(small_corpus):
    return make("uri", BASE | SHORT).fit(small_corpus)


def test_hits_are_ranked_by_the_trained_ranker_and_so_are_those_of_a_saved_index(trained, small_corpus, tmp_path):
    maps = trained.ranker.maps
    assert maps.query_side.weight.any() and maps.item_side.weight.any()
    text = "where is the violin with music3"
    with torch.no_grad():
        query = maps.queries(torch.from_numpy(trained.texts.encode([text])))
        scores = (maps.items(torch.from_numpy(np.asarray(trained.vectors))) @ query.T)[:, 0]
    best = scores.argsort(descending=True)
    trained.save(tmp_path / "index")
    for index in (trained, load(tmp_path / "index")):
        hits = index.search(text, k=40)
        assert hits.doc_ids == [small_corpus.documents[row].doc_id for row in best]
        assert hits.scores == pytest.approx(scores[best].tolist(), abs=1e-5)


def test_items_of_a_log_are_compared_as_the_last_phase_leaves_them(log):
    index = make("uri", BASE | SHORT).fit(log)
    phases = [record["phase"] for record in index.log.records]
    assert phases == ["warm-up", "level 1", "level 2", "codes", "training the decoder"]
    expected = index.model.items.all().detach().numpy()
    np.testing.assert_array_equal(index.reader.document_vectors(index.vectors), expected)


# Presets.


def test_quick_has_fewer_epochs(small_corpus):
    made = plan("uri", small_corpus, {"encoder": "scratch", "width": 4, "length": 1}, "quick")
    assert {name: phase.epochs for name, phase in made.phases.items()} == {
        "level 1": 1, "training the decoder": 4, "training the ranker": 2,
    }  # fmt: skip


def test_random_learns_no_levels(small_corpus):
    made = plan("uri", small_corpus, {"encoder": "scratch", "width": 4, "length": 2}, "random")
    assert list(made.phases) == ["training the decoder", "training the ranker"]
    assert (made.codes == random_codes(40, 2, 4, seed=0)).all()


@pytest.mark.parametrize(("preset", "adaptive"), [(None, True), ("no-adaptive", False)])
def test_no_adaptive_weighs_all_tokens_alike(small_corpus, monkeypatch, preset, adaptive):
    values = {"encoder": "scratch", "width": 4, "length": 1}
    made, asked = plan("uri", small_corpus, values, preset), []
    monkeypatch.setattr(training_module, "balance", lambda p, how: asked.append(how) or torch.zeros(()))
    level_terms(made, 1)
    assert set(asked) == {adaptive}


def test_no_hard_negatives_has_ten_random_ones(small_corpus, monkeypatch):
    made = plan("uri", small_corpus, {"encoder": "scratch", "width": 4, "length": 2}, "no-hard-negatives")
    monkeypatch.setattr(ranker_module, "Siblings", None)  # not to be asked
    numbers, others = next(with_negatives(made.index, made.examples, 0))
    expected = np.random.default_rng([0, 0, 2]).integers(1, 40, others.shape)
    assert others.shape[1] == 10
    assert (others == (made.examples.rows_of(numbers)[:, None] + expected) % 40).all()


def test_paper_is_the_recipe_of_the_paper(log, monkeypatch):
    """K=32, L=2, D=96; sets; balance over the level; neither warm-up nor head start nor a beginning of a level."""
    made = plan("uri", log, {"encoder": "scratch"}, "paper")
    settings = made.index.settings
    recipe = read_recipe("uri-paper").settings
    assert recipe and {name: getattr(settings, name) for name in recipe} == recipe
    assert made.index.reader.kind == "set"
    assert [head.out_features for head in made.index.model.heads] == [32, 32] and made.codes.shape[1] == 2
    assert made.index.model.writer.begin.shape == (96,) and made.index.model.items.dim == 96
    assert list(made.phases) == ["level 1", "level 2", "training the decoder", "training the ranker"]
    assert {"m_step", "commitment"} <= set(level_terms(made, 2, progress=0.0))
    asked: list[int] = []
    monkeypatch.setattr(training_module, "balance", lambda p, how: asked.append(len(p)) or torch.zeros(()))
    level_terms(made, 2)
    assert asked == [2 * len(made.phases["level 2"].first()[1])]  # one group: the level
    assert made.phases["training the ranker"].first()[1].shape[1] == 10


# A ranker with an encoder of its own, and codes of the explicit EM.


def test_an_own_ranker_is_trained_after_the_decoder_and_is_no_part_of_it(planned):
    made = planned("log", ranker_encoder="own", ranker_epochs=4, ranker_learning_rate=7e-3, warmup_epochs=2)
    shared = planned("log", ranker_encoder="shared", warmup_epochs=2)
    assert "training the ranker" not in shared.phases and "warm-up" in shared.phases
    assert list(made.phases)[-2:] == ["training the decoder", "training the ranker"] and "warm-up" not in made.phases
    phase, encoder = made.phases["training the ranker"], made.index.reader.ranking_encoder
    assert phase.module is encoder and encoder is not made.index.model.encoder
    assert (phase.epochs, phase.learning_rate) == (4, 7e-3)
    assert phase.more["weight_decay"]("items.ids.weight") == made.index.settings.item_decay
    assert phase.more["weight_decay"]("begin.weight") == made.index.settings.weight_decay
    assert set(phase.objective(phase.first(), 0.0)) == {"ranking"}
    for name in ("level 1", "training the decoder"):
        other = made.phases[name]
        assert "ranking" not in other.objective(other.first(), 0.0)
        of_shared = shared.phases[name]
        assert "ranking" in of_shared.objective(of_shared.first(), 0.0)


def test_an_own_rankers_loss_is_of_its_own_vectors(planned):
    made = planned("log", ranker_encoder="own")
    phase, encoder = made.phases["training the ranker"], made.index.reader.ranking_encoder.eval()
    numbers, others = phase.first()
    rows, read = made.examples.rows_of(numbers), made.examples.read(encoder, numbers)
    compared = encoder.items(torch.from_numpy(np.concatenate([rows[:, None], others], axis=1)) + 1)
    scores = (compared @ read.vector[:, :, None]).squeeze(2)
    scores[:, 1:] = scores[:, 1:].masked_fill(torch.from_numpy(others == rows[:, None]), -torch.inf)
    expected = torch.nn.functional.cross_entropy(scores, torch.zeros(len(rows), dtype=torch.int64))
    torch.testing.assert_close(phase.objective((numbers, others), 0.0)["ranking"], expected)


def test_an_own_ranker_ranks_and_lives_with_the_index(log, tmp_path):
    index = plan_uri(log, ranker_encoder="own", ranking="union", items="both").index
    reader = index.reader
    asked = list(log.queries.values())[:3]
    with torch.no_grad():
        numbers = torch.from_numpy(reader.inputs(asked, np.zeros(0)))
        vectors = reader.ranking_encoder.eval()(numbers).vector
        items = reader.ranking_encoder.items.all()
    np.testing.assert_allclose(reader.query_vectors(asked), vectors, atol=1e-5)
    np.testing.assert_allclose(reader.document_vectors(index.vectors), items, atol=1e-5)
    hits = index.search_batch(asked, k=5)
    for one, vector in zip(hits, vectors, strict=True):
        for hit in one:
            assert hit.score == pytest.approx(float(vector @ items[index.row_of()[hit.doc_id]]), abs=1e-4)
    index.add([Document("new", "A tea of kind 9.")])
    assert len(reader.ranking_encoder.items.all()) == 49
    index.save(tmp_path / "index")
    again = load(tmp_path / "index")
    assert again.reader.ranking_encoder is not None
    found, expected = (one.search_batch(asked, k=5) for one in (again, index))
    assert [one.doc_ids for one in found] == [one.doc_ids for one in expected]
    again.delete(["new"])
    again.compact()
    assert len(again.reader.ranking_encoder.items.all()) == 48


def test_em_makes_the_codes_of_the_queries_and_their_items(planned, log):
    made = planned("log", codes="em", seed=3)
    positives = positives_of(log, True)
    maker = PartitionEM(made.codes.shape[1], made.index.settings.width, 3)
    np.testing.assert_array_equal(made.codes, maker.fit(relations_of(positives, len(log))))
    assert not any(name.startswith("level") for name in made.phases)
    by_preset = plan("uri", log, {"encoder": "scratch", "width": 4, "length": 2}, "em")
    assert by_preset.index.settings.codes == "em"
    (record,) = [one for one in made.index.log.records if one["phase"] == "codes"]
    assert record["ape"] < record["ape_random"]


def test_the_log_has_the_numbers_of_theorem_1(planned, log):
    made = planned("log")
    (record,) = [one for one in made.index.log.records if one["phase"] == "codes"]
    positives = positives_of(log, True)
    density = sum(len(set(some.tolist())) for some in positives) / (len(positives) * len(log))
    k = made.index.settings.width
    assert (record["queries"], record["items"], record["tokens"]) == (len(positives), len(log), k)
    assert record["density"] == pytest.approx(density, abs=1e-6)
    assert record["queries_needed"] == pytest.approx(recovery_queries(len(log), k, density), rel=1e-3)
    share = recovered(relations_of(positives, len(log)), made.codes[:, 0], k)
    assert record["recovered"] == pytest.approx(share, abs=1e-3)


def test_the_seed_is_that_of_the_whole_fit(small_corpus, monkeypatch):
    asked: list[int] = []
    seeded = method_module.seeded
    monkeypatch.setattr(method_module, "seeded", lambda seed: asked.append(seed) or seeded(seed))
    plan_uri(small_corpus)
    assert asked == [7]
