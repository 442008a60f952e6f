"""GenRet: its equations against plain loops, its levels, what it refuses, and every model that it runs on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import genret as plain
from reference.search import ranked, score_every_code
from small_t5 import save_small_t5
from training_spies import Killed, kill_at

import callslip
from callslip.errors import BadSetting, TrainingFailed, UnknownName, Unsupported
from callslip.identifiers.balancing import sinkhorn
from callslip.methods import make
from callslip.methods.genret import (
    commitment,
    initial_codebook,
    reassigned,
    reconstruction,
    retrieval,
    straight_through,
)
from callslip.search.beam import beam_search

QUICK = {
    "encoder": "scratch", "epochs": 12, "level_epochs": 4, "decoder_width": 32, "width": 4, "leaf": 3, "batch_size": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def index(small_corpus):
    return make("genret", QUICK).fit(small_corpus)


# The equations.


def drawn(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(1, 6), st.integers(1, 4))
def test_reconstruction_equals_plain_loops(seed, size, dim):
    z, d = drawn(seed, (size, dim), (size, dim))
    groups = torch.randint(0, 3, (size,), generator=torch.Generator().manual_seed(seed))
    same = groups[:, None] == groups
    expected = plain.reconstruction(z.tolist(), d.tolist(), same.tolist())
    assert float(reconstruction(z, d, same)) == pytest.approx(expected, abs=1e-4)


def test_reconstruction_teaches_the_codebook_and_not_the_documents_that_it_is_compared_with():
    z, d = (x.requires_grad_() for x in drawn(0, (3, 4), (3, 4)))
    reconstruction(z, d, torch.ones(3, 3, dtype=torch.bool)).backward()
    assert z.grad is not None and z.grad.abs().sum() > 0
    assert d.grad is None


def test_a_document_alone_in_its_prefix_has_nothing_to_be_told_from():
    z, d = drawn(0, (3, 4), (3, 4))
    assert float(reconstruction(z, d, torch.zeros(3, 3, dtype=torch.bool))) == pytest.approx(0)


def test_straight_through_is_the_codebooks_row_forward_and_both_backward():
    d, codebook, weight = (x.requires_grad_() for x in drawn(1, (3, 4), (5, 4), (3, 4)))
    token = torch.tensor([2, 0, 2])
    z = straight_through(d, codebook, token)
    torch.testing.assert_close(z, codebook[token])
    (z * weight.detach()).sum().backward()
    torch.testing.assert_close(d.grad, weight.detach())
    rows = torch.zeros(5, 4)
    for row, chosen in enumerate(token.tolist()):
        rows[chosen] += weight.detach()[row]
    torch.testing.assert_close(codebook.grad, rows)


@pytest.mark.parametrize("epsilon", [1.0, 0.5])
def test_the_reassigned_scores_equal_plain_scaling_and_have_the_gradient_of_the_kernel(epsilon):
    scores = drawn(4, (6, 3))[0].requires_grad_()
    found = reassigned(scores, sinkhorn(scores.detach(), epsilon, 300), epsilon)
    expected, u, v = plain.reassigned(scores.tolist(), epsilon, 300)
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-4, rtol=1e-3)
    (own,) = torch.autograd.grad(found.square().sum(), scores)
    kernel = torch.tensor(u)[:, None] * (scores / epsilon).exp() * torch.tensor(v)
    (naive,) = torch.autograd.grad(kernel.square().sum(), scores)
    torch.testing.assert_close(own, naive, atol=1e-4, rtol=1e-3)
    with pytest.raises(ValueError, match="do not fit"):
        reassigned(scores, scores[:2])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(1, 5), st.integers(1, 3))
def test_commitment_and_retrieval_equal_plain_loops(seed, size, length):
    q, d, *logits = drawn(seed, (size, 4), (size, 4), *[(size, 3)] * length)
    code = torch.randint(0, 3, (size, length), generator=torch.Generator().manual_seed(seed))
    numbers = [one.tolist() for one in logits], code.tolist()
    assert float(commitment(logits, code)) == pytest.approx(plain.commitment(*numbers), abs=1e-4)
    expected = plain.retrieval(q.tolist(), d.tolist(), *numbers)
    assert float(retrieval(q, d, logits, code)) == pytest.approx(expected, abs=1e-4)


def test_retrieval_draws_queries_and_documents_alike():
    q, d = (x.requires_grad_() for x in drawn(3, (4, 5), (4, 5)))
    retrieval(q, d, [], torch.zeros((4, 0), dtype=torch.long)).backward()
    assert q.grad.abs().sum() > 0 and d.grad.abs().sum() > 0


def test_shapes_are_checked():
    x, y = torch.zeros(2, 4), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="do not fit"):
        reconstruction(x, y, torch.ones(2, 2))
    with pytest.raises(ValueError, match="do not fit"):
        reconstruction(x, x, torch.ones(2, 3))
    with pytest.raises(ValueError, match="do not fit"):
        straight_through(x, torch.zeros(5, 3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="shapes"):
        retrieval(x, y, [], torch.zeros((2, 0), dtype=torch.long))


# Codebooks.


def test_a_codebook_forgets_where_the_prefixes_lie():
    """Two prefixes far apart, three clusters in each at the same offsets: three centroids, at those offsets."""
    rng = np.random.default_rng(0)
    offsets = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 4.0]])
    places = np.array([[100.0, 0.0], [0.0, -50.0]])
    groups, kinds = np.repeat([0, 1], 60), np.tile([0, 1, 2], 40)
    states = places[groups] + offsets[kinds] + rng.normal(0, 0.05, (120, 2))
    found = initial_codebook(states.astype(np.float32), groups, 3)
    expected = states.mean(axis=0) + offsets - offsets.mean(axis=0)
    nearest = np.linalg.norm(found[:, None] - expected, axis=2)
    assert nearest.min(axis=0).max() < 0.1
    assert sorted(nearest.argmin(axis=1).tolist()) == [0, 1, 2]


def test_fewer_documents_than_tokens_still_fill_a_codebook():
    states = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    found = initial_codebook(states, np.zeros(3, np.int64), 8)
    assert found.shape == (8, 5) and np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) == 8


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_its_search_equals_brute_force(engine, index):
    """With a beam as wide as the codes."""
    index.model.engine_name, index.model._engine = engine, None
    queries = torch.from_numpy(index.vectors[:3])
    trie = index.identifiers.trie()
    codes = [tuple(code) for code in trie.codes_of(np.arange(index.identifiers.unique)).tolist()]
    for query, beams in zip(queries, beam_search(index.model, queries, trie, len(codes)), strict=True):
        scores = score_every_code(index.model, query, codes)
        assert [tuple(code) for code in beams.codes.tolist()] == ranked(scores)
        np.testing.assert_allclose(beams.scores, sorted(scores.values(), reverse=True), atol=1e-4)


# Levels.


def test_every_level_is_watched(index, small_corpus):
    records = [record for record in index.log.records if record["phase"] in ("level 1", "level 2")]
    assert len(records) == 2 * QUICK["level_epochs"]
    for record in records:
        assert {"unique_codes", "diversity", "perplexity", "within_prefix"} <= set(record)
        assert {"reconstruction", "commitment", "retrieval"} <= set(record)
    assert records[-1]["unique_codes"] == index.identifiers.unique
    assert [r["phase"] for r in index.log.records if r["epoch"] == 0] == [
        "level 1: warm-up", "level 1", "level 2: warm-up", "level 2", "training the decoder",
    ]  # fmt: skip


def test_a_part_that_is_left_out_has_no_term(small_corpus):
    for name in ("reconstruction", "commitment", "retrieval"):
        values = QUICK | {f"{name}_weight": 0, "epochs": 1, "level_epochs": 1, "length": 1, "warmup_epochs": 0}
        log = make("genret", values).fit(small_corpus).log
        (record,) = [record for record in log.records if record["phase"] == "level 1"]
        assert {"reconstruction", "commitment", "retrieval"} - set(record) == {name}


def test_a_warm_up_with_nothing_to_learn_is_left_out(small_corpus):
    values = {"reconstruction_weight": 0, "warmup_retrieval": False, "epochs": 1, "level_epochs": 1, "length": 2}
    log = make("genret", QUICK | values | {"stop_collapsed": False}).fit(small_corpus).log
    phases = list(dict.fromkeys(record["phase"] for record in log.records))
    assert phases == ["level 1", "level 2: warm-up", "level 2", "training the decoder"]
    none = {f"{name}_weight": 0 for name in ("reconstruction", "commitment", "retrieval")}
    with pytest.raises(BadSetting, match="no loss terms"):
        make("genret", QUICK | none).fit(small_corpus)


def test_codes_of_a_level_are_what_the_model_writes_for_the_document(small_corpus):
    """The codes are the tokeniser's own: with no final fit, coding the corpus again gives them."""
    index = make("genret", QUICK | {"epochs": 0}).fit(small_corpus)
    again = index.assign(list(small_corpus), index.vectors)
    held = np.empty_like(again)
    held[index.identifiers.rows] = index.identifiers.codes
    assert (again[:, -1] == held[:, -1]).all()
    assert (again == held).all(axis=1).mean() > 0.9  # a later level may disturb an earlier one, a little


