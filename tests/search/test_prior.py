"""A search that begins at prior probabilities of items, against a loop over all items."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.identifiers.table import Identifiers
from callslip.search.beam import beam_search
from callslip.search.exact import exact_search
from callslip.search.forced import forced_scores
from callslip.search.prior import PriorWriter

WIDTH = 4


@dataclass
class Written:
    """The state of `Bigrams`."""

    queries: torch.Tensor
    written: int = 0

    def fork(self) -> Written:
        return replace(self)


class Bigrams(torch.nn.Module):
    """A code model whose scores depend on the query and the token before; one width for all levels, with END."""

    with_end = True

    def __init__(self, length: int, seed: int) -> None:
        super().__init__()
        self.length, self.widths = length, (WIDTH,) * length
        torch.manual_seed(seed)
        self.table = torch.nn.Parameter(torch.randn(length, WIDTH + 1, WIDTH + 1))

    def level(self, queries: torch.Tensor, level: int, before: torch.Tensor) -> torch.Tensor:
        return (self.table[level][before] * queries[:, None, None]).log_softmax(-1)

    def start(self, queries):
        none = torch.zeros((len(queries), 1), dtype=torch.long)
        return Written(queries), self.level(queries, 0, none)

    def advance(self, state, parents, tokens):
        state.written += 1
        return self.level(state.queries, state.written, tokens)


def table(seed: int, length: int, documents: int = 30) -> Identifiers:
    """Random codes, some of them short and some shared."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, WIDTH, (documents, length)).astype(np.int32)
    for code in codes[: documents // 4]:
        code[rng.integers(1, length + 1) :] = -1
    return Identifiers([f"d{n}" for n in range(documents)], codes)


def log_weights(queries: torch.Tensor, documents: int = 30) -> np.ndarray:
    return np.stack([np.random.default_rng(int(1000 * abs(q))).normal(0, 3, documents) for q in queries.tolist()])


def naive(identifiers: Identifiers, weights: np.ndarray, prefix: tuple[int, ...]) -> float:
    """The prior probability of a prefix: the largest of its items; of no prefix, 1."""
    _, codes = identifiers.in_row_order()
    p = np.exp(weights) / np.exp(weights).sum()
    below = [one for one, code in zip(p, codes.tolist(), strict=True) if tuple(code[: len(prefix)]) == prefix]
    return max(below) if prefix else 1.0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), length=st.integers(1, 4), trust=st.sampled_from([0.0, 0.5]))
def test_a_code_scores_as_its_prior_times_the_model(seed, length, trust):
    identifiers, model, query = table(seed, length), Bigrams(length, seed), torch.tensor([0.7])
    writer = PriorWriter(model, log_weights, identifiers, trust)
    weights, trie = log_weights(query)[0], identifiers.trie()
    for code in np.unique(identifiers.codes, axis=0).tolist():
        gains = forced_scores(writer, query, trie, code)
        plain = forced_scores(model, query, trie, code) if trust else np.zeros(length)
        for level, gain in enumerate(gains):
            if level and code[level - 1] < 0:
                assert gain == 0
                continue
            before, here = (naive(identifiers, weights, tuple(code[:n])) for n in (level, level + 1))
            assert gain == pytest.approx(np.log(here / before) + trust * plain[level], abs=1e-4)


@pytest.mark.parametrize("trust", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_beams_exact_search_and_one_query_agree_with_all_codes_scored(seed, trust):
    identifiers, model, queries = table(seed, 3), Bigrams(3, seed), torch.tensor([0.7, -1.2])
    writer, trie = PriorWriter(model, log_weights, identifiers, trust), identifiers.trie()
    together = beam_search(writer, queries, trie, 99)
    for n in range(2):
        codes = np.unique(identifiers.codes, axis=0).tolist()
        totals = {tuple(code): forced_scores(writer, queries[n : n + 1], trie, code).sum() for code in codes}
        best = sorted(totals, key=lambda code: -totals[code])
        for found in (together[n], exact_search(writer, queries[n : n + 1], trie, 99)):
            assert [tuple(code) for code in found.codes.tolist()] == best
            assert found.scores == pytest.approx([totals[code] for code in best], abs=1e-4)


def test_without_trust_the_model_is_not_asked():
    model = Bigrams(2, 0)
    model.start = lambda queries: pytest.fail("the model was asked")  # type: ignore[method-assign]
    identifiers = table(0, 2)
    found = beam_search(PriorWriter(model, log_weights, identifiers, 0.0), torch.tensor([0.5]), identifiers.trie(), 5)
    assert len(found[0].scores) == 5


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), length=st.integers(1, 4), beam=st.integers(1, 12))
def test_a_beam_holds_the_best_items_of_the_prior(seed, length, beam):
    """However many items share a prefix: none of the best as many items as there are beams is pruned."""
    identifiers, query = table(seed, length, 60), torch.tensor([0.7])
    weights = log_weights(query, 60)
    writer = PriorWriter(Bigrams(length, seed), lambda queries: weights, identifiers, 0.0)
    held = {tuple(code) for code in beam_search(writer, query, identifiers.trie(), beam)[0].codes.tolist()}
    _, codes = identifiers.in_row_order()
    assert {tuple(codes[row].tolist()) for row in np.argsort(-weights[0])[:beam]} <= held


def test_items_without_any_prior_leave_scores_finite():
    identifiers, query = table(1, 3), torch.tensor([0.7])
    weights = log_weights(query)
    weights[:, identifiers.rows[:12]] = -np.inf
    writer = PriorWriter(Bigrams(3, 1), lambda queries: weights, identifiers, 0.5)
    found = beam_search(writer, query, identifiers.trie(), 99)[0]
    assert len(found.scores) == identifiers.unique and np.isfinite(found.scores).all()
