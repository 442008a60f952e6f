"""NCI: its equations against plain loops, its steps against teacher forcing, its search against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import nci as plain
from reference.search import score_every_code
from small_t5 import save_small_t5

from callslip.corpus.documents import Document
from callslip.decoders.writer import CodeWriter, States
from callslip.errors import BadSetting
from callslip.identifiers import HierarchicalKMeans, Identifiers
from callslip.methods import make
from callslip.methods.nci import (
    PrefixAwareT5,
    PrefixAwareWriter,
    adapted_logits,
    contrastive_consistency,
    divergence_consistency,
)
from callslip.search.beam import beam_search
from callslip.search.exact import exact_search

QUICK = {"encoder": "scratch", "epochs": 3, "decoder_width": 32, "width": 4, "leaf": 3, "batch_size": 64}


def engines() -> list[str]:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        return ["torch"]
    return ["torch", "onnx"]


def writer(widths, seed=0, **more) -> PrefixAwareWriter:
    torch.manual_seed(seed)
    model = PrefixAwareWriter(8, widths, width=16, heads=2, memory_slots=2, adaptor_width=6, adaptor_rank=3, **more)
    for parameter in model.parameters():  # far from uniform, and from the zeros that training begins with
        torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


@pytest.fixture(scope="module")
def checkpoint(small_corpus, tmp_path_factory):
    words = sorted({word.strip(".,") for d in small_corpus for word in d.content.split()})
    return save_small_t5(tmp_path_factory.mktemp("t5"), words, dropout_rate=0.0)


def t5_writer(checkpoint, widths, **more) -> PrefixAwareT5:
    torch.manual_seed(1)
    options = {"codes": "codebooks", "adaptor_width": 6, "adaptor_rank": 3} | more
    model = PrefixAwareT5.from_pretrained(str(checkpoint), widths, **options)
    for name, parameter in model.named_parameters():
        if not name.startswith("t5."):
            torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


# The equations.


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_adapted_logits_are_those_of_the_adapted_matrix(seed, dim, outputs, rank):
    make_ = torch.Generator().manual_seed(seed)
    shapes = [(3, dim), (outputs, dim), (outputs,), (3, dim), (3, dim, rank), (3, rank, dim)]
    hidden, weight, bias, scale, left, right = (torch.randn(shape, generator=make_) for shape in shapes)
    found = adapted_logits(hidden, weight, bias, scale, left, right)
    for row in range(3):
        each = [x.tolist() for x in (hidden[row], weight, bias, scale[row], left[row], right[row])]
        np.testing.assert_allclose(found[row], plain.adapted_logits(*each), atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(1, 5), st.floats(0.2, 2.0))
def test_consistency_equals_plain_loops(seed, size, temperature):
    make_ = torch.Generator().manual_seed(seed)
    first, second = torch.randn(size, 4, generator=make_), torch.randn(size, 4, generator=make_)
    expected = plain.contrastive_consistency(first.tolist(), second.tolist(), temperature)
    assert float(contrastive_consistency(first, second, temperature)) == pytest.approx(expected, abs=1e-4)
    assert float(divergence_consistency(first, second)) == pytest.approx(
        plain.divergence_consistency(first.tolist(), second.tolist()), abs=1e-4
    )
    assert float(divergence_consistency(first, first)) == pytest.approx(0, abs=1e-6)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="do not fit"):
        adapted_logits(*(torch.zeros(s) for s in [(2, 4), (3, 4), (3,), (2, 4), (2, 4, 2), (2, 3, 4)]))
    for term in (contrastive_consistency, divergence_consistency):
        with pytest.raises(ValueError, match="passes"):
            term(torch.zeros(2, 4), torch.zeros(3, 4))


# The decoder.


def test_training_begins_as_an_ordinary_decoder():
    torch.manual_seed(0)
    adaptive = PrefixAwareWriter(8, [4, 5], width=16, heads=2, dropout=0.0)
    ordinary = CodeWriter(8, [4, 5], width=16, heads=2, dropout=0.0)
    ordinary.load_state_dict({name: adaptive.state_dict()[name] for name in ordinary.state_dict()})
    query, code = torch.randn(3, 8), torch.randint(0, 4, (3, 2))
    for a, b in zip(adaptive(query, code), ordinary(query, code), strict=True):
        torch.testing.assert_close(a, b)


def test_every_weight_of_the_adaptor_is_learned():
    torch.manual_seed(0)
    model = PrefixAwareWriter(8, [4, 4, 4], width=16, heads=2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # `right` has a gradient as soon as `left` has moved
        optimiser.zero_grad()
        logits = model(torch.randn(6, 8), torch.randint(0, 4, (6, 3)))
        sum(one.log_softmax(-1)[:, 0].sum() for one in logits).backward()
        optimiser.step()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.numel())


def test_a_level_sees_only_the_tokens_before_it():
    model, query = writer([4, 4, 4]), torch.randn(1, 8)
    before, changed = model(query, torch.tensor([[1, 2, 0]])), model(query, torch.tensor([[1, 3, 2]]))
    torch.testing.assert_close(before[0], changed[0])
    torch.testing.assert_close(before[1], changed[1])
    assert not torch.allclose(before[2], changed[2])


@pytest.mark.parametrize("reads", ["vector", "states"])
@pytest.mark.parametrize("engine", engines())
def test_steps_equal_teacher_forcing(engine, reads):
    """Beams branch and change places: each beam's scores are those of its own prefix, decoded alone."""
    model = writer([4, 5, 3], engine=engine, reads=reads)
    queries = (
        torch.randn(2, 8)
        if reads == "vector"
        else States(torch.randn(2, 5, 8), torch.tensor([[1] * 5, [1, 1, 0, 0, 0]]))
    )
    parents = torch.tensor([[2, 0, 2, 1], [1, 1, 0, 2]])
    first, second = torch.tensor([[0, 1, 2], [3, 2, 0]]), torch.tensor([[4, 1, 0, 3], [2, 2, 4, 0]])
    with torch.inference_mode():
        state, opening = model.start(queries)
        one = model.advance(state, torch.zeros(2, 3, dtype=torch.long), first)
        two = model.advance(state, parents, second)
        for q in range(2):
            alone = model(queries[q : q + 1], torch.zeros(1, 3, dtype=torch.long))[0][0].log_softmax(-1)
            torch.testing.assert_close(opening[q, 0], alone, atol=1e-4, rtol=1e-3)
            for beam in range(3):
                code = torch.tensor([[first[q, beam], 0, 0]])
                alone = model(queries[q : q + 1], code)[1][0].log_softmax(-1)
                torch.testing.assert_close(one[q, beam], alone, atol=1e-4, rtol=1e-3)
            for beam in range(4):
                code = torch.tensor([[first[q, parents[q, beam]], second[q, beam], 0]])
                alone = model(queries[q : q + 1], code)[2][0].log_softmax(-1)
                torch.testing.assert_close(two[q, beam], alone, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("engine", engines())
def test_a_fork_goes_on_alone(engine):
    model, zero = writer([4, 4, 4], engine=engine), torch.zeros(1, 1, dtype=torch.long)
    with torch.inference_mode():
        state, _ = model.start(torch.randn(1, 8))
        fork = state.fork()
        one = model.advance(fork, zero, zero + 3)
        assert (state.written, fork.written) == (1, 2)
        two = model.advance(state, zero, zero)
        assert not torch.allclose(one, two)
        model.advance(fork, zero, zero)
        assert (state.written, fork.written) == (2, 3)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 999), st.booleans())
