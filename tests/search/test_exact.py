"""Exact search against plain loops and against a beam that prunes nothing; unconstrained search against all codes."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.search import ranked, score_every_code, step_by_step_beam

from callslip.decoders.writer import CodeWriter
from callslip.errors import CallslipError
from callslip.identifiers.table import END, Identifiers
from callslip.search import candidates
from callslip.search.beam import beam_search
from callslip.search.exact import exact_search, table_search
from callslip.search.trees import FreeTree


@dataclass
class State:
    queries: torch.Tensor
    written: int

    def fork(self):
        return copy(self)


class TableModel:
    """A model whose scores do not depend on what it wrote; a query is a row of its tables."""

    def __init__(self, tables):
        self.tables = tables
        self.asked: list[int] = []

    def start(self, queries):
        return State(queries, 1), self.tables[0][queries][:, None]

    def advance(self, state, parents, tokens):
        assert parents.shape == tokens.shape and len(parents) == len(state.queries)
        state.written += 1
        return self.tables[state.written - 1][state.queries][:, None].expand(-1, parents.shape[1], -1)

    def table(self, queries):
        self.asked.append(len(queries))
        return [table[queries] for table in self.tables]


class Untabled(TableModel):
    """The same scores, but nobody may know that they are a table."""

    @property
    def table(self):
        raise AttributeError


@dataclass
class Problem:
    widths: list[int]
    with_end: bool
    codes: list[tuple[int, ...]]
    tables: list[torch.Tensor]
    mask: np.ndarray | None

    def __post_init__(self):
        self.identifiers = Identifiers([str(row) for row in range(len(self.codes))], np.array(self.codes))
        self.trie = self.identifiers.trie()
        self.live = None if self.mask is None else self.trie.live(self.mask[self.identifiers.rows])

    def truth(self, query: int) -> list[tuple[tuple[int, ...], float]]:
        """Every possible code that a document may be found by, best first, ties by code."""
        totals = {}
        for row, code in enumerate(self.codes):
            if self.mask is None or self.mask[row]:
                stop = code.index(END) + 1 if END in code else len(code)
                totals[code] = sum(float(self.tables[level][query][code[level]]) for level in range(stop))
        return sorted(
            ((code, total) for code, total in totals.items() if total > -np.inf), key=lambda item: (-item[1], item[0])
        )

    def check(self, beams, wanted) -> None:
        assert list(zip(map(tuple, beams.codes.tolist()), beams.scores.tolist(), strict=True)) == wanted
        np.testing.assert_array_equal(self.trie.codes_of(beams.nodes), beams.codes)
        assert beams.levels.sum(axis=1).tolist() == beams.scores.tolist()
        assert not (beams.levels[:, 1:] * (beams.codes[:, :-1] == END)).any()  # nothing is scored after END


@st.composite
def problems(draw, lowest=-16, highest=0):
    """Scores are eighths: their sums are exact in float32, and ties are common. Some are impossible (-inf)."""
    length = draw(st.integers(1, 4))
    widths = [draw(st.integers(1, 4)) for _ in range(length)]
    with_end = draw(st.booleans())
    made = []
    for _ in range(draw(st.integers(1, 14))):
        stop = draw(st.integers(1, length)) if with_end else length
        made.append((*(draw(st.integers(0, widths[level] - 1)) for level in range(stop)), *[END] * (length - stop)))
    value = st.integers(lowest, highest).map(lambda n: n / 8)
    if draw(st.booleans()):
        value = value | st.just(-np.inf)
    tables = []
    for width in widths:
        size = 3 * (width + with_end)
        tables.append(torch.tensor(draw(st.lists(value, min_size=size, max_size=size))).view(3, width + with_end))
    mask = draw(st.none() | st.lists(st.booleans(), min_size=len(made), max_size=len(made)).map(np.array))
    return Problem(widths, with_end, made, tables, mask)


COUNTS = st.integers(1, 5) | st.just(100)


@settings(max_examples=150, deadline=None)
@given(problems(highest=16), COUNTS)
def test_table_search_is_the_sum_over_every_code(problem, n):
    found = table_search(problem.tables, problem.trie, n, problem.live)
    assert len(found) == 3
    for query, beams in enumerate(found):
        problem.check(beams, problem.truth(query)[:n])


@settings(max_examples=150, deadline=None)
@given(problems(highest=16), COUNTS)
def test_codes_laid_out_beforehand_give_the_same(problem, n):
    whole = [code for code in problem.codes if END not in code]
    if not whole:
        return
    identifiers = Identifiers([str(row) for row in range(len(whole))], np.array(whole))
    leaves = np.unique(np.array(whole), axis=0)
    trie = identifiers.trie()
    live = trie.live(np.arange(len(whole)) % 2 == 0)
    for mask in (None, live):
        plain = table_search(problem.tables, trie, n, mask)
        for one, other in zip(plain, table_search(problem.tables, trie, n, mask, leaves=leaves), strict=True):
            np.testing.assert_array_equal(one.nodes, other.nodes)
            np.testing.assert_array_equal(one.codes, other.codes)
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
            np.testing.assert_allclose(one.levels, other.levels, atol=1e-5)


@settings(max_examples=100, deadline=None)
@given(problems(), COUNTS, st.sampled_from([1, 2, 64]))
def test_all_searches_agree_where_nothing_is_pruned(problem, n, chunk):
    model = TableModel(problem.tables)
    live = None if problem.live is None else [problem.live]
    together = beam_search(model, torch.arange(3), problem.trie, 100, live)
    for query, wide in enumerate(together):
        truth = problem.truth(query)
        problem.check(wide, truth)
        one = torch.tensor([query])
        problem.check(beam_search(model, one, problem.trie, 100, live)[0], truth)
        problem.check(exact_search(model, one, problem.trie, n, problem.live, chunk=chunk), truth[:n])


@settings(max_examples=40, deadline=None)
@given(problems(), COUNTS)
def test_best_codes_takes_the_table_where_there_is_one(problem, n):
    queries = torch.tensor([2, 0, 1, 1])
    model = TableModel(problem.tables)
    model.start = None  # a lookup is enough
    tabled = candidates.best_codes(model, queries, problem.trie, n, problem.live, exact=True)
    assert sum(model.asked) == 4
    untabled = candidates.best_codes(Untabled(problem.tables), queries, problem.trie, n, problem.live, exact=True)
    for query, first, second in zip(queries.tolist(), tabled, untabled, strict=True):
        problem.check(first, problem.truth(query)[:n])
        problem.check(second, problem.truth(query)[:n])


def test_best_codes_goes_on_in_parts(monkeypatch):
    """No more than ROWS beams at once, and the lists come back in the order of the queries."""
    monkeypatch.setattr(candidates, "ROWS", 6)
    rng = np.random.default_rng(0)
    tables = [torch.from_numpy(rng.integers(-40, 0, (9, 5)).astype(np.float32)) for _ in range(2)]
    table = Identifiers([str(row) for row in range(25)], np.array(list(product(range(5), repeat=2))))
    model = TableModel(tables)
    lists = candidates.best_codes(model, torch.arange(9), table.trie(), 3, exact=True)
    assert model.asked == [2, 2, 2, 2, 1]
    for query, beams in enumerate(lists):
        total = (tables[0][query][:, None] + tables[1][query][None]).flatten()
        assert beams.nodes.tolist() == (-total).argsort(stable=True)[:3].tolist()


@pytest.mark.parametrize("search", ["beam", "exact", "table"])
def test_scores_that_are_not_numbers_are_an_error(search):
    tables = [torch.tensor([[-1.0, -2.0]]), torch.tensor([[float("nan"), -1.0]])]
    trie = Identifiers(list("abc"), np.array([[0, 0], [0, 1], [1, 1]])).trie()
    model = (TableModel if search == "table" else Untabled)(tables)
    with pytest.raises(CallslipError, match="scores are NaN"):
        candidates.best_codes(model, torch.tensor([0]), trie, 1, exact=search != "beam")


def writer(widths, with_end: bool, seed: int) -> CodeWriter:
    torch.manual_seed(seed)
    model = CodeWriter(8, widths, width=16, layers=1, heads=2, memory_slots=2, with_end=with_end)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


@settings(max_examples=40, deadline=None)
@given(problems(), COUNTS, st.integers(0, 5))
def test_exact_search_is_brute_force_under_a_mask(problem, n, seed):
    """A model whose scores do depend on what it wrote."""
    model = writer(problem.widths, problem.with_end, seed)
    query = torch.randn(8, generator=torch.Generator().manual_seed(seed))
    allowed = [code for row, code in enumerate(problem.codes) if problem.mask is None or problem.mask[row]]
    truth = score_every_code(model, query, sorted(set(allowed)))
    beams = exact_search(model, query[None], problem.trie, n, problem.live, chunk=2)
    found = list(map(tuple, beams.codes.tolist()))
    assert len(found) == len(set(found)) == min(n, len(truth))
    np.testing.assert_allclose(beams.scores, [truth[code] for code in found], atol=1e-4)
    np.testing.assert_allclose(beams.scores, [truth[code] for code in ranked(truth)[:n]], atol=1e-4)
    np.testing.assert_array_equal(problem.trie.codes_of(beams.nodes), beams.codes)


def every_code(widths, with_end: bool) -> list[tuple[int, ...]]:
    """All that a model could write: END ends a code, also before its first token."""
    length = len(widths)
    made = list(product(*map(range, widths)))
    for stop in range(length) if with_end else ():
        made += [(*code, *[END] * (length - stop)) for code in product(*map(range, widths[:stop]))]
    return sorted(made)


SHAPES = st.tuples(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.booleans())


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.data())
def test_free_search_with_a_wide_beam_writes_every_code(shape, data):
    """Ties by code, also between codes of different lengths."""
    widths, with_end = shape
    value = st.integers(-8, 0).map(lambda n: n / 8)
    sizes = [2 * (width + with_end) for width in widths]
    tables = [torch.tensor(data.draw(st.lists(value, min_size=n, max_size=n))).view(2, -1) for n in sizes]
    all_codes = every_code(widths, with_end)
    problem = Problem(widths, with_end, all_codes, tables, None)
    for query, beams in enumerate(
        beam_search(TableModel(tables), torch.arange(2), FreeTree(tuple(widths), with_end), 200)
    ):
        found = list(zip(map(tuple, beams.codes.tolist()), beams.scores.tolist(), strict=True))
        assert found == problem.truth(query)
        assert (beams.nodes == -1).all()


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(1, 4), st.integers(-1, 5))
def test_free_search_with_a_narrow_beam_is_a_plain_loop(shape, beam, seed):
    widths, with_end = shape
    model = writer(widths, with_end, seed)
    if seed < 0:  # every token as likely as any other: nothing but ties
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
    queries = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed + 1))
    lists = beam_search(model, queries, FreeTree(tuple(widths), with_end), beam)
    for query, beams in zip(queries, lists, strict=True):
        wanted = step_by_step_beam(model, query, every_code(widths, with_end), beam)
        assert list(map(tuple, beams.codes.tolist())) == wanted
        truth = score_every_code(model, query, wanted)
        np.testing.assert_allclose(beams.scores, [truth[code] for code in wanted], atol=1e-4)


def test_codes_that_nobody_has_lead_to_no_documents():
    table = Identifiers(list("abcd"), np.array([[0, 1], [2, 2], [0, 1], [1, END]]))
    model = writer([3, 3], True, 0)
    (free,) = beam_search(model, torch.randn(1, 8), FreeTree((3, 3), with_end=True), 100)
    assert len(free.codes) == 13
    rows, beam = candidates.candidates(free, table, None)
    assert len(rows) == len(beam) == 0  # no trie, so no code is known to be anybody's
    free.nodes = table.trie().leaves_of(free.codes)
    assert sorted(map(tuple, free.codes[free.nodes >= 0].tolist())) == [(0, 1), (1, END), (2, 2)]
    rows, beam = candidates.candidates(free, table, None)
    assert sorted(rows.tolist()) == [0, 1, 2, 3]
    _, own = table.in_row_order()
    np.testing.assert_array_equal(free.codes[beam], own[rows])
