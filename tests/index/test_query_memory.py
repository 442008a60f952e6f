"""The memory of earlier queries against a naive model: a dictionary of texts and sets of documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.index.memory import Memory
from callslip.search.fusion import KERNELS, NEIGHBOURS

LENGTH, DOCUMENTS = 3, 8
TEXTS = [f"query {n}" for n in range(6)]
CODES = np.random.default_rng(0).integers(0, 256, (len(TEXTS), LENGTH))
SCALES = np.random.default_rng(1).uniform(0.1, 0.3, len(TEXTS)).astype(np.float16)

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("learn"),
            st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, DOCUMENTS - 1), max_size=3)), max_size=4),
        ),
        st.tuples(st.just("keep"), st.sets(st.integers(0, DOCUMENTS - 1), min_size=1)),
    ),
    max_size=6,
)


def carried_out(planned):
    """The memory, and for each text the names of its answers; `names` are the documents that are left, by row."""
    memory, model, names = Memory(LENGTH), {}, list(range(DOCUMENTS))
    for kind, what in planned:
        if kind == "learn":
            known = [(query, [row for row in rows if row < len(names)]) for query, rows in what]
            numbers = [query for query, _ in known]
            memory.add([TEXTS[n] for n in numbers], CODES[numbers], SCALES[numbers], [rows for _, rows in known])
            for query, rows in known:
                for row in rows:
                    answers = model.setdefault(query, [])
                    answers += [names[row]] * (names[row] not in answers)
        else:
            rows = np.array(sorted(row for row in what if row < len(names)), np.int64)
            if not len(rows):
                continue
            memory.keep(rows)
            names = [names[row] for row in rows]
            model = {q: [name for name in a if name in names] for q, a in model.items()}
            model = {q: a for q, a in model.items() if a}
    return memory, model, names


@given(steps)
def test_it_holds_what_a_dictionary_would_hold(planned):
    memory, model, names = carried_out(planned)
    held = {text: {names[row] for row in memory.answers(at)} for at, text in enumerate(memory.texts)}
    assert held == {TEXTS[query]: set(answers) for query, answers in model.items()}
    assert len(memory.rows) == sum(len(answers) for answers in model.values())  # every answer once
    for at, text in enumerate(memory.texts):
        np.testing.assert_array_equal(memory.codes[at], CODES[TEXTS.index(text)])
        assert memory.scales[at] == SCALES[TEXTS.index(text)]


@given(steps, st.lists(st.booleans(), min_size=DOCUMENTS, max_size=DOCUMENTS), st.integers(0, 5) | st.none())
def test_votes_are_the_naive_ones(planned, allowed, asked):
    memory, model, names = carried_out(planned)
    table = np.random.default_rng(2).normal(size=(LENGTH, 256)).astype(np.float32)
    mask = np.array(allowed[: len(names)])
    found = memory.ask(table, mask, text=None if asked is None else TEXTS[asked].upper())
    similarity = {}
    for query, answers in model.items():
        if any(mask[names.index(name)] for name in answers):
            value = sum(float(table[level][token]) for level, token in enumerate(CODES[query])) * float(SCALES[query])
            similarity[query] = 1.0 if query == asked else value
    assert len(similarity) <= NEIGHBOURS
    expected = {row for row in range(len(names)) if mask[row] and any(names[row] in model[q] for q in similarity)}
    assert set(found.rows.tolist()) == expected
    for at, row in enumerate(found.rows.tolist()):
        voters = [q for q in similarity if names[row] in model[q]]
        best = max(similarity[q] for q in voters)
        assert found.nearest[at] == pytest.approx(best, rel=1e-3, abs=1e-3)
        assert memory.texts[int(found.by[at])] in [TEXTS[q] for q in voters]
        for k, width in enumerate(KERNELS):
            top = max(similarity.values())
            total = sum(np.exp((s - top) / width) for s in similarity.values())
            votes = sum(np.exp((similarity[q] - 1) / width) for q in voters)
            share = sum(np.exp((similarity[q] - top) / width) for q in voters) / total
            assert found.kernels[at, k] == pytest.approx(votes, rel=2e-2, abs=1e-9)
            assert found.shares[at, k] == pytest.approx(share, rel=2e-2, abs=1e-6)


@given(steps, st.sets(st.integers(0, DOCUMENTS - 1), min_size=1))
def test_a_mask_and_dropping_the_others_are_the_same(planned, wanted):
    """What is deleted or filtered out takes no part in the votes, as if it had never been."""
    memory, _, names = carried_out(planned)
    rows = np.array(sorted(row for row in wanted if row < len(names)), np.int64)
    if not len(rows):
        return
    table = np.random.default_rng(3).normal(size=(LENGTH, 256)).astype(np.float32)
    mask = np.zeros(len(names), bool)
    mask[rows] = True
    masked = memory.ask(table, mask)
    memory.keep(rows)
    dropped = memory.ask(table)
    np.testing.assert_array_equal(masked.rows, rows[dropped.rows])
    np.testing.assert_allclose(masked.shares, dropped.shares)
    np.testing.assert_allclose(masked.kernels, dropped.kernels)


@given(steps)
def test_learning_the_same_again_changes_nothing(planned):
    memory, model, names = carried_out(planned)
    numbers = list(model)
    again = [[names.index(name) for name in model[q]] for q in numbers]
    assert memory.with_more([TEXTS[q] for q in numbers], CODES[numbers], SCALES[numbers], again) is memory


def test_a_saved_memory_is_the_same(tmp_path):
    memory, _, _ = carried_out([("learn", [(0, [1, 2]), (3, [2]), (0, [4])])])
    memory.save(tmp_path / "memory")
    again = Memory.load(tmp_path / "memory")
    assert again.texts == memory.texts == ["query 0", "query 3"]
    assert again.answers(0) == [1, 2, 4]
    np.testing.assert_array_equal(again.codes, memory.codes)


def test_queries_follow_an_updated_document():
    memory, _, _ = carried_out([("learn", [(0, [1, 2])])])
    memory.follow({1: 8})
    assert memory.answers(0) == [8, 2]
