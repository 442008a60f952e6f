"""ASI and ASI++: equations against plain loops, one joint training, free and constrained search, new documents."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import asi as plain
from torch.distributions import Independent, Normal, kl_divergence

import callslip
from callslip.corpus.documents import Document
from callslip.errors import BadSetting, UnknownName, Unsupported
from callslip.filters.filter import Filter
from callslip.methods import find, make
from callslip.methods.asi import (
    Training,
    bottleneck,
    code_distance,
    criteria_weight,
    discrete_contrastive,
    distribution_density,
    generation_loss,
    information_bottleneck,
)
from callslip.methods.asi import training as asi_training
from callslip.methods.asi.training import Coded, Pairs
from callslip.search.beam import beam_search
from callslip.search.trees import FreeTree
from callslip.training.batches import Texts
from callslip.training.checkpoints import Checkpoints

QUICK = {
    "encoder": "scratch", "epochs": 8, "writing_epochs": 0, "decoder_width": 32, "width": 8, "length": 3,
    "batch_size": 40, "learning_rate": 1e-2,
}  # fmt: skip


@pytest.fixture(scope="module")
def index(small_corpus):
    return make("asi++", QUICK).fit(small_corpus)


# The equations.


def probabilities(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(dim=-1)


def chance(seed, size):
    """Which documents answer which queries: half of all, a query's own or not."""
    return torch.rand(size, size, generator=torch.Generator().manual_seed(seed + 2)) < 0.5


def as_lists(known):
    return None if known is None else known.tolist()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(2, 6), st.integers(1, 3), st.integers(2, 5), st.floats(0, 5))
def test_distances_and_contrastive_loss_equal_plain_loops(seed, size, length, width, margin):
    p, r = probabilities(seed, size, length, width), probabilities(seed + 1, size, length, width)
    assert code_distance(p, r).tolist() == pytest.approx(
        [plain.distance(a, b) for a, b in zip(p.tolist(), r.tolist(), strict=True)], abs=1e-5
    )
    for known in (None, chance(seed, size)):
        expected = plain.discrete_contrastive(p.tolist(), r.tolist(), margin, as_lists(known))
        assert float(discrete_contrastive(p, r, margin, known)) == pytest.approx(expected, abs=1e-4)


def test_between_codes_the_distance_is_twice_the_levels_that_differ():
    codes = torch.tensor([[0, 1, 2], [0, 1, 2]]), torch.tensor([[0, 1, 2], [0, 2, 1]])
    p, r = (torch.nn.functional.one_hot(code, 4).float() for code in codes)
    assert code_distance(p, r).tolist() == [0, 4]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(2, 6), st.integers(1, 3), st.integers(2, 5), st.booleans())
def test_density_equals_plain_loops(seed, size, length, width, printed):
    p = probabilities(seed, size, length, width)
    assert float(distribution_density(p, printed)) == pytest.approx(plain.density(p.tolist(), printed), abs=1e-4)


def test_density_weighs_crowded_rows_more_unless_it_is_as_printed():
    """Two rows share a code, a third is alone: its gradient is the smaller one under one reading, and not the other."""
    scores = torch.tensor([[[3.0, 0, 0]], [[3.0, 0, 0]], [[0, 3.0, 0]]])
    for printed, lonely_less in ((False, True), (True, False)):
        given_ = scores.clone().requires_grad_()
        distribution_density(given_.softmax(dim=-1), printed).backward()
        crowded, lonely = given_.grad[0].abs().sum(), given_.grad[2].abs().sum()
        assert bool(lonely < crowded) is lonely_less


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(2, 6), st.floats(0, 1), st.floats(0.05, 2))
def test_bottleneck_equals_plain_loops(seed, size, gamma, temperature):
    generator = torch.Generator().manual_seed(seed)
    q, d = (torch.nn.functional.normalize(torch.randn(size, 4, generator=generator), dim=1) for _ in range(2))
    for known in (None, chance(seed, size)):
        expected = plain.bottleneck(q.tolist(), d.tolist(), gamma, temperature, as_lists(known))
        assert float(bottleneck(q, d, gamma, temperature, known)) == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_documents_that_answer_a_query_as_well_are_not_drawn_away_from_it():
    """Where all of a batch answer all of its queries, neither term has anything to say of them."""
    scores = torch.randn(4, 2, 3, requires_grad=True)
    e = torch.nn.functional.normalize(torch.randn(4, 5), dim=1).requires_grad_()
    every = torch.ones(4, 4, dtype=torch.bool)
    (discrete_contrastive(scores.softmax(dim=-1), scores.softmax(dim=-1).flip(0), 3.0, every)).backward()
    bottleneck(e, e.flip(0), 0.0, 0.05, every).backward()
    assert not scores.grad.any() and not e.grad.any()


