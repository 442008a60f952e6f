"""Several codes a document against naive loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.identifiers import external
from callslip.index import entries as module
from callslip.index.entries import Entries

LENGTH = 4


@st.composite
def some_entries(draw):
    """Entries of a few documents, each with at least one, and few tokens so that prefixes are shared."""
    documents = draw(st.integers(1, 6))
    owners = [*range(documents), *draw(st.lists(st.integers(0, documents - 1), max_size=8))]
    code = st.lists(st.integers(0, 2), min_size=LENGTH, max_size=LENGTH)
    codes = draw(st.lists(code, min_size=len(owners), max_size=len(owners)))
    scales = np.linspace(0.5, 1.5, len(owners)).astype(np.float16)
    return np.array(codes, np.uint8), scales, np.array(owners), draw(st.integers(1, 2)), documents


def table_of(seed=0):
    return np.random.default_rng(seed).normal(size=(LENGTH, 256)).astype(np.float32)


def naive_scores(table, codes, scales):
    return [
        sum(float(table[level][t]) for level, t in enumerate(c)) * float(s) for c, s in zip(codes, scales, strict=True)
    ]


@given(some_entries(), st.integers(1, 12), st.data())
def test_open_reads_the_best_prefixes_until_there_are_enough(given_, wanted, data):
    codes, scales, owners, tree, documents = given_
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=documents, max_size=documents)))
    entries, table = Entries(codes, scales, owners, tree), table_of()
    opened = entries.open(table, wanted, mask)
    assert mask[entries.owners[opened]].all()
    prefixes = {tuple(code[:tree]) for code in codes.tolist()}
    ranked = sorted(prefixes, key=lambda p: -sum(float(table[level][t]) for level, t in enumerate(p)))
    expected = []
    for prefix in ranked:
        if len(expected) >= wanted and wanted < len(codes):
            break
        allowed = zip(codes.tolist(), owners, strict=True)
        expected += [(tuple(c), int(o)) for c, o in allowed if tuple(c[:tree]) == prefix and mask[o]]
    found = [(tuple(entries.codes[at].tolist()), int(entries.owners[at])) for at in opened]
    assert sorted(found) == sorted(expected)


@given(some_entries())
def test_a_document_is_as_near_as_its_nearest_code(given_):
    codes, scales, owners, tree, documents = given_
    entries, table = Entries(codes, scales, owners, tree), table_of(1)
    scores = naive_scores(table, codes.tolist(), scales)
    best = [max(s for s, o in zip(scores, owners, strict=True) if o == row) for row in range(documents)]
    rows, found = entries.best_of_rows(*(lambda all_: (all_, entries.scores(table, all_)))(entries.open(table, None)))
    assert rows.tolist() == list(range(documents))
    assert found == pytest.approx(best, rel=1e-3, abs=1e-3)
    backwards = np.arange(documents)[::-1]
    assert entries.scores_of_rows(table, backwards) == pytest.approx(best[::-1], rel=1e-3, abs=1e-3)


@given(some_entries(), st.data())
def test_documents_that_are_added_and_dropped(given_, data):
    codes, scales, owners, tree, documents = given_
    half = len(codes) - data.draw(st.integers(0, len(codes) - documents))
    entries = Entries(codes[:half], scales[:half], owners[:half], tree)
    entries = entries.with_more(codes[half:], scales[half:], owners[half:])
    np.testing.assert_array_equal(entries.codes_of_rows(documents), codes[:documents])  # its text's, which came first
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, documents - 1), min_size=1))))
    kept = entries.kept(rows)
    expected = [(tuple(c), rows.tolist().index(o)) for c, o in zip(codes.tolist(), owners, strict=True) if o in rows]
    found = [(tuple(c), o) for c, o in zip(kept.codes.tolist(), kept.owners.tolist(), strict=True)]
    assert sorted(found) == sorted(expected)


@given(some_entries())
def test_saved_entries_are_the_same(given_):
    import tempfile
    from pathlib import Path

    codes, scales, owners, tree, documents = given_
    entries, table = Entries(codes, scales, owners, tree), table_of(2)
    with tempfile.TemporaryDirectory() as folder:
        entries.save(Path(folder))
        again = Entries.load(Path(folder), tree)
        opened = entries.open(table, 2)
        np.testing.assert_array_equal(opened, again.open(table, 2))
        np.testing.assert_array_equal(entries.scores(table, opened), again.scores(table, opened))
        np.testing.assert_array_equal(entries.codes_of_rows(documents), again.codes_of_rows(documents))


@given(some_entries(), st.integers(1, 12), st.data())
def test_layers_are_searched_as_one_table(given_, wanted, data):
    """Entries that were added one by one are found, with the same scores, as if they had been sorted together."""
    codes, scales, owners, tree, documents = given_
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=documents, max_size=documents)))
    mask = data.draw(st.sampled_from([None, mask]))
    cuts = sorted({0, *data.draw(st.sets(st.integers(1, len(codes)))), len(codes)})
    whole, table = Entries(codes, scales, owners, tree), table_of(3)
    layered = Entries(codes[: cuts[1]], scales[: cuts[1]], owners[: cuts[1]], tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALL", data.draw(st.integers(0, 3)))
        patch.setattr(module, "LARGE", data.draw(st.integers(0, 6)))
        for start, end in itertools.pairwise(cuts[1:]):
            layered = layered.with_more(codes[start:end], scales[start:end], owners[start:end])
    for many in (wanted, None):
        one, other = whole.open(table, many, mask), layered.open(table, many, mask)
        rows, best = whole.best_of_rows(one, whole.scores(table, one))
        same_rows, same_best = layered.best_of_rows(other, layered.scores(table, other))
        np.testing.assert_array_equal(rows, same_rows)
        np.testing.assert_array_equal(best, same_best)
    every = np.arange(documents)
    np.testing.assert_array_equal(whole.scores_of_rows(table, every), layered.scores_of_rows(table, every))
    np.testing.assert_array_equal(whole.codes_of_rows(documents), layered.codes_of_rows(documents))
    assert len(layered.one_layer().layers) == 1
    np.testing.assert_array_equal(whole.codes, layered.one_layer().codes)


def test_additions_leave_the_first_layer_alone_and_are_in_few_layers():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (6000, LENGTH)).astype(np.uint8)
    scales = np.ones(6000, np.float16)
    entries = Entries(codes[:1000], scales[:1000], np.arange(1000), 2)
    first = entries.layers[0]
    for at in range(1000, 6000):
        entries = entries.with_more(codes[at : at + 1], scales[at : at + 1], np.array([at]))
    assert entries.layers[0] is first and 1 < len(entries.layers) <= 6
    np.testing.assert_array_equal(entries.codes_of_rows(6000), codes)


@given(some_entries(), st.sampled_from([1, 3, 1000]), st.data())
def test_entries_of_blocks_are_those_of_the_whole(given_, held, data):
    """In memory, and sorted on disk, where they are mapped."""
    codes, scales, owners, tree, documents = given_
    texts = np.arange(len(codes)) < documents
    cuts = sorted(data.draw(st.lists(st.integers(0, len(codes)), max_size=3)))
    by_code = {tuple(code): scale for code, scale in zip(codes.tolist(), scales, strict=True)}
    scales = np.array([by_code[tuple(code)] for code in codes.tolist()], np.float16)
    whole = Entries(codes, scales, owners, tree, texts).layers[0]
    blocks = [(codes[some], owners[some], texts[some]) for some in np.split(np.arange(len(codes)), cuts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external, "HELD", held)
        scales_of = lambda some: np.array([by_code[tuple(code)] for code in some.tolist()])  # noqa: E731
        (layer,) = Entries.of_blocks(iter(blocks), LENGTH, tree, scales_of).layers
    for name in ("codes", "scales", "owners", "texts", "keys"):
        mine, theirs = getattr(layer, name), getattr(whole, name)
        assert mine.dtype == theirs.dtype and mine.flags.c_contiguous
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    assert isinstance(layer.codes, np.memmap) == (len(codes) > max(held, 1))