def test_search_equals_brute_force(seed, with_end):
    """Beam and exact search over random codes: the codes and scores of every code scored alone."""
    rng = np.random.default_rng(seed)
    codes = np.unique(rng.integers(-1 if with_end else 0, 4, (9, 3)), axis=0)
    codes[:, 0] = np.abs(codes[:, 0])
    for row in codes:  # what follows an end is an end
        row[np.maximum.accumulate(row < 0)] = -1
    codes = np.unique(codes, axis=0)
    model = writer([4, 4, 4], seed=seed % 7, with_end=with_end)
    queries = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
    trie = Identifiers(list(map(str, range(len(codes)))), codes).trie()
    with torch.inference_mode():
        by_beam = beam_search(model, queries, trie, beam=100)
        exactly = [exact_search(model, queries[n : n + 1], trie, len(codes)) for n in range(2)]
    for query, *both in zip(queries, by_beam, exactly, strict=True):
        truth = score_every_code(model, query, [tuple(code) for code in codes.tolist()])
        for beams in both:
            assert len(beams.codes) == len(codes)
            np.testing.assert_allclose(beams.scores, sorted(truth.values(), reverse=True), atol=1e-3)
            np.testing.assert_allclose(beams.scores, [truth[tuple(code)] for code in beams.codes.tolist()], atol=1e-3)


# The method.


def test_codes_are_the_k_means_tree(small_corpus):
    index = make("nci", QUICK | {"epochs": 0, "length": 2}).fit(small_corpus)
    _, table = index.identifiers.in_row_order()
    np.testing.assert_array_equal(table, HierarchicalKMeans(width=4, length=2, seed=0).fit(index.vectors))


@pytest.mark.parametrize("consistency", ["contrastive", "divergence"])
def test_two_passes_learn_to_agree(small_corpus, consistency):
    index = make("nci", QUICK | {"consistency": consistency, "dropout": 0.3, "epochs": 20}).fit(small_corpus)
    records = index.log.records
    assert records[-1]["generation"] < records[0]["generation"]
    assert records[-1]["consistency"] >= 0
    weightless = make("nci", QUICK | {"consistency": consistency, "consistency_weight": 0}).fit(small_corpus)
    assert "consistency" not in weightless.log.records[-1]