def test_tokens_are_shared_out_in_a_batch():
    """Where all states are alike, Sinkhorn's argmax takes many tokens and the plain one takes a single token."""
    torch.manual_seed(0)
    states = torch.ones(16, 4) + 0.01 * torch.randn(16, 4)
    scores = states @ torch.randn(8, 4).t()
    assert len(scores.argmax(dim=1).unique()) <= 2
    assert len(sinkhorn(scores, 0.05).argmax(dim=1).unique()) >= 5


@pytest.mark.parametrize("level", [1, 2])
def test_a_collapsed_level_stops_the_training_and_names_the_remedy(small_corpus, monkeypatch, level):
    from callslip.methods.genret import Tokenizer

    plain_tokens = Tokenizer.tokens

    def collapsed(self, inputs, codes):
        """What collapse looks like: every document of a prefix takes the token that the prefix decides."""
        if codes.shape[1] + 1 < level:
            return plain_tokens(self, inputs, codes)
        return codes[:, 0] % 16 if level == 2 else np.zeros(len(inputs), np.int64)

    monkeypatch.setattr(Tokenizer, "tokens", collapsed)
    with pytest.raises(TrainingFailed, match=f"level {level}, epoch 2: the codes collapsed") as caught:
        make("genret", QUICK | {"width": 16, "length": 2}).fit(small_corpus)
    assert "initialise=clusters" in caught.value.remedy and "16" in caught.value.remedy