def test_equal_texts_do_not_make_the_bottleneck_endless():
    e = torch.ones(3, 4, requires_grad=True)
    loss = bottleneck(e, e)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(e.grad).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(2, 6))
def test_information_equals_the_divergence_of_torch(seed, size):
    generator = torch.Generator().manual_seed(seed)
    mean, log_variance = (torch.randn(size, 5, generator=generator) for _ in range(2))
    own = Independent(Normal(mean, (0.5 * log_variance).exp()), 1)
    shared = Independent(Normal(mean.mean(dim=0), mean.std(dim=0, correction=0).clamp_min(1e-3)), 1)
    expected = 0.01 * kl_divergence(own, shared).mean()
    assert float(information_bottleneck(mean, log_variance)) == pytest.approx(float(expected), rel=1e-3, abs=1e-4)


def test_the_prior_of_the_information_term_has_no_gradient():
    mean = torch.randn(4, 3, requires_grad=True)
    log_variance = torch.zeros(4, 3)
    information_bottleneck(mean, log_variance, beta=1.0).backward()
    spread = mean.detach().var(dim=0, correction=0)
    assert torch.allclose(mean.grad, (mean.detach() - mean.detach().mean(dim=0)) / spread / 4, atol=1e-6)


def test_generation_equals_plain_loops():
    logits = [torch.randn(4, 5) for _ in range(3)]
    code = torch.randint(0, 5, (4, 3))
    expected = plain.generation([one.tolist() for one in logits], code.tolist())
    assert float(generation_loss(logits, code)) == pytest.approx(expected, abs=1e-4)


def test_the_weight_of_the_criteria_grows_over_the_first_epoch():
    assert [criteria_weight(done) for done in (0.0, 0.5, 1.0, 7.0)] == pytest.approx([0.01, 0.13, 0.25, 0.25])


@pytest.mark.parametrize("function", [code_distance, discrete_contrastive])
def test_shapes_are_checked(function):
    with pytest.raises(ValueError, match="probabilities"):
        function(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="probabilities"):
        function(torch.ones(2, 3, 4), torch.ones(2, 3, 5))


def test_the_shape_of_known_answers_is_checked():
    for told in (
        lambda known: discrete_contrastive(torch.ones(2, 3, 4), torch.ones(2, 3, 4), 3.0, known),
        lambda known: bottleneck(torch.ones(2, 3), torch.ones(2, 3), known=known),
    ):
        with pytest.raises(ValueError, match="known answers"):
            told(torch.ones(1, 2, dtype=torch.bool))


# The method.


def training_of(index, corpus) -> Training:
    """The training of a fitted index, to ask for its terms."""
    examples = index.examples(corpus)
    documents = index.reader.document_inputs(list(corpus), index.vectors)
    return Training(index, Texts.of_documents(documents, examples.inputs, examples.rows))