def test_documents_are_asked_for_by_their_own_spans(small_corpus):
    index = make("nci", QUICK)
    text_of = {document.doc_id: document.content for document in small_corpus}
    pairs = index.training_pairs(small_corpus)
    assert {pair.doc_id for pair in pairs} == set(text_of)
    own = [pair for pair in pairs if pair.query in text_of[pair.doc_id]]
    assert len(own) > 4 * len(small_corpus)  # title, three sentences, and spans that are no sentence
    assert len(pairs) - len(own) == 40  # the judged queries


@pytest.mark.parametrize("bad", [{"temperature": 0}, {"adaptor_width": 0}, {"adaptor_rank": -1}])
def test_mistakes_are_explained(bad):
    with pytest.raises(BadSetting, match=next(iter(bad))):
        make("nci", bad)


# On T5.


@pytest.mark.parametrize("engine", engines())
def test_steps_of_t5_equal_teacher_forcing_and_its_search_brute_force(checkpoint, engine):
    model = t5_writer(checkpoint, [3, 4, 2], engine=engine)
    queries = model.batch(model.tokenize(["which apple has the mark", "nile"]))
    codes = np.array([[0, 1, 1], [2, 3, 0], [1, 0, 1], [2, 3, 1]], np.int32)
    with torch.no_grad():
        logits = [model(queries, torch.from_numpy(code).expand(2, -1)) for code in codes.astype(np.int64)]
    found = beam_search(model, queries, Identifiers(list("abcd"), codes).trie(), 4)
    for row, beams in enumerate(found):
        assert sorted(map(tuple, beams.codes.tolist())) == sorted(map(tuple, codes.tolist()))
        for code, score in zip(beams.codes, beams.scores, strict=True):
            (number,) = [n for n, one in enumerate(codes) if (one == code).all()]
            each = [logits[number][level][row].log_softmax(-1)[token] for level, token in enumerate(code)]
            assert score == pytest.approx(float(sum(each)), abs=1e-3)


def test_the_prefix_changes_what_t5_writes_next(checkpoint):
    model = t5_writer(checkpoint, [3, 4])
    queries = model.batch(model.tokenize(["which apple"]))
    with torch.no_grad():
        hidden, read = model.hidden(queries, torch.tensor([[1, 0]])), model.encode(queries)
        adapted = model(queries, torch.tensor([[1, 0]]))[1]
    assert not torch.allclose(adapted, model.heads[1](hidden[:, 1]), atol=1e-3)
    prefix = model.read_token(model.before(read.values, read.mask), torch.tensor([1]), 0)
    torch.testing.assert_close(adapted, model.logits(hidden[:, 1], prefix, 1))


def test_a_saved_t5_keeps_its_adaptors(checkpoint, tmp_path):
    model = t5_writer(checkpoint, [3, 4], adaptor_rank=2)
    model.save(tmp_path / "t5")
    loaded = PrefixAwareT5.load(tmp_path / "t5")
    assert (loaded.adaptor_width, loaded.adaptor_rank) == (6, 2)
    expected = model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())


def test_the_settings_reach_the_adaptors_of_t5(checkpoint, small_corpus):
    values = QUICK | {
        "epochs": 0,
        "seq2seq": str(checkpoint),
        "adaptor_width": 5,
        "adaptor_rank": 2,
        "training_texts": ("document",),
    }
    index = make("nci", values).fit(small_corpus)
    assert isinstance(index.model, PrefixAwareT5)
    assert (index.model.adaptor_width, index.model.adaptor_rank, index.model.codes) == (5, 2, "codebooks")


@pytest.mark.parametrize("method", ["nci", "dsi-semantic"])
def test_one_more_level_makes_codes_unique_and_a_new_document_shares_the_last_place(small_corpus, method):
    values = QUICK | {"epochs": 0, "collisions": "level", "length": 1}
    index = make(method, values).fit(small_corpus)
    codes = index.identifiers.in_row_order()[1]
    assert codes.shape == (40, 2) and len(np.unique(codes, axis=0)) == 40
    plain_codes = make(method, values | {"collisions": "bucket"}).fit(small_corpus).identifiers.in_row_order()[1]
    assert np.array_equal(codes[:, :1], plain_codes)
    twin = small_corpus.documents[0]
    index.add([Document(f"twin/{n}", twin.text, twin.title) for n in range(12)])
    assert index.identifiers.in_row_order()[1].max(axis=0)[1] < index.model.widths[1]
    assert "twin/11" in index.search(twin.content, k=52).doc_ids
