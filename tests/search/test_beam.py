"""Beam search against brute force: every code scored, and a plain prefix-by-prefix beam."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.search import ranked, score_every_code, step_by_step_beam

from callslip.decoders.writer import CodeWriter
from callslip.identifiers.table import END, Identifiers
from callslip.search.beam import beam_search


def writer(widths, *, with_end=False, seed=0, layers=2) -> CodeWriter:
    torch.manual_seed(seed)
    model = CodeWriter(8, widths, width=16, layers=layers, heads=2, memory_slots=3, with_end=with_end)
    for parameter in model.parameters():  # far from uniform, so that order means something
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def codes_of(beams, identifiers: Identifiers) -> list[tuple[int, ...]]:
    """The codes that the beams wrote, which must be those of the nodes that they ended on."""
    np.testing.assert_array_equal(beams.codes, identifiers.trie().codes_of(beams.nodes))
    return [tuple(code) for code in beams.codes.tolist()]


@st.composite
def code_sets(draw):
    length = draw(st.integers(1, 4))
    widths = [draw(st.integers(1, 5)) for _ in range(length)]
    with_end = draw(st.booleans())
    count = draw(st.integers(1, 12))
    codes = []
    for _ in range(count):
        stop = draw(st.integers(1, length)) if with_end else length
        tokens = [draw(st.integers(0, widths[level] - 1)) for level in range(stop)]
        codes.append((*tokens, *[END] * (length - stop)))
    return widths, with_end, codes


@settings(max_examples=60, deadline=None)
@given(code_sets(), st.integers(0, 5))
def test_unbounded_beam_equals_brute_force(made, seed):
    widths, with_end, codes = made
    model = writer(widths, with_end=with_end, seed=seed)
    queries = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
    table = Identifiers([str(i) for i in range(len(codes))], np.array(codes))
    for query, beams in zip(queries, beam_search(model, queries, table.trie(), beam=1000), strict=True):
        truth = score_every_code(model, query, sorted(set(codes)))
        found = codes_of(beams, table)
        assert sorted(found) == sorted(truth)
        assert found == ranked({code: round(score, 9) for code, score in truth.items()}) or all(
            abs(truth[a] - truth[b]) < 1e-5 for a, b in zip(found, ranked(truth), strict=True)
        )
        np.testing.assert_allclose(beams.scores, [truth[code] for code in found], atol=1e-4)
        np.testing.assert_allclose(beams.levels.sum(axis=1), beams.scores, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(code_sets(), st.integers(1, 4), st.integers(0, 5))
def test_narrow_beam_equals_a_plain_loop(made, beam, seed):
    widths, with_end, codes = made
    model = writer(widths, with_end=with_end, seed=seed)
    queries = torch.randn(2, 8, generator=torch.Generator().manual_seed(seed))
    table = Identifiers([str(i) for i in range(len(codes))], np.array(codes))
    for query, beams in zip(queries, beam_search(model, queries, table.trie(), beam=beam), strict=True):
        assert codes_of(beams, table) == step_by_step_beam(model, query, codes, beam)


@settings(max_examples=40, deadline=None)
@given(code_sets(), st.data())
def test_a_mask_equals_a_smaller_table(made, data):
    """Searching under a mask gives what searching only the allowed documents gives."""
    widths, with_end, codes = made
    allowed = data.draw(st.lists(st.booleans(), min_size=len(codes), max_size=len(codes)))
    model = writer(widths, with_end=with_end)
    queries = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    table = Identifiers([str(i) for i in range(len(codes))], np.array(codes))
    live = table.trie().live(np.array(allowed)[table.rows])
    masked = beam_search(model, queries, table.trie(), beam=3, live=[live])
    kept = [code for code, ok in zip(codes, allowed, strict=True) if ok]
    if not kept:
        assert all(len(beams.nodes) == 0 for beams in masked)
        return
    smaller = Identifiers([str(i) for i in range(len(kept))], np.array(kept))
    alone = beam_search(model, queries, smaller.trie(), beam=3)
    for a, b in zip(masked, alone, strict=True):
        assert codes_of(a, table) == codes_of(b, smaller)
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-6)


def test_ties_are_broken_by_code():
    model = writer([4, 4])
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    codes = [(3, 1), (0, 2), (2, 2), (0, 1), (3, 0)]
    table = Identifiers(list("abcde"), np.array(codes))
    (beams,) = beam_search(model, torch.zeros(1, 8), table.trie(), beam=4)
    assert codes_of(beams, table) == sorted(codes)[:4]


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_query_is_answered_alike_whatever_its_batch(batch):
    model = writer([5, 5, 5])
    rng = np.random.default_rng(0)
    table = Identifiers([str(i) for i in range(60)], rng.integers(0, 5, (60, 3)))
    queries = torch.randn(5, 8, generator=torch.Generator().manual_seed(3))
    together = beam_search(model, queries, table.trie(), beam=7)
    apart = [
        b for start in range(0, 5, batch) for b in beam_search(model, queries[start : start + batch], table.trie(), 7)
    ]
    for a, b in zip(together, apart, strict=True):
        assert a.nodes.tolist() == b.nodes.tolist()


@settings(max_examples=60, deadline=None)
@given(code_sets(), st.integers(1, 8), st.integers(0, 5), st.floats(0.3, 3.0))
def test_growing_the_last_level_by_halves_changes_nothing(made, beam, seed, spread):
    """Whatever the model's certainty, for one query: as when all beams are advanced at once, and with fewer of them."""
    from callslip.search import beam_numpy as module

    widths, with_end, codes = made
    model = writer(widths, with_end=with_end, seed=seed)
    for head in model.heads:
        torch.nn.init.normal_(head.weight, std=spread)
    query = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed))
    trie = Identifiers([str(i) for i in range(len(codes))], np.array(codes)).trie()
    (expected,) = beam_search(model, query, trie, beam)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "STEEP", -np.inf)
        patched.setattr(module, "FEW", 1)
        (found,) = beam_search(model, query, trie, beam)
    np.testing.assert_array_equal(found.codes, expected.codes)
    np.testing.assert_array_equal(found.nodes, expected.nodes)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    np.testing.assert_allclose(found.levels, expected.levels, atol=1e-4)


def test_beams_that_cannot_win_are_not_advanced():
    """A first token far likelier than the others: the worse half of the beam is left where it is."""
    model = writer([32, 32])
    with torch.no_grad():
        model.heads[0].bias.copy_(torch.linspace(0, -400, 32))
    codes = np.stack(np.meshgrid(np.arange(32), np.arange(32)), axis=-1).reshape(-1, 2)
    trie = Identifiers([str(i) for i in range(len(codes))], codes).trie()
    advanced, plain = [], model.advance

    def counted(state, parents, tokens):
        advanced.append(parents.shape[1])
        return plain(state, parents, tokens)

    model.advance = counted
    (found,) = beam_search(model, torch.randn(1, 8), trie, beam=20)
    assert advanced == [10]
    assert len(found.codes) == 20