@pytest.mark.parametrize("indexer", ["mlp", "pq", "rq"])
def test_every_indexer_learns_codes_and_how_to_write_them(small_corpus, indexer):
    index = make("asi++", QUICK | {"indexer": indexer, "epochs": 12}).fit(small_corpus)
    last = index.log.records[-1]
    named = {"contrastive", "generation", "density", "bottleneck", "information", "unique_codes", "gini"}
    assert named | ({"quantisation"} if indexer != "mlp" else set()) <= set(last)
    assert last["generation"] < 0.5 * index.log.records[0]["generation"]
    assert index.identifiers.unique > 4
    found = callslip.evaluate(index, small_corpus, split="test", measures=["R@10"])
    assert found.measures["R@10"].mean > 0.5


def test_asi_has_the_two_terms_alone_and_criteria_can_be_left_out(small_corpus):
    quick = QUICK | {"epochs": 1}
    terms = {"contrastive", "generation", "density", "bottleneck", "information"}

    def used(name, **values):
        return terms & set(make(name, quick | values).fit(small_corpus).log.records[-1])

    assert used("asi") == {"contrastive", "generation"}
    assert used("asi++", criteria=("density",)) == {"contrastive", "generation", "density"}
    assert used("asi++") == terms


def test_near_documents_are_told_apart_and_criteria_look_at_all(small_corpus, monkeypatch):
    """The contrastive term has documents whose codes begin alike; the criteria and the decoder have any."""
    seen: dict[str, list[np.ndarray]] = {"code_terms": [], "criteria": []}
    for name, kept in seen.items():
        inner = getattr(Training, name)

        def watched(self, read, *more, inner=inner, kept=kept):
            kept.append(self.index.indexed.codes(read.pairs.document)[:, 0].numpy())
            return inner(self, read, *more)

        monkeypatch.setattr(Training, name, watched)
    make("asi++", QUICK | {"epochs": 3, "batch_size": 10, "neighbours": 1}).fit(small_corpus)
    tokens = {name: np.mean([len(np.unique(one)) for one in kept]) for name, kept in seen.items()}
    assert tokens["code_terms"] < 0.75 * tokens["criteria"]


def test_neighbours_are_told_apart_in_stretches_of_their_batch(small_corpus, monkeypatch):
    """The term against the plain one of each stretch: a short last one counts as much as it has documents."""
    monkeypatch.setattr(asi_training, "NEIGHBOURHOOD", 4)
    for neighbours, size in ((1, 4), (0, 10)):
        index = make("asi", QUICK | {"epochs": 0, "neighbours": neighbours}).fit(small_corpus)
        training = training_of(index, small_corpus)
        p, r, known = probabilities(1, 10, 3, 8), probabilities(2, 10, 3, 8), chance(3, 10)
        nothing = torch.zeros(10, 2)
        read = Coded(Pairs(nothing, nothing, known), nothing, nothing, nothing, nothing, p, r)
        expected = 0.0
        for first in range(0, 10, size):
            some = slice(first, first + size)
            part = [row[some] for row in known.tolist()[some]]
            told = plain.discrete_contrastive(p.tolist()[some], r.tolist()[some], 3.0, part)
            expected += told * len(part) / 10
        assert float(training.code_terms(read)["contrastive"]) == pytest.approx(expected, abs=1e-4)


def test_without_neighbours_one_batch_serves_all_terms(small_corpus, monkeypatch):
    coded, code_terms, criteria, reads, seen = Training.coded, Training.code_terms, Training.criteria, [], []

    def watched(self, pairs):
        reads.append(coded(self, pairs))
        return reads[-1]

    monkeypatch.setattr(Training, "coded", watched)
    monkeypatch.setattr(Training, "code_terms", lambda self, read: (seen.append(read), code_terms(self, read))[1])
    monkeypatch.setattr(Training, "criteria", lambda self, read, n: (seen.append(read), criteria(self, read, n))[1])
    make("asi++", QUICK | {"epochs": 1, "neighbours": 0}).fit(small_corpus)
    assert reads and len(seen) == 2 * len(reads)
    assert all(seen[2 * n] is seen[2 * n + 1] is one for n, one in enumerate(reads))


