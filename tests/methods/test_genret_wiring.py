"""GenRet: every setting and preset decides the quantity that it names.

Most tests read the record of one small fit in which each setting has a value of its own.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_t5 import save_small_t5
from training_spies import Spies, check_encoder, check_search_settings, check_training_texts, spy_batches

import callslip
from callslip import recipes
from callslip.decoders.t5 import T5CodeWriter
from callslip.errors import TrainingFailed
from callslip.identifiers import random_codes
from callslip.identifiers.levels import prefix_groups
from callslip.identifiers.quality import diversity
from callslip.index import readers
from callslip.methods import make
from callslip.methods.genret import CodebookWriter, GenRetSettings, Tokenizer, Training
from callslip.methods.genret import method as genret_method
from callslip.methods.genret import training as genret_training
from callslip.runtime.device import seeded
from callslip.settings import to_dict
from callslip.training.batches import TextExamples

pytestmark = pytest.mark.usefixtures("whole_precision")

WARM = ["level 1: warm-up", "level 2: warm-up"]
LEVELS = ["level 1", "level 2"]
FINAL = "training the decoder"
DECODER = {"decoder_width": 24, "decoder_layers": 1, "decoder_heads": 3, "dropout": 0.05}
TINY = DECODER | {
    "encoder": "scratch:dim=32", "epochs": 0, "level_epochs": 1, "level_steps": 1, "batch_size": 12, "width": 5,
    "length": 1, "stop_collapsed": False, "training_texts": (),
}  # fmt: skip
ODD = TINY | {
    "epochs": 2, "warmup_epochs": 2, "level_epochs": 2, "level_steps": 30, "length": 2, "seed": 3, "noise": 0.7,
    "training_texts": ["document", "title"],
    "level_learning_rate": 4e-3, "learning_rate": 3e-3, "weight_decay": 0.07,
    "reconstruction_weight": 0.8, "commitment_weight": 0.6, "retrieval_weight": 1.3,
}  # fmt: skip
"""A value for every number that is neither its default nor 0 or 1."""
STEPS = 16
"""Steps per epoch of a level: 40 documents in batches of 12, four times, so that two epochs have at least 30 steps."""


def watched(corpus, values, preset=None):
    """Fit an index and record its training."""
    spies = Spies()
    with pytest.MonkeyPatch.context() as patch:
        spies.spy_steps(patch, weights=True)
        for name in (
            "commitment", "initial_codebook", "reconstruction", "retrieval", "straight_through", "sinkhorn",
            "level_figures", "collapsed", "random_codes", "with_noise",
        ):  # fmt: skip
            spies.spy(patch, genret_training, name)
        for name in ("warmup_terms", "level_terms", "learn_level"):
            spies.spy(patch, Training, name)
        spies.spy(patch, Tokenizer, "logits")
        spies.spy(patch, CodebookWriter, "hidden")
        spies.spy(patch, readers, "with_noise")
        spies.spy(patch, TextExamples, "order")
        spies.spy(patch, genret_method, "seeded")
        spy_batches(patch, spies)
        index = make("genret", values, preset=preset).fit(corpus)
    return SimpleNamespace(index=index, spies=spies, steps=spies.steps, calls=spies.calls)


@pytest.fixture(scope="module")
def odd(small_corpus):
    """The fit with a value of its own for every setting."""
    return watched(small_corpus, ODD)


def of_phase(run, name, phase):
    return [call for call in run.calls[name] if call.phase == phase]


def states_of(run, phase, codes):
    """States of the documents after the tokens so far, by the model as a phase left it."""
    model = run.index.writer(run.index.reader.shape).eval()
    model.load_state_dict(run.spies.last[phase])
    with torch.no_grad():
        return model.hidden(torch.from_numpy(np.asarray(run.index.vectors)), torch.from_numpy(codes))[:, -1]


def tokens_by_level(run):
    """The tokens that each level was left with, [N] each."""
    return [call.result for call in run.calls["learn_level"]]


def test_the_odd_settings_differ_from_the_defaults():
    defaults = to_dict(GenRetSettings())
    assert all(defaults[name] != value for name, value in ODD.items())


# Phases.


def test_each_level_is_warmed_up_and_trained_before_the_decoder(odd):
    levels = [(name, 2, STEPS) for pair in zip(WARM, LEVELS, strict=True) for name in pair]
    assert odd.spies.phases == [*levels, (FINAL, 2, 10)]
    assert [len(odd.spies.steps_of(name)) for name, *_ in odd.spies.phases] == [2 * STEPS] * 4 + [20]


def test_level_steps_is_a_minimum(small_corpus):
    """Without it, each document comes as often as it has texts."""
    for least, texts, steps in ((0, (), 4), (9, (), 12), (9, ("title", "lead"), 12)):
        run = watched(small_corpus, TINY | {"level_steps": least, "training_texts": texts})
        assert run.spies.phases[1] == ("level 1", 1, steps)


def test_level_phases_have_their_own_constant_learning_rate(odd):
    for step in odd.steps:
        level = step.phase != FINAL
        expected = 4e-3 * step.share(decay=False) if level else 3e-3 * step.share()
        assert all(rate == pytest.approx(expected) for rate in step.rates.values())
    last = odd.spies.steps_of("level 1")[-1]
    assert set(last.rates.values()) == {4e-3}  # after the warm-up of the optimiser, it does not fall


def test_weight_decay_reaches_the_optimiser(odd):
    assert {decay for step in odd.steps for decay in step.decays.values()} == {0.07}


@pytest.mark.parametrize(
    ("changed", "phases"),
    [
        ({"warmup_epochs": 0}, LEVELS),
        ({"reconstruction_weight": 0.0, "commitment_weight": 0.0}, [WARM[0], LEVELS[0], WARM[1], LEVELS[1]]),
        ({"warmup_retrieval": False, "commitment_weight": 0.0}, [WARM[0], LEVELS[0], WARM[1], LEVELS[1]]),
        ({"warmup_retrieval": False, "reconstruction_weight": 0.0}, [LEVELS[0], WARM[1], LEVELS[1]]),
        ({"retrieval_weight": 0.0, "reconstruction_weight": 0.0}, [LEVELS[0], WARM[1], LEVELS[1]]),
        ({"warmup_retrieval": False, "reconstruction_weight": 0.0, "commitment_weight": 0.0}, LEVELS),
    ],
)
def test_a_warm_up_happens_if_one_of_its_terms_is_left(small_corpus, changed, phases):
    run = watched(small_corpus, TINY | {"length": 2} | changed)
    assert [phase for phase, *_ in run.spies.phases if phase != FINAL] == phases


# Codebooks and tokens.


def test_a_codebook_starts_as_the_centroids_of_the_states_after_the_warm_up(odd):
    codes = np.zeros((40, 0), np.int64)
    for level, call in enumerate(odd.calls["initial_codebook"]):
        states, groups, k, seed = call.arguments
        np.testing.assert_allclose(states, states_of(odd, WARM[level], codes), atol=1e-5)
        assert np.array_equal(groups, prefix_groups(codes)) and (k, seed) == (5, 3)
        start = odd.spies.first[LEVELS[level]][f"heads.{level}.weight"]
        assert np.array_equal(start.numpy(), call.result)
        codes = np.concatenate([codes, tokens_by_level(odd)[level][:, None]], axis=1)
    assert len(odd.calls["initial_codebook"]) == 2


def test_without_clusters_a_codebook_starts_as_it_was(small_corpus):
    run = watched(small_corpus, TINY | {"warmup_epochs": 0, "seed": 3}, preset="no-clusters")
    assert not run.calls["initial_codebook"]
    with seeded(3):
        untouched = run.index.writer(run.index.reader.shape)
    assert torch.equal(run.spies.first["level 1"]["heads.0.weight"], untouched.heads[0].weight)


def test_a_codebook_is_frozen_after_its_level_until_the_decoder_is_trained(odd):
    first, last = odd.spies.first, odd.spies.last
    learned = last["level 1"]["heads.0.weight"]
    assert not torch.equal(first["level 1"]["heads.0.weight"], learned)
    for phase in (WARM[1], LEVELS[1]):
        assert torch.equal(last[phase]["heads.0.weight"], learned)
        assert all("heads.0.weight" not in step.rates for step in odd.spies.steps_of(phase))
    for level in range(2):
        assert all(f"heads.{level}.weight" in step.rates for step in odd.spies.steps_of(FINAL))
        name = f"heads.{level}.weight"
        assert not torch.equal(first[FINAL][name], last[FINAL][name])


def test_the_tokens_of_a_level_are_what_the_document_writes_when_the_level_ends(odd):
    codes = np.zeros((40, 0), np.int64)
    for level, tokens in enumerate(tokens_by_level(odd)):
        assert np.array_equal(odd.calls["learn_level"][level].arguments[1], codes)
        scores = states_of(odd, LEVELS[level], codes) @ odd.spies.last[LEVELS[level]][f"heads.{level}.weight"].t()
        assert np.array_equal(scores.argmax(dim=1).numpy(), tokens)
        codes = np.concatenate([codes, tokens[:, None]], axis=1)
    assert np.array_equal(odd.index.identifiers.in_row_order()[1], codes)


def test_later_phases_keep_the_tokens_of_earlier_levels(odd):
    tokens = tokens_by_level(odd)[0]
    for phase, name in ((WARM[1], "warmup_terms"), (LEVELS[1], "level_terms")):
        batches = [batch for call in of_phase(odd, "drawn", phase) for batch in call.result]
        for (rows, _), call in zip(batches, of_phase(odd, name, phase), strict=True):
            prefix, same_prefix = call.arguments[3:5]
            assert np.array_equal(prefix.numpy(), tokens[rows][:, None])
            assert np.array_equal(same_prefix.numpy(), tokens[rows][:, None] == tokens[rows])


# Terms.


def test_each_term_is_its_equation_times_its_weight(odd):
    weights = {"reconstruction": 0.8, "commitment": 0.6, "retrieval": 1.3}
    for phase in (*WARM, *LEVELS):
        names = set(weights) - ({"commitment"} if phase == WARM[0] else set())
        for name in names:
            for step, call in zip(odd.spies.steps_of(phase), of_phase(odd, name, phase), strict=True):
                assert set(step.terms) == names
                assert step.terms[name] == pytest.approx(weights[name] * float(call.result.detach()), rel=1e-5)
    assert {frozenset(step.terms) for step in odd.spies.steps_of(FINAL)} == {frozenset({"generation"})}


def test_the_warm_up_reconstructs_from_the_state_and_a_level_from_the_codebook(odd):
    for phase in WARM:
        assert all(call.arguments[0] is call.arguments[1] for call in of_phase(odd, "reconstruction", phase))
        assert not of_phase(odd, "sinkhorn", phase)
    for phase in LEVELS:
        rows = of_phase(odd, "straight_through", phase)
        for call, row in zip(of_phase(odd, "reconstruction", phase), rows, strict=True):
            assert call.arguments[0] is row.result


def test_retrieval_is_of_the_query_and_commitment_of_the_document(odd):
    states_behind = {id(call.result): call.arguments[1] for call in odd.calls["logits"]}
    for phase in (*WARM, *LEVELS):
        given = of_phase(odd, "warmup_terms" if phase in WARM else "level_terms", phase)
        for call, terms in zip(of_phase(odd, "retrieval", phase), given, strict=True):
            (document, query), (h_query, h_doc, logits, code) = terms.arguments[1:3], call.arguments
            assert torch.equal(h_query, query[:, -1]) and torch.equal(h_doc, document[:, -1])
            assert torch.equal(states_behind[id(logits)], query[:, : code.shape[1]])
        for call, terms in zip(of_phase(odd, "commitment", phase), given):
            logits, code = call.arguments
            assert torch.equal(states_behind[id(logits)], terms.arguments[1][:, : code.shape[1]])


@pytest.mark.parametrize("name", ["reconstruction", "commitment", "retrieval"])
def test_a_term_of_weight_0_is_left_out(small_corpus, name):
    run = watched(small_corpus, TINY | {"length": 2, f"{name}_weight": 0.0})
    assert run.steps and not run.calls[name]
    assert all(name not in step.terms for step in run.steps)


def test_the_warm_up_learns_from_queries_unless_the_setting_says_otherwise(small_corpus):
    for used in (True, False):
        run = watched(small_corpus, TINY | {"warmup_retrieval": used})
        assert {"retrieval" in step.terms for step in run.spies.steps_of(WARM[0])} == {used}
        assert all("retrieval" in step.terms for step in run.spies.steps_of("level 1"))


def test_sinkhorn_shares_out_the_tokens_of_a_batch(odd):
    assert set(odd.spies.arguments("sinkhorn", 1)) == {1.0}  # the paper's, constants
    assert set(odd.spies.arguments("sinkhorn", 2)) == {100}
    for phase in LEVELS:
        shared = of_phase(odd, "sinkhorn", phase)
        for name, position in (("commitment", 1), ("retrieval", 3)):
            for call, shares in zip(of_phase(odd, name, phase), shared, strict=True):
                assert torch.equal(call.arguments[position][:, -1], shares.result.argmax(dim=1))


def test_without_sinkhorn_a_document_has_its_likeliest_token(small_corpus):
    for values, preset in ((TINY, "no-sinkhorn"), (TINY | {"reassign": False}, None)):
        run = watched(small_corpus, values, preset)
        assert not run.calls["sinkhorn"]
        for call in of_phase(run, "commitment", "level 1"):
            logits, code = call.arguments
            assert torch.equal(code[:, -1], logits[-1].argmax(dim=1))


@pytest.mark.parametrize("softmax", ["scores", "reassigned"])
def test_the_softmax_of_the_commitment_is_of_the_scores_or_of_their_shares(small_corpus, softmax):
    run = watched(small_corpus, TINY | {"softmax": softmax})
    for call, shares in zip(of_phase(run, "commitment", "level 1"), of_phase(run, "sinkhorn", "level 1"), strict=True):
        (logits,), own = call.arguments[0], shares.arguments[0]
        expected = own if softmax == "scores" else shares.result.to(own.dtype)
        assert torch.allclose(logits, expected, atol=1e-6)
        assert logits.requires_grad
    plain = watched(small_corpus, TINY | {"softmax": softmax, "reassign": False})
    assert not plain.calls["sinkhorn"]


def test_queries_have_their_own_scores_in_the_softmax_whatever_the_setting(small_corpus):
    run = watched(small_corpus, TINY | {"softmax": "reassigned"})
    for call in of_phase(run, "retrieval", "level 1"):
        (logits,) = call.arguments[2]
        assert not torch.allclose(logits.sum(dim=1), torch.ones(len(logits)), atol=1e-3)


# Batches.


def test_batches_have_the_size_the_seed_and_the_prefixes_of_the_documents(odd):
    groups = {phase: prefix_groups(np.zeros((40, 0))) for phase in (WARM[0], LEVELS[0])}
    groups |= {phase: prefix_groups(tokens_by_level(odd)[0][:, None]) for phase in (WARM[1], LEVELS[1])}
    expected = [(phase, 12, 3, epoch, 4) for phase in groups for epoch in range(2)]
    assert sorted((call.phase, *call.arguments[1:5]) for call in odd.calls["drawn"]) == sorted(expected)
    for call in odd.calls["drawn"]:
        assert np.array_equal(call.arguments[5], groups[call.phase])
    assert [call.arguments[1:] for call in odd.calls["order"]] == [(3, 0), (3, 1)]


def test_noise_reaches_queries_and_not_documents(odd):
    texts = odd.calls["of_documents"][0].result
    for phase in (*WARM, *LEVELS):
        batches = [batch for call in of_phase(odd, "drawn", phase) for batch in call.result]
        read = [call.arguments[1] for call in of_phase(odd, "hidden", phase) if len(call.arguments[1]) <= 12]
        norms = []
        for (rows, asked), document, query in zip(batches, read[0::2], read[1::2], strict=True):
            assert np.array_equal(document.numpy(), texts.documents[rows])
            norms.append(np.linalg.norm(query.numpy() - texts.queries[asked], axis=1).mean())
        assert np.mean(norms) == pytest.approx(0.7, rel=0.05)


def test_the_decoder_is_trained_with_noise(odd):
    read = of_phase(odd, "hidden", FINAL)
    for call, noisy in zip(read, of_phase(odd, "with_noise", FINAL), strict=True):
        assert call.arguments[1] is noisy.result
    norms = [(call.result - call.arguments[0]).norm(dim=1).mean() for call in of_phase(odd, "with_noise", FINAL)]
    assert np.mean(norms) == pytest.approx(0.7, rel=0.05)


def test_the_seed_decides_weights_codebooks_and_batches(odd):
    assert odd.spies.arguments("seeded", 0) == [3]
    with seeded(3):
        untrained = odd.index.writer(odd.index.reader.shape)
    for name, value in untrained.named_parameters():
        assert torch.equal(value, odd.spies.first[WARM[0]][name]), name


# Codes.


def test_width_length_and_leaf_decide_the_codes(small_corpus, odd):
    assert odd.index.identifiers.length == 2 and odd.index.model.widths == (5, 5)
    for values, length in (
        ({"length": 3, "leaf": 20}, 3),
        ({"length": None, "leaf": 20}, 1),
        ({"length": None, "leaf": 4}, 2),
        ({"length": None, "leaf": 4, "width": 16}, 1),
    ):
        index = make("genret", TINY | {"codes": "random", "width": 4} | values).fit(small_corpus)
        assert index.model.widths == (values.get("width", 4),) * length
        assert index.identifiers.length == length


def test_random_codes_have_the_final_phase_only(small_corpus):
    run = watched(small_corpus, ODD, preset="random")
    assert run.spies.phases == [(FINAL, 2, 10)]
    assert np.array_equal(run.index.identifiers.in_row_order()[1], random_codes(40, 2, 5, seed=3))
    with pytest.raises(callslip.errors.Unsupported):
        run.index.assign(small_corpus.documents, run.index.vectors)


@pytest.mark.parametrize("width", [3, 8])
def test_one_more_level_holds_the_place_in_the_bucket(small_corpus, width):
    """With 3 places many documents have the last one; with 8 a new document gets the next place."""
    index = make("genret", TINY | {"collisions": "level", "width": width}).fit(small_corpus)
    assert index.model.widths == (width, width)
    codes = index.identifiers.in_row_order()[1]
    again = index.assign(small_corpus.documents, index.vectors)
    for token in range(width):
        places = codes[codes[:, 0] == token][:, 1].tolist()
        assert places == [min(place, width - 1) for place in range(len(places))]
        new = again[again[:, 0] == token][:, 1].tolist()
        assert new == [min(len(places) + number, width - 1) for number in range(len(new))]
    plain = make("genret", TINY | {"width": width}).fit(small_corpus)
    assert plain.identifiers.length == 1 and plain.model.widths == (width,)
    assert plain.assign(small_corpus.documents, plain.vectors).shape == (40, 1)


# Collapse.


@pytest.mark.parametrize(("epochs", "epoch"), [(1, 1), (4, 2)])
def test_a_collapsed_level_stops_the_training_unless_the_setting_says_otherwise(
    small_corpus, monkeypatch, epochs, epoch
):
    monkeypatch.setattr(Tokenizer, "tokens", lambda self, inputs, codes: np.zeros(len(inputs), np.int64))
    values = TINY | {"width": 10, "level_epochs": epochs}
    with pytest.raises(TrainingFailed, match=f"level 1, epoch {epoch}: the codes collapsed") as caught:
        make("genret", values | {"stop_collapsed": True}).fit(small_corpus)
    assert "than 10" in caught.value.remedy
    run = watched(small_corpus, values)
    assert len(of_phase(run, "level_terms", "level 1")) == 4 * epochs
    with pytest.raises(TrainingFailed):
        make("genret", {name: value for name, value in values.items() if name != "stop_collapsed"}).fit(small_corpus)
    for preset in ("no-reconstruction", "no-sinkhorn", "no-clusters"):
        own = {name: value for name, value in values.items() if name != "stop_collapsed"}
        make("genret", own, preset=preset).fit(small_corpus)


def test_figures_of_a_level_are_those_of_its_width(small_corpus, odd):
    assert set(odd.spies.arguments("level_figures", 2)) == {5}
    records = [record for record in odd.index.log.records if record["phase"] == "level 2"]
    assert records[-1]["diversity"] == pytest.approx(diversity(tokens_by_level(odd)[1], 5), abs=1e-4)
    run = watched(small_corpus, TINY | {"stop_collapsed": True, "level_epochs": 2})
    assert len(run.calls["collapsed"]) == 2  # the epoch before, and the last one
    assert set(run.spies.arguments("collapsed", 2)) == {5}


# Search.


def test_search_settings_decide_the_hits(small_corpus, monkeypatch):
    index = make("genret", TINY | {"codes": "random", "length": 2}).fit(small_corpus)
    check_search_settings(index, "which apple has the mark fruit0", monkeypatch)


# Training texts, encoder, decoder and T5.


def test_the_decoder_has_the_shape_of_the_settings(odd):
    model = odd.index.model
    assert len(model.begin) == 24 and len(model.layers) == 1
    assert model.layers[0].itself.heads == 3 and model.layers[0].dropout.p == 0.05


def test_training_texts_are_those_of_the_settings(small_corpus, monkeypatch):
    values = TINY | {"codes": "random"}
    check_training_texts(small_corpus, "genret", values, monkeypatch)


def test_the_encoder_and_its_length_are_those_of_the_settings(small_corpus):
    check_encoder(small_corpus, "genret", TINY | {"codes": "random"})


def test_a_tuned_encoder_trains_its_layers_at_its_own_rate(small_corpus):
    few = callslip.Corpus(small_corpus.documents[:6], name="few")
    values = TINY | {"encoder": "minilm", "backend": "torch", "training_texts": ("title",), "seq2seq_length": 5}
    values |= {"train_encoder": "top", "encoder_learning_rate": 3e-5, "epochs": 1, "width": 2}
    run = watched(few, values)
    assert max(map(len, run.calls["of_documents"][0].arguments[0])) == 5
    trained = sum(parameter.requires_grad for parameter in run.index.model.encoder.parameters())
    assert 0 < trained < len(list(run.index.model.encoder.parameters()))
    for step in run.steps:
        tuned = {name: rate for name, rate in step.rates.items() if name.startswith("encoder.")}
        assert len(tuned) == trained
        assert all(rate == pytest.approx(3e-5 * step.share(step.phase == FINAL)) for rate in tuned.values())


def test_t5_reads_the_texts_and_learns_the_codes(small_corpus, tmp_path):
    words = sorted({word.strip(".,").lower() for document in small_corpus for word in document.content.split()})
    folder = save_small_t5(tmp_path / "t5", words)
    run = watched(small_corpus, TINY | {"seq2seq": str(folder), "seq2seq_length": 6, "epochs": 1, "seed": 3})
    assert isinstance(run.index.model, T5CodeWriter) and run.index.model.t5.config.d_model == 16
    assert [phase for phase, *_ in run.spies.phases] == [WARM[0], LEVELS[0], FINAL]
    assert max(map(len, run.calls["of_documents"][0].arguments[0])) == 6
    start = run.spies.first["level 1"]["heads.0.weight"].numpy()
    assert np.array_equal(start, run.calls["initial_codebook"][0].result)


# Presets.


def test_the_quick_preset_is_a_short_training_of_a_small_decoder(small_corpus):
    named = ("epochs", "level_epochs", "decoder_width", "decoder_heads")
    run = watched(small_corpus, {name: value for name, value in TINY.items() if name not in named}, preset="quick")
    assert [phase[:2] for phase in run.spies.phases] == [(WARM[0], 1), (LEVELS[0], 2), (FINAL, 4)]
    assert len(run.index.model.begin) == 128


def test_the_preset_without_reconstruction_has_no_such_term(small_corpus):
    run = watched(small_corpus, TINY, preset="no-reconstruction")
    assert run.steps and not run.calls["reconstruction"]
    assert all("reconstruction" not in step.terms for step in run.steps)


def test_the_paper_preset_is_the_recipe():
    settings = to_dict(make("genret", preset="paper").settings)
    recipe = recipes.read_recipe("genret-paper").settings
    assert recipe and all(settings[key] == value for key, value in recipe.items())
    # What the paper prints: Section 4.4, and Section 3.3.
    assert (settings["width"], settings["length"], settings["collisions"]) == (512, 3, "level")
    assert (settings["level_learning_rate"], settings["warmup_retrieval"]) == (5e-4, False)
    assert (settings["learning_rate"], settings["schedule"], settings["warmup"]) == (5e-4, "constant", 0.0)
    assert (settings["batch_size"], settings["beam"], settings["level_steps"]) == (256, 100, 5000)