def test_random_codes_are_the_control(small_corpus):
    index = make("genret", QUICK | {"codes": "random", "length": 2, "epochs": 1}).fit(small_corpus)
    assert {record["phase"] for record in index.log.records} == {"training the decoder"}
    assert index.identifiers.length == 2
    with pytest.raises(Unsupported, match="cannot code documents"):
        index.add([callslip.Document("new/1", "the violin is a music")])


# Collisions.


def test_one_more_level_tells_documents_of_a_bucket_apart(small_corpus):
    more = {"length": 1, "width": 16, "collisions": "level", "epochs": 1, "level_epochs": 1}
    index = make("genret", QUICK | more).fit(small_corpus)
    assert index.identifiers.length == 2
    assert index.identifiers.unique == len(small_corpus)
    bucket = index.identifiers.codes[:, 0].tolist()
    new = [callslip.Document("new/1", small_corpus.documents[0].text, small_corpus.documents[0].title)]
    index.add(new)
    table = index.identifiers
    code = table.codes[table.position_of("new/1")]
    assert code[1] == bucket.count(code[0])  # the place after those that are taken


# Other models.


def test_t5_learns_codes_of_its_own(small_corpus, tmp_path):
    words = sorted({word.strip(".,").lower() for d in small_corpus for word in d.content.split()})
    folder = save_small_t5(tmp_path / "t5", words, d_model=32, d_ff=64, dropout_rate=0.0)
    values = QUICK | {"seq2seq": str(folder), "learning_rate": 2e-3, "level_epochs": 2, "epochs": 2}
    index = make("genret", values).fit(small_corpus)
    index.add([callslip.Document("new/1", "the violin is a music")])
    index.save(tmp_path / "index")
    loaded = callslip.load(tmp_path / "index")
    asked = [query.text for query in list(small_corpus.queries.values())[:4]]
    for before, after in zip(index.search_batch(asked, 5), loaded.search_batch(asked, 5), strict=True):
        assert before.doc_ids == after.doc_ids
    with pytest.raises(UnknownName, match="seq2seq_codes"):
        make("genret", {"seq2seq": str(folder), "seq2seq_codes": "tokens"})


# Stopped, and taken up again.


@pytest.mark.parametrize("step", [3, 40, 75, 120])
def test_a_fit_that_was_killed_goes_on_to_the_same_codes_and_weights(small_corpus, tmp_path, monkeypatch, step):
    from callslip.training.checkpoints import Checkpoints

    values = QUICK | {"level_steps": 30, "level_epochs": 2, "warmup_epochs": 1, "epochs": 3}
    whole = make("genret", values).fit(small_corpus)
    with monkeypatch.context() as patched:
        kill_at(patched, step)
        with pytest.raises(Killed):
            make("genret", values).fit(small_corpus, Checkpoints(tmp_path / "c", every=0.0))
    index = make("genret", values).fit(small_corpus, Checkpoints(tmp_path / "c", resume=True))
    assert (index.identifiers.codes == whole.identifiers.codes).all()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, index.model.state_dict()[name]), name
    assert [r["phase"] for r in index.log.records] == [r["phase"] for r in whole.log.records]


def test_a_level_can_be_learned_again_with_other_settings(small_corpus, tmp_path):
    from callslip.training.checkpoints import Checkpoints

    values = QUICK | {"level_steps": 30, "level_epochs": 2, "epochs": 1, "length": 2}
    first = make("genret", values).fit(small_corpus, Checkpoints(tmp_path / "c"))
    again = make("genret", values | {"level_epochs": 3, "learning_rate": 1e-3})
    again.fit(small_corpus, Checkpoints(tmp_path / "c", again="level 2"))
    table, other = (dict(zip(i.identifiers.doc_ids, i.identifiers.codes.tolist(), strict=True)) for i in (first, again))
    assert [table[d][0] for d in small_corpus.doc_ids] == [other[d][0] for d in small_corpus.doc_ids]
    epochs = [r["epoch"] for r in again.log.records if r["phase"] == "level 2"]
    assert epochs == [0, 1, 2]