def test_what_is_judged_to_answer_a_query_is_no_wrong_answer_to_it(small_corpus, monkeypatch):
    """Of two documents that answer the same train query, neither counts as wrong for it; those of other queries do."""
    first, second, other = small_corpus.documents[:3]
    asked = {"both": callslip.Query("both", "what do both say"), "one": callslip.Query("one", "what does one say")}
    judged = {"train": {"both": {first.doc_id: 1, second.doc_id: 1}, "one": {other.doc_id: 1}}}
    corpus = callslip.Corpus(small_corpus.documents[:3], asked, judged, name="few")
    values = QUICK | {"epochs": 30, "batch_size": 4, "training_texts": ()}
    code_terms = Training.code_terms
    for spared in (True, False):
        seen = []
        watched = lambda self, read, seen=seen: (seen.append(read), code_terms(self, read))[1]  # noqa: E731
        monkeypatch.setattr(Training, "code_terms", watched)
        make("asi++", values | {"spare_answers": spared}).fit(corpus)
        if not spared:
            assert all(read.pairs.known is None for read in seen)
            continue
        for read in seen:
            same = (read.pairs.query[:, None] == read.pairs.query).all(dim=-1)
            assert torch.equal(read.pairs.known, same)  # the other answer of a query is the one that has the same query
        assert any(read.pairs.known.sum() > len(read.pairs.known) for read in seen)


def test_codes_are_what_the_indexer_gives_and_new_documents_get_theirs_in_one_pass(index, small_corpus):
    codes = index.identifiers.in_row_order()[1]
    assert np.array_equal(index.assign(small_corpus.documents, index.vectors), codes)


def test_free_search_is_the_unconstrained_beam_without_codes_that_nobody_has(small_corpus):
    index = make("asi++", QUICK | {"decoding": "free", "beam": 5, "epochs": 3}).fit(small_corpus)
    query = index.texts.encode(["where is the banana"])
    (free,) = beam_search(index.model, torch.from_numpy(query), FreeTree(index.model.widths), 5)
    known = [tuple(code) for code in free.codes.tolist() if index.identifiers.trie().node_of(code) >= 0]
    (written,) = index.write(query, 5)
    assert [tuple(code) for code in written.codes.tolist()] == known
    assert len(index.search("where is the banana", k=30)) == 30  # what is left too few is filled by existing codes
    hits = index.search("where is the banana", k=10, filter=Filter(where={"topic": "metal"}))
    assert len(hits) == 10 and all(hit.doc_id.startswith("metal") for hit in hits)


def test_a_document_is_existing_new_content_or_new_semantic(small_corpus, tmp_path):
    index = make("asi", QUICK | {"epochs": 2}).fit(small_corpus)
    twin = small_corpus.documents[0]
    odd = [Document(f"odd/{n}", f"zebra quark {n} " * (n + 1)) for n in range(30)]
    index.add([Document("twin", twin.text, twin.title), *odd])
    trained = {tuple(code) for code in index.identifiers.in_row_order()[1][: len(small_corpus)].tolist()}
    names, codes = index.identifiers.in_row_order()
    kinds = index.novelty()
    assert kinds["twin"] == "new content" and kinds[twin.doc_id] == "existing"
    for name, code in zip(names, codes.tolist(), strict=True):
        if name.startswith("odd/"):
            assert kinds[name] == ("new content" if tuple(code) in trained else "new semantic")
    index.save(tmp_path / "saved")
    again = callslip.load(tmp_path / "saved")
    again.add([Document("twin/2", twin.text, twin.title)])
    assert again.novelty(["twin/2"]) == {"twin/2": "new content"}
    assert len(again.novelty()) == len(again)


