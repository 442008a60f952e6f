"""ASI and ASI++: every setting and preset decides the quantity that it names.

Most tests read the record of one small fit in which each setting has a value of its own.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_bert import save_small_bert
from small_t5 import save_small_t5
from training_spies import Spies, check_encoder, check_search_settings, check_training_texts, spy_batches

import callslip
from callslip import recipes
from callslip.decoders.t5 import T5CodeWriter
from callslip.identifiers import random_codes
from callslip.methods import make
from callslip.methods.asi import ASISettings, IndexedWriter, Training
from callslip.methods.asi import method as asi_method
from callslip.methods.asi import training as asi_training
from callslip.methods.asi.indexers import NetworkIndexer, ProductIndexer, ResidualIndexer
from callslip.runtime.device import seeded
from callslip.settings import to_dict
from callslip.training.checkpoints import Checkpoints

pytestmark = pytest.mark.usefixtures("whole_precision")

JOINT, WRITING = "learning codes and how to write them", "learning to write the codes"
CODES = {"width": 6, "length": 3}
DECODER = {"decoder_width": 24, "decoder_layers": 1, "decoder_heads": 3, "dropout": 0.05}
TINY = {"encoder": "scratch:dim=32", "epochs": 1, "writing_epochs": 0, "batch_size": 12} | CODES | DECODER
ODD = TINY | {
    "epochs": 2, "writing_epochs": 3, "seed": 3, "training_texts": ("document", "title"), "noise": 0.7,
    "learning_rate": 3e-3, "indexer_learning_rate": 2e-2, "head_learning_rate": 7e-4, "weight_decay": 0.07,
    "margin": 2.5, "criteria_weight": 0.4, "temperature": 0.6, "beta": 0.002, "neighbours": 2,
}  # fmt: skip
"""A value for every setting that is neither its default nor 0 or 1."""
STEPS = 12
"""Steps per epoch: 40 documents in batches of 12, thrice, as there are 120 training texts."""
STRETCH = 5


def watched(corpus, values, name="asi++", preset=None, checkpoints=None):
    """Fit an index and record its training."""
    spies = Spies()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asi_training, "NEIGHBOURHOOD", STRETCH)
        spies.spy_steps(patch)
        for equation in (
            "criteria_weight", "discrete_contrastive", "distribution_density", "bottleneck", "information_bottleneck",
            "generation_loss", "prefix_groups", "use_of_codes", "with_noise",
        ):  # fmt: skip
            spies.spy(patch, asi_training, equation)
        for method in ("pairs", "represented", "code_terms", "criteria", "generation"):
            spies.spy(patch, Training, method)
        for method in ("sample", "forward", "codes"):
            spies.spy(patch, IndexedWriter, method)
        spies.spy(patch, NetworkIndexer, "begin")
        spies.spy(patch, asi_method, "seeded")
        spies.spy(patch, asi_method, "random_codes")
        spy_batches(patch, spies)
        index = make(name, values, preset=preset).fit(corpus, checkpoints)
    return SimpleNamespace(index=index, spies=spies, steps=spies.steps, calls=spies.calls)


@pytest.fixture(scope="module")
def odd(small_corpus):
    """The fit with a value of its own for every setting."""
    return watched(small_corpus, ODD)


def joint_steps(run):
    return run.spies.steps_of(JOINT)


# The criteria of ASI++.


def test_the_odd_settings_differ_from_the_defaults():
    defaults = to_dict(ASISettings())
    assert all(defaults[name] != value for name, value in ODD.items() if name not in ("encoder",))


def test_the_weight_of_the_criteria_grows_to_its_setting_over_the_first_epoch(odd):
    weights = [call.result for call in odd.calls["criteria_weight"]]
    expected = [0.01 + (0.4 - 0.01) * min(1.0, step / STEPS) for step in range(2 * STEPS)]
    assert weights == pytest.approx(expected)
    for step, weight, matched, kept in zip(
        joint_steps(odd), expected, odd.calls["bottleneck"], odd.calls["information_bottleneck"], strict=True
    ):
        assert step.terms["bottleneck"] == pytest.approx(weight * float(matched.result.detach()), rel=1e-5)
        assert step.terms["information"] == pytest.approx(weight * float(kept.result.detach()), rel=1e-5)


def test_the_density_term_is_that_of_documents_and_queries_times_the_weight(odd):
    densities = [float(call.result.detach()) for call in odd.calls["distribution_density"]]
    both = np.add(densities[0::2], densities[1::2])
    for step, density, weight in zip(joint_steps(odd), both, odd.calls["criteria_weight"], strict=True):
        assert step.terms["density"] == pytest.approx(weight.result * density, rel=1e-5)
    for pair, criteria in zip(
        zip(odd.calls["distribution_density"][0::2], odd.calls["distribution_density"][1::2]), odd.calls["criteria"]
    ):
        coded = criteria.arguments[1]
        assert pair[0].arguments[0] is coded.p_doc and pair[1].arguments[0] is coded.p_query


def test_the_other_criteria_read_the_means_of_queries_and_documents(odd):
    for name, parts in (
        ("bottleneck", ("mean_query", "mean_doc")),
        ("information_bottleneck", ("mean_doc", "log_variance")),
    ):
        for call, criteria in zip(odd.calls[name], odd.calls["criteria"], strict=True):
            assert all(given is getattr(criteria.arguments[1], part) for given, part in zip(call.arguments, parts))


def test_the_information_criterion_samples_representations_with_their_variance(odd):
    far, expected = [], []
    for call in odd.calls["sample"]:
        sampled, mean, log_variance = call.result
        far.append(float((sampled - mean).norm(dim=1).mean().detach()))
        expected.append(float(log_variance.exp().sum(dim=1).sqrt().mean().detach()))
    assert np.mean(far) == pytest.approx(np.mean(expected), rel=0.1)


def test_margin_temperature_and_beta_reach_their_equations(odd):
    assert set(odd.spies.arguments("discrete_contrastive", 2)) == {2.5}
    assert set(odd.spies.arguments("bottleneck", 2)) == {0.05}  # the paper's, a constant
    assert set(odd.spies.arguments("bottleneck", 3)) == {0.6}
    assert set(odd.spies.arguments("information_bottleneck", 2)) == {0.002}


def test_the_contrastive_term_is_the_mean_of_the_stretches_of_a_batch(odd):
    """40 documents in batches of 12 have stretches of 5, 5 and 2, and of 4 in the last one."""
    calls = iter(odd.calls["discrete_contrastive"])
    for step in joint_steps(odd):
        size = 4 if step.number % 4 == 3 else 12
        parts = [next(calls) for _ in range(math.ceil(size / STRETCH))]
        assert [len(part.arguments[0]) for part in parts] == ([5, 5, 2] if size == 12 else [4])
        expected = sum(len(part.arguments[0]) / size * float(part.result.detach()) for part in parts)
        assert step.terms["contrastive"] == pytest.approx(expected, rel=1e-5)
    assert next(calls, None) is None


TERMS = {"contrastive", "generation", "density", "bottleneck", "information"}
EQUATIONS = {
    "density": "distribution_density", "bottleneck": "bottleneck", "information": "information_bottleneck",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "preset", "left_out"),
    [
        ("asi", None, set(EQUATIONS)),
        ("asi++", None, set()),
        ("asi++", "no-density", {"density"}),
        ("asi++", "no-bottleneck", {"bottleneck"}),
        ("asi++", "no-information", {"information"}),
        ("asi++", "density-as-printed", set()),
    ],
)
def test_a_criterion_that_is_left_out_has_no_term_and_is_not_computed(small_corpus, name, preset, left_out):
    run = watched(small_corpus, TINY, name, preset)
    assert {frozenset(step.terms) for step in run.steps} == {frozenset(TERMS - left_out)}
    assert {criterion for criterion, equation in EQUATIONS.items() if not run.calls[equation]} == left_out
    printed = set(run.spies.arguments("distribution_density", 1))
    assert printed == (set() if "density" in left_out else {preset == "density-as-printed"})
    # Representations are sampled for the information criterion alone.
    assert bool(run.calls["sample"]) is ("information" not in left_out)
    for call in run.calls["represented"] if "information" in left_out else []:
        assert torch.equal(call.result[0], call.result[1])


def test_criteria_names_the_criteria_to_use(small_corpus):
    run = watched(small_corpus, TINY | {"criteria": ("information",)})
    assert set(run.steps[0].terms) == {"contrastive", "generation", "information"}
    run = watched(small_corpus, TINY | {"criteria": ()})
    assert set(run.steps[0].terms) == {"contrastive", "generation"} and not run.calls["sample"]
    assert not run.calls["criteria"]


# Batches.


@pytest.mark.parametrize("kept", [False, True])
def test_neighbours_share_as_many_tokens_as_the_codes_had_when_the_epoch_began(small_corpus, odd, tmp_path, kept):
    """Groups are made once per epoch, from the first tokens of the codes that the epoch before left; so they are where
    checkpoints keep them."""
    odd = watched(small_corpus, ODD, checkpoints=Checkpoints(tmp_path)) if kept else odd
    prefixes = odd.spies.arguments("prefix_groups", 0)
    assert [prefix.shape for prefix in prefixes] == [(40, 2)] * 2
    left = odd.spies.arguments("use_of_codes", 0)[0]
    assert np.array_equal(prefixes[1], left[:, :2])
    assert not np.array_equal(prefixes[0], prefixes[1])
    near = [call for call in odd.calls["drawn"] if len(call.arguments) > 5]
    for call, groups in zip(near, odd.calls["prefix_groups"], strict=True):
        assert call.arguments[5] is groups.result


def test_the_contrastive_term_reads_neighbours_and_the_other_terms_random_documents(odd):
    texts = odd.calls["of_documents"][0].result
    random = [batch for call in odd.calls["drawn"] if call.arguments[2] == 4 for batch in call.result]
    near = [batch for call in odd.calls["drawn"] if call.arguments[2] == 3 for batch in call.result]
    assert len(random) == len(near) == 2 * STEPS
    for batches, name in ((near, "code_terms"), (random, "criteria")):
        for (rows, asked), call in zip(batches, odd.calls[name], strict=True):
            pairs = call.arguments[1].pairs
            assert np.array_equal(pairs.document.numpy(), texts.documents[rows])
            assert np.array_equal(pairs.query.numpy(), texts.queries[asked])
    joint = [call for call in odd.calls["generation"] if call.phase == JOINT]
    for (_, asked), call in zip(random, joint, strict=True):
        assert np.array_equal(call.arguments[1].numpy(), texts.queries[asked])


def test_without_neighbours_one_random_batch_serves_all_terms(small_corpus):
    run = watched(small_corpus, TINY | {"neighbours": 0})
    assert not run.calls["prefix_groups"]
    assert len(run.calls["drawn"]) == 1 and len(run.calls["drawn"][0].arguments) == 5
    for near, random in zip(run.calls["code_terms"], run.calls["criteria"], strict=True):
        assert near.arguments[1] is random.arguments[1]
    sizes = {len(call.arguments[0]) for call in run.calls["discrete_contrastive"]}
    assert sizes == {12, 4}  # whole batches, no stretches


def test_batches_have_the_size_and_the_seed_of_the_settings(odd):
    asked = [(call.phase, *call.arguments[1:5]) for call in odd.calls["drawn"]]
    joint = [(JOINT, 12, seed, epoch, 3) for epoch in range(2) for seed in (4, 3)]
    assert asked == joint + [(WRITING, 12, 5, epoch, 3) for epoch in range(3)]
    assert odd.spies.phases == [(JOINT, 2, STEPS), (WRITING, 3, STEPS)]
    assert len(odd.steps) == 5 * STEPS


def test_documents_that_answer_a_query_are_spared_unless_the_setting_says_otherwise(small_corpus):
    """Two documents answer the same query: neither is a negative of it."""
    first, second, other = small_corpus.documents[:3]
    asked = {"both": callslip.Query("both", "what do both say"), "one": callslip.Query("one", "what does one say")}
    judged = {"train": {"both": {first.doc_id: 1, second.doc_id: 1}, "one": {other.doc_id: 1}}}
    corpus = callslip.Corpus(small_corpus.documents[:3], asked, judged, name="few")
    values = TINY | {"training_texts": (), "neighbours": 0}
    spared = watched(corpus, values)
    for name, position in (("discrete_contrastive", 3), ("bottleneck", 4)):
        for call in spared.calls[name]:
            assert int(call.arguments[position].sum()) == 3 + 2
    strict = watched(corpus, values | {"spare_answers": False})
    assert set(strict.spies.arguments("discrete_contrastive", 3)) == {None}
    assert set(strict.spies.arguments("bottleneck", 4)) == {None}


def test_the_decoder_reads_queries_with_noise_the_indexer_with_half_of_it_and_documents_have_none(odd):
    read = [call.arguments[1] for call in odd.calls["represented"]]
    queries = [call.arguments[1].pairs for call in odd.calls["code_terms"]]
    criteria = [call.arguments[1].pairs for call in odd.calls["criteria"]]
    in_order = [pairs for both in zip(queries, criteria, strict=True) for pairs in both]
    assert len(read) == 2 * len(in_order)
    noise = [(seen - pairs.query).norm(dim=1).mean() for seen, pairs in zip(read[0::2], in_order, strict=True)]
    assert float(np.mean(noise)) == pytest.approx(0.35, rel=0.05)
    assert all(torch.equal(seen, pairs.document) for seen, pairs in zip(read[1::2], in_order, strict=True))
    for phase in (JOINT, WRITING):
        written = [call for call in odd.calls["forward"] if call.phase == phase]
        asked = [call for call in odd.calls["generation"] if call.phase == phase]
        noise = [
            (seen.arguments[1] - given.arguments[1]).norm(dim=1).mean()
            for seen, given in zip(written, asked, strict=True)
        ]
        assert float(np.mean(noise)) == pytest.approx(0.7, rel=0.05)


# The schedule.


def test_decoder_indexer_and_head_have_learning_rates_of_their_own(odd):
    peaks = {"writer": 3e-3, "indexer": 2e-2, "head": 7e-4}
    for step in joint_steps(odd):
        assert {name.split(".")[0] for name in step.rates} == set(peaks)
        for name, rate in step.rates.items():
            assert rate == pytest.approx(peaks[name.split(".")[0]] * step.share())


def test_the_writing_phase_trains_the_decoder_alone_on_frozen_codes(small_corpus, odd):
    joint_only = watched(small_corpus, ODD | {"writing_epochs": 0})
    writing = odd.spies.steps_of(WRITING)
    assert len(writing) == 3 * STEPS and not joint_only.spies.steps_of(WRITING)
    for step in writing:
        assert set(step.terms) == {"generation"}
        assert all(name.startswith("writer.") for name in step.rates)
        assert set(step.rates.values()) == {3e-3 * step.share()}
    after, before = odd.index.model.state_dict(), joint_only.index.model.state_dict()
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"writer"}
    codes = odd.index.identifiers.in_row_order()[1]
    assert np.array_equal(codes, odd.spies.arguments("use_of_codes", 0)[-1])
    batches = [batch for call in odd.calls["drawn"] if call.phase == WRITING for batch in call.result]
    asked = [call for call in odd.calls["generation"] if call.phase == WRITING]
    for (rows, _), call in zip(batches, asked, strict=True):
        assert np.array_equal(call.arguments[2].numpy(), codes[rows])


def test_the_joint_phase_writes_the_codes_that_the_indexer_gives_at_that_step(odd):
    texts = odd.calls["of_documents"][0].result
    random = [batch for call in odd.calls["drawn"] if call.arguments[2] == 4 for batch in call.result]
    joint = [call for call in odd.calls["generation"] if call.phase == JOINT]
    for (rows, _), call in zip(random, joint, strict=True):
        (given,) = [one for one in odd.calls["codes"] if one.result is call.arguments[2]]
        assert np.array_equal(given.arguments[1].numpy(), texts.documents[rows])


def test_epochs_of_both_phases_are_those_of_the_settings(small_corpus):
    for epochs, writing in ((1, 0), (0, 2), (2, 1)):
        run = watched(
            small_corpus, TINY | {"epochs": epochs, "writing_epochs": writing, "training_texts": ("document",)}
        )
        phases = [record["phase"] for record in run.index.log.records]
        assert phases == [JOINT] * epochs + [WRITING] * writing


def test_weight_decay_reaches_the_optimiser(odd):
    assert {decay for step in odd.steps for decay in step.decays.values()} == {0.07}


def test_the_seed_decides_weights_first_codes_and_batches(small_corpus, odd):
    assert odd.spies.arguments("seeded", 0) == [3]
    assert odd.spies.arguments("begin", 2) == [3]
    untrained = make("asi++", ODD | {"epochs": 0, "writing_epochs": 0}).fit(small_corpus).model
    with seeded(3):
        expected = odd.index.writer(odd.index.reader.shape)
    for name, value in expected.named_parameters():
        if not name.startswith("indexer."):  # starts with clusters
            assert torch.equal(value, untrained.get_parameter(name)), name


# Codes.


def test_width_and_length_are_those_of_the_codes(odd):
    assert odd.index.identifiers.length == 3
    assert odd.index.model.widths == (6, 6, 6)
    assert odd.index.indexer(torch.zeros(2, 32)).shape == (2, 3, 6)
    assert odd.index.identifiers.codes.max() < 6


@pytest.mark.parametrize(("preset", "kind"), [(None, NetworkIndexer), ("pq", ProductIndexer), ("rq", ResidualIndexer)])
def test_the_indexer_is_the_one_of_the_setting(small_corpus, preset, kind):
    run = watched(small_corpus, TINY, preset=preset)
    indexer = run.index.indexer
    assert type(indexer) is kind
    assert all(("quantisation" in step.terms) is (preset is not None) for step in run.steps)
    if kind is NetworkIndexer:
        assert indexer.inside.out_features == 3 * 256 and indexer.dropout.p == 0.2
    else:
        assert (indexer.epsilon, indexer.iterations) == (0.003, 100)
    by_setting = make("asi++", TINY | {"indexer": preset or "mlp", "epochs": 0}).fit(small_corpus)
    assert type(by_setting.indexer) is kind


def test_random_codes_are_trained_on_for_the_epochs_of_both_phases(small_corpus):
    run = watched(small_corpus, ODD, preset="random")
    assert np.array_equal(run.index.identifiers.in_row_order()[1], random_codes(40, 3, 6, seed=3))
    assert run.spies.phases == [(WRITING, 5, STEPS)]
    assert not run.calls["begin"]
    with pytest.raises(callslip.errors.Unsupported):
        run.index.assign(small_corpus.documents, run.index.vectors)


def test_learned_codes_are_given_to_new_documents_too(small_corpus, odd):
    again = odd.index.assign(small_corpus.documents, odd.index.vectors)
    assert np.array_equal(again, odd.index.identifiers.in_row_order()[1])


# Search.


def test_free_decoding_writes_any_code_until_a_wider_beam_is_needed(small_corpus, monkeypatch):
    index = make("asi++", TINY | {"decoding": "free", "beam": 7}).fit(small_corpus)
    spies = Spies()
    spies.spy(monkeypatch, asi_method, "free_search")
    vectors = index.vectors[:1]
    index.write(vectors, 7)
    assert spies.arguments("free_search", 3) == [7]
    index.write(vectors, 8)  # wider than the setting: constrained
    assert len(spies.calls["free_search"]) == 1
    index.adjust({"decoding": "beam"}).write(vectors, 7)
    assert len(spies.calls["free_search"]) == 1


def test_search_settings_decide_the_hits(small_corpus, monkeypatch):
    index = make("asi++", TINY | {"epochs": 0}).fit(small_corpus)
    check_search_settings(index, "which apple has the mark fruit0", monkeypatch)


# Training texts, encoder and decoder.


def test_the_decoder_has_the_shape_of_the_settings(odd):
    writer = odd.index.model.writer
    assert len(writer.begin) == 24 and len(writer.layers) == 1
    layer = writer.layers[0]
    assert layer.itself.heads == 3 and layer.dropout.p == 0.05


def test_training_texts_are_those_of_the_settings(small_corpus, monkeypatch):
    check_training_texts(small_corpus, "asi++", TINY | {"epochs": 0}, monkeypatch)


def test_the_encoder_and_its_length_are_those_of_the_settings(small_corpus):
    check_encoder(small_corpus, "asi++", TINY | {"epochs": 0})


def test_a_tuned_encoder_trains_its_layers_at_its_own_rate(small_corpus):
    few = callslip.Corpus(small_corpus.documents[:6], name="few")
    values = TINY | {
        "encoder": "minilm",
        "backend": "torch",
        "training_texts": ("document", "title"),
        "seq2seq_length": 5,
    }
    values |= {"encoder_learning_rate": 3e-5, "writing_epochs": 1}
    counts = {}
    for trained in ("top", "all"):
        run = watched(few, values | {"train_encoder": trained, "epochs": int(trained == "top")})
        model = run.index.model
        counts[trained] = sum(p.requires_grad for p in model.encoder.parameters())
        inputs = run.calls["of_documents"][0].arguments[0]
        assert max(map(len, inputs)) == 5
        for step in run.spies.steps_of(JOINT):
            tuned = {name: rate for name, rate in step.rates.items() if name.startswith("encoder.")}
            assert len(tuned) == counts["top"]
            assert all(rate == pytest.approx(3e-5 * step.share()) for rate in tuned.values())
            assert step.rates["writer.head.more.0.weight"] == pytest.approx(2e-4 * step.share())
        for step in run.spies.steps_of(WRITING):
            assert all(name.startswith("writer.writer.") for name in step.rates)
    assert 0 < counts["top"] < counts["all"] == len(list(model.encoder.parameters()))


# Presets.


def test_the_quick_preset_is_a_short_training(small_corpus):
    values = {name: value for name, value in TINY.items() if name not in ("epochs", "writing_epochs")}
    run = watched(small_corpus, values | {"batch_size": 40, "training_texts": ("document",)}, preset="quick")
    phases = [record["phase"] for record in run.index.log.records]
    assert phases == [JOINT] * 2 + [WRITING] * 4


@pytest.mark.parametrize("name", ["asi", "asi++"])
def test_the_paper_preset_is_the_recipe(name):
    settings = to_dict(make(name, preset="paper").settings)
    recipe = recipes.read_recipe("asi-paper").settings
    assert recipe and all(settings[key] == value for key, value in recipe.items())
    assert settings["criteria_weight"] == (0.0 if name == "asi" else 0.25)
    # What the paper prints: Section 5.1 of ASI, and Eq. 9 of ASI++.
    assert (settings["length"], settings["width"], settings["beta"]) == (4, 256, 0.01)
    assert (settings["neighbours"], settings["decoding"], settings["beam"]) == (0, "free", 10)
    assert (settings["decoder_layers"], settings["encoder_memory"], settings["train_encoder"]) == (6, "states", "all")
    assert (settings["indexer_start"], settings["ranking"], settings["noise"]) == ("random", "code", 0.0)
    # Table 4 of ASI++.
    assert (settings["batch_size"], settings["learning_rate"], settings["margin"]) == (8192, 1e-4, 3.0)
    assert settings["warmup"] == pytest.approx(10_000 / 300_000, abs=1e-4) and settings["seq2seq_length"] == 64


# Readers: a decoder that reads states, and T5.


@pytest.fixture(scope="module")
def checkpoints(small_corpus, tmp_path_factory):
    words = sorted({word.strip(".,") for d in small_corpus for word in d.content.split()})
    return {
        "encoder": str(save_small_bert(tmp_path_factory.mktemp("bert"), words, num_hidden_layers=6)),
        "seq2seq": str(save_small_t5(tmp_path_factory.mktemp("t5"), words)),
    }


def tuned(checkpoints, **more):
    values = TINY | {
        "encoder": checkpoints["encoder"],
        "backend": "torch",
        "train_encoder": "all",
        "training_texts": ("document",),
    }
    return values | {"decoder_layers": 6, "decoder_heads": 2, "decoder_width": 16, "seq2seq_length": 12} | more


@pytest.mark.parametrize("memory", ["vector", "states"])
def test_the_decoder_reads_the_vector_or_the_states_of_the_encoder_that_is_trained_with_it(
    small_corpus, checkpoints, memory
):
    few = callslip.Corpus(small_corpus.documents[:8], name="few")
    run = watched(few, tuned(checkpoints, encoder_memory=memory))
    index, (call, *_) = run.index, run.calls["generation"]
    assert index.indexed.writer.reads == memory and len(index.indexed.writer.layers) == 6
    inputs = index.reader.document_inputs(few.documents, index.vectors)
    batch = index.reader.batch(inputs)
    with torch.no_grad():
        states = index.model.encoder.states(batch.ids, batch.mask)
        found = index.model.memory(batch)
        keys, mask = index.indexed.writer.memory(index.indexed.memory(index.read(batch)))
    if memory == "states":
        assert call.arguments[1].states is not None
        assert torch.equal(found.values, states) and torch.equal(found.mask, batch.mask.bool())
        assert keys.shape[:2] == batch.ids.shape and torch.equal(mask, batch.mask.bool())
    else:
        assert found.shape == (8, 16) and keys.shape[1] == 2 and mask is None
    # Eq. 2 reaches the encoder: its lowest layer moves, too.
    assert any("encoder.layer.0." in name and rate > 0 for name, rate in run.steps[0].rates.items())


def test_codes_are_made_from_the_pooled_vector_also_where_the_decoder_reads_states(small_corpus, checkpoints):
    few = callslip.Corpus(small_corpus.documents[:8], name="few")
    index = make("asi++", tuned(checkpoints, encoder_memory="states", writing_epochs=1)).fit(few)
    batch = index.reader.batch(index.reader.document_inputs(few.documents, index.vectors))
    with torch.no_grad():
        states = index.model.encoder.states(batch.ids, batch.mask)
        mean = torch.stack([s[m.bool()].mean(dim=0) for s, m in zip(states, batch.mask, strict=True)])
        vector = torch.nn.functional.normalize(mean, dim=-1)
        expected = index.indexer.codes(index.indexed.head.mean(vector))
    assert np.array_equal(index.identifiers.in_row_order()[1], expected)


@pytest.mark.parametrize("start", ["clusters", "random"])
def test_the_indexer_starts_with_clusters_or_with_its_random_weights(small_corpus, checkpoints, start):
    few = callslip.Corpus(small_corpus.documents[:8], name="few")
    for values in (
        TINY,
        tuned(checkpoints),
        TINY | {"seq2seq": checkpoints["seq2seq"], "training_texts": ("document",)},
    ):
        run = watched(few, values | {"indexer_start": start, "epochs": 0})
        assert len(run.calls["begin"]) == (start == "clusters")
        if start == "clusters":
            dense = run.index.reader.dense(run.index.reader.document_inputs(few.documents, run.index.vectors))
            np.testing.assert_allclose(run.calls["begin"][0].arguments[1], dense, atol=1e-5)


def test_t5_is_encoder_and_decoder_and_its_encoder_is_frozen_while_the_decoder_learns_alone(small_corpus, checkpoints):
    few = callslip.Corpus(small_corpus.documents[:8], name="few")
    values = TINY | {
        "seq2seq": checkpoints["seq2seq"],
        "training_texts": ("document",),
        "writing_epochs": 1,
        "learning_rate": 1e-2,
    }
    run = watched(few, values)
    index = run.index
    assert isinstance(index.indexed.writer, T5CodeWriter)
    joint, writing = (set(run.spies.steps_of(phase)[0].rates) for phase in (JOINT, WRITING))
    for part in ("writer.t5.encoder.block", "writer.t5.decoder.block", "head.", "indexer."):
        assert any(part in name for name in joint), part
    assert all(
        "decoder.block" in name or "decoder.final" in name or name.startswith(("writer.heads", "writer.emb"))
        for name in writing
    )
    inputs = index.reader.document_inputs(few.documents, index.vectors)
    assert np.array_equal(index.codes(inputs), index.identifiers.in_row_order()[1])
    batch = index.reader.batch(inputs)
    with torch.no_grad():
        read = index.indexed.writer.t5.encoder(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
        mean = torch.stack([s[m.bool()].mean(dim=0) for s, m in zip(read, batch.mask, strict=True)])
        np.testing.assert_allclose(index.read(batch).vector, torch.nn.functional.normalize(mean, dim=-1), atol=1e-5)


def test_the_log_and_inspect_count_documents_and_queries_per_code(small_corpus, odd, tmp_path):
    from typer.testing import CliRunner

    from callslip.cli import app, inspect  # noqa: F401  (it registers the command)

    record = [one for one in odd.index.log.records if one["phase"] == JOINT][-1]
    _, bucket = np.unique(odd.index.identifiers.in_row_order()[1], axis=0, return_inverse=True)
    sizes = np.bincount(bucket)
    assert record["documents_per_code"] == pytest.approx(sizes.mean(), abs=1e-2)
    assert record["most_documents_per_code"] == sizes.max()
    assert record["queries_per_code"] == pytest.approx(3 * sizes.mean(), abs=1e-2)  # a title, a query and the text each
    assert record["most_queries_per_code"] == 3 * sizes.max()
    odd.index.save(tmp_path / "index")
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "index")])
    assert "training queries per code" in " ".join(shown.output.split())
