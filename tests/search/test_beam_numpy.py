"""One query in NumPy against the general search: the same codes, scores and order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.errors import CallslipError
from callslip.identifiers.table import END, Identifiers
from callslip.search import beam as module
from callslip.search.beam import Beams, beam_search
from callslip.search.observer import watched


class Table:
    """A model that gives the log-probabilities it was made with: [L][K], rounded so that many codes are level."""

    def __init__(self, levels: list[list[float]]) -> None:
        self.levels = [torch.tensor(level, dtype=torch.float32) for level in levels]

    def start(self, queries):
        return Written(1), self.levels[0].expand(len(queries), 1, -1)

    def advance(self, state, parents, tokens):
        state.written += 1
        return self.levels[state.written - 1].expand(*parents.shape, -1)


class Written:
    def __init__(self, written: int) -> None:
        self.written = written

    def fork(self) -> Written:
        return Written(self.written)


def generally(model, trie, beam: int, live=None) -> Beams:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "is_single", lambda *_: False)
        return beam_search(model, torch.zeros(1, 3), trie, beam, live)[0]


scores = st.sampled_from([-0.5, -1.0, -1.5, -3.0, -20.0, -np.inf])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_one_query_is_answered_as_the_general_search_answers_it(data):
    length, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    codes = data.draw(st.lists(st.tuples(*[st.integers(0, width - 1)] * length), min_size=1, max_size=80))
    model = Table(
        data.draw(st.lists(st.lists(scores, min_size=width, max_size=width), min_size=length, max_size=length))
    )
    table = Identifiers([str(n) for n in range(len(codes))], np.array(codes))
    trie, live = table.trie(), None
    if data.draw(st.booleans()):
        allowed = data.draw(st.lists(st.booleans(), min_size=len(codes), max_size=len(codes)))
        live = trie.live(np.array(allowed)[table.rows])
    beam = data.draw(st.integers(1, 40))
    (found,), expected = beam_search(model, torch.zeros(1, 3), trie, beam, live), generally(model, trie, beam, live)
    # Codes that nothing can write are dropped, and which of them took a place in the beam is nobody's concern.
    for name in ("nodes", "scores", "levels", "codes"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
        assert getattr(found, name).dtype == getattr(expected, name).dtype


def test_it_takes_that_way_for_one_query_and_codes_of_one_length_only(monkeypatch):
    asked = []
    plain = module.search_one
    monkeypatch.setattr(module, "search_one", lambda *args: asked.append(1) or plain(*args))
    model = Table([[-1.0, -2.0, -3.0]] * 2)
    even = Identifiers(["a", "b"], np.array([(0, 1), (1, 1)])).trie()
    short = Identifiers(["a", "b"], np.array([(0, END), (1, 1)])).trie()
    beam_search(model, torch.zeros(1, 3), even, 2)
    assert len(asked) == 1
    beam_search(model, torch.zeros(2, 3), even, 2)
    beam_search(model, torch.zeros(1, 3), short, 2)
    beam_search(model, torch.zeros(1, 3), even, 2, renormalise=True)
    assert len(asked) == 1


def test_scores_that_are_not_numbers_are_refused():
    codes = np.stack(np.meshgrid(np.arange(40), np.arange(2)), axis=-1).reshape(-1, 2)
    trie = Identifiers([str(n) for n in range(len(codes))], codes).trie()
    for place in (0, 39):
        first = [-float(n) for n in range(40)]
        first[place] = float("nan")
        with pytest.raises(CallslipError, match="scores are NaN"):
            beam_search(Table([first, [-1.0, -2.0]]), torch.zeros(1, 3), trie, 2)


def test_it_can_be_watched_and_ended():
    seen = []

    def watch(level, nodes, totals):
        seen.append((level, nodes.tolist(), totals.tolist()))
        if level == 1:
            raise KeyboardInterrupt

    trie = Identifiers(["a", "b"], np.array([(0, 1, 0), (1, 1, 0)])).trie()
    with watched(watch), pytest.raises(KeyboardInterrupt):
        beam_search(Table([[-2.0, -1.0]] * 3), torch.zeros(1, 3), trie, 2)
    assert seen == [(0, [[1, 0]], [[-1.0, -2.0]]), (1, [[1, 0]], [[-2.0, -3.0]])]