@pytest.mark.parametrize("epochs_done", [2, 6])  # in the first phase, and in the second
def test_a_resumed_training_ends_with_the_same_weights(small_corpus, tmp_path, monkeypatch, epochs_done):
    values = QUICK | {"epochs": 4, "writing_epochs": 4}
    whole = make("asi++", values).fit(small_corpus)
    stopped = make("asi++", values)
    steps = []

    class Cut(Exception):
        pass

    noisy = asi_training.with_noise

    def cut(*given_):
        steps.extend([1] * (len(stopped.log.records) == epochs_done))
        if len(steps) == 5:
            raise Cut
        return noisy(*given_)

    with monkeypatch.context() as patched, pytest.raises(Cut):
        patched.setattr(asi_training, "with_noise", cut)
        stopped.fit(small_corpus, Checkpoints(tmp_path / "kept", every=0))
    resumed = make("asi++", values).fit(small_corpus, Checkpoints(tmp_path / "kept", every=0, resume=True))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    assert np.array_equal(whole.identifiers.codes, resumed.identifiers.codes)


@pytest.mark.parametrize("indexer", ["mlp", "rq"])
def test_codes_stand_still_while_the_decoder_goes_on_to_learn_them(small_corpus, indexer):
    """Head and indexer end as the first phase left them, the decoder writes better, and all can be trained again."""
    values = QUICK | {"epochs": 3, "indexer": indexer}
    short, longer = (make("asi++", values | {"writing_epochs": n}).fit(small_corpus) for n in (0, 10))
    assert np.array_equal(short.identifiers.codes, longer.identifiers.codes)
    moved = {
        name.split(".")[0]
        for (name, before), after in zip(short.model.state_dict().items(), longer.model.state_dict().values())
        if not torch.equal(before, after)
    }
    assert moved == {"writer"}
    assert np.array_equal(longer.assign(small_corpus.documents, longer.vectors), longer.identifiers.in_row_order()[1])
    phases = [(record["phase"], set(record)) for record in longer.log.records]
    assert [phase for phase, _ in phases] == ["learning codes and how to write them"] * 3 + [
        "learning to write the codes"
    ] * 10
    assert "generation" in phases[-1][1] and "contrastive" not in phases[-1][1]
    assert longer.log.records[-1]["generation"] < 0.8 * short.log.records[-1]["generation"]
    assert all(parameter.requires_grad for parameter in longer.model.parameters())


def test_random_codes_are_the_control(small_corpus):
    index = make("asi++", QUICK | {"epochs": 2, "writing_epochs": 3}, preset="random").fit(small_corpus)
    assert index.identifiers.unique > 30
    assert len(index.log.records) == 5  # as many passes as the others have
    with pytest.raises(Unsupported):
        index.add([Document("new", "text")])


def test_the_encoder_can_be_trained_with_it(small_corpus):
    values = QUICK | {"encoder": "minilm", "train_encoder": "top", "epochs": 1, "training_texts": ("document", "title")}
    few = callslip.Corpus(small_corpus.documents[:8], name="few")
    index = make("asi++", values | {"seq2seq_length": 8, "backend": "torch", "writing_epochs": 1}).fit(few)
    assert len(index.search("banana", k=3)) == 3
    assert np.array_equal(index.assign(few.documents, index.vectors), index.identifiers.in_row_order()[1])


def test_mistakes_in_settings_are_named():
    for values, said in (
        ({"criteria": ("colour",)}, "colour"),
        ({"temperature": 0.0}, "temperature"),
        ({"neighbours": 9}, "neighbours"),
        ({"writing_epochs": -1}, "writing_epochs"),
    ):
        with pytest.raises(BadSetting, match=said):
            make("asi++", values)
    for name in ("codes_from", "history_length"):
        with pytest.raises(UnknownName, match=name):
            make("asi++", {name: 3})


def test_the_plus_signs_of_a_name_make_no_hybrid():
    assert find("asi++").where == "asi:ASI"
    assert find("asi++ + bm25").settings["parts"] == ("asi++", "bm25")
    assert find("bm25+dense").settings["parts"] == ("bm25", "dense")
