"""A table with later codes beside it against a table that is built of all codes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.decoders.writer import CodeWriter
from callslip.errors import BadSetting
from callslip.identifiers import grown
from callslip.identifiers.table import END, Identifiers
from callslip.search import candidates
from callslip.search.beam import beam_search
from callslip.search.exact import exact_search, table_search


@st.composite
def histories(draw):
    """Codes of a first table and of several additions, few tokens so that prefixes and codes are shared; some short."""
    length, width = draw(st.integers(1, 4)), draw(st.sampled_from([2, 3, 5, 300]))
    short = draw(st.booleans())
    code = st.lists(st.integers(0, width - 1), min_size=1 if short else length, max_size=length)
    padded = code.map(lambda tokens: [*tokens, *[END] * (length - len(tokens))])
    first = draw(st.lists(padded, min_size=0, max_size=12))
    later = draw(st.lists(st.lists(padded, min_size=1, max_size=5), min_size=1, max_size=4))
    return length, width, first, later


def tables(history) -> tuple[Identifiers, Identifiers]:
    """The grown table, and the one that is built of all codes."""
    length, _, first, later = history
    table = Identifiers([f"d{n}" for n in range(len(first))], np.array(first, np.int32).reshape(-1, length))
    for more in later:
        table = table.with_later([f"d{len(table) + n}" for n in range(len(more))], np.array(more, np.int32))
    everything = [*first, *(code for more in later for code in more)]
    return table, Identifiers([f"d{n}" for n in range(len(everything))], np.array(everything, np.int32))


def writer(length, width, seed=0) -> CodeWriter:
    torch.manual_seed(seed)
    model = CodeWriter(8, [width] * length, width=16, layers=1, heads=2, memory_slots=2, with_end=True)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


@settings(deadline=None)
@given(histories(), st.data())
def test_every_node_is_that_of_the_whole_trie(history, data):
    table, truth = tables(history)
    trie, whole = table.trie(), truth.trie()
    assert trie.growth is not None and trie.node_counts == whole.node_counts and trie.count == whole.count
    for level in range(trie.length):
        nodes = np.arange(len(whole.tokens[level]))
        np.testing.assert_array_equal(trie.tokens[level][nodes], whole.tokens[level])
        np.testing.assert_array_equal(np.asarray(trie.tokens[level]), whole.tokens[level])
        np.testing.assert_array_equal(trie.below[level].all(), whole.below[level].all())
        np.testing.assert_array_equal(trie.parents(level), whole.parents(level))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(truth), max_size=len(truth))))
    for mine, theirs in zip(trie.live(mask), whole.live(mask), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(trie.leaves_of(truth.codes), whole.leaves_of(truth.codes))
    leaves = np.arange(truth.unique)
    np.testing.assert_array_equal(trie.codes_of(leaves), whole.codes_of(leaves))


@settings(deadline=None)
@given(histories())
def test_every_document_is_where_the_whole_table_has_it(history):
    table, truth = tables(history)
    positions = np.arange(len(truth))
    assert len(table) == len(truth) and table.unique == truth.unique and table.length == truth.length
    np.testing.assert_array_equal(table.rows_at(positions), truth.rows)
    np.testing.assert_array_equal(table.codes_at(positions), truth.codes)
    for code in truth.codes.tolist():
        for size in range(1, len(code) + 1):
            assert table.prefix_slice(code[:size]) == truth.prefix_slice(code[:size])
    assert "codes" not in table.__dict__ and "rows" not in table.__dict__  # nothing was merged until now
    np.testing.assert_array_equal(table.rows, truth.rows)
    np.testing.assert_array_equal(table.codes, truth.codes)
    assert table.doc_ids == truth.doc_ids and table.widths == truth.widths
    np.testing.assert_array_equal(table.rows_at(positions), truth.rows)
    whole = table.whole()
    assert whole.trie().growth is None and whole.doc_ids == truth.doc_ids


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(1, 6), st.data())
def test_searches_find_the_same(history, beam, data):
    """One query and several, with and without a mask, by the beam and exactly: hits and scores, bit for bit."""
    length, width, _, _ = history
    table, truth = tables(history)
    model = writer(length, width)
    queries = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(truth), max_size=len(truth))))
    for live in (False, True):
        both = []
        for one in (table, truth):
            masks = one.trie().live(mask[one.rows_at(np.arange(len(one)))]) if live else None
            found = beam_search(model, queries, one.trie(), beam, None if masks is None else [masks])
            found += beam_search(model, queries[:1], one.trie(), beam, None if masks is None else [masks])
            found.append(exact_search(model, queries[:1], one.trie(), beam, masks))
            scores = [torch.randn(1, width + 1, generator=torch.Generator().manual_seed(n)) for n in range(length)]
            found += table_search(scores, one.trie(), beam, masks)
            rows = [candidates.candidates(beams, one, mask if live else None) for beams in found]
            both.append((found, rows))
        for mine, theirs in zip(*(found for found, _ in both), strict=True):
            for name in ("nodes", "scores", "levels", "codes"):
                np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        for mine, theirs in zip(*(rows for _, rows in both), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_search_of_one_query_without_short_codes_runs_in_numpy_too():
    rng = np.random.default_rng(0)
    codes, later = rng.integers(0, 4, (60, 3)), rng.integers(0, 5, (20, 3))
    table = Identifiers([f"d{n}" for n in range(60)], codes).with_later([f"e{n}" for n in range(20)], later)
    truth = Identifiers([*(f"d{n}" for n in range(60)), *(f"e{n}" for n in range(20))], np.concatenate([codes, later]))
    model, query = CodeWriter(8, [5] * 3, width=16, layers=1, heads=2).eval(), torch.randn(1, 8)
    (mine,), (theirs,) = (beam_search(model, query, one.trie(), 7) for one in (table, truth))
    np.testing.assert_array_equal(mine.nodes, theirs.nodes)
    np.testing.assert_array_equal(mine.scores, theirs.scores)


def test_an_addition_does_not_read_the_table(monkeypatch):
    table = Identifiers([f"d{n}" for n in range(9)], np.arange(9).reshape(9, 1))
    table.trie()
    monkeypatch.delitem(table.__dict__, "doc_ids")
    for name in ("_merged", "_merged_names"):
        monkeypatch.setattr(Identifiers, name, lambda *_: pytest.fail("the table was merged"))
    more = table.with_later(["new", "d3"], [[4], [20]])
    assert more.trie().node_counts == (10,) and more.rows_at(np.array([4, 5, 10])).tolist() == [4, 9, 10]


def test_a_doc_id_that_comes_again_renames_the_earlier_document():
    table = Identifiers(["a", "b"], [[1], [0]]).with_later(["a"], [[2]]).with_later(["c", "a"], [[0], [1]])
    doc_ids, codes = table.in_row_order()
    assert doc_ids == ["deleted a 0", "b", "deleted a 2", "c", "a"]
    assert codes[:, 0].tolist() == [1, 0, 2, 0, 1]
    assert table.position_of("a") == 3 and table.bucket([1]) == slice(2, 4)


def test_many_later_codes_are_merged(monkeypatch, tmp_path):
    monkeypatch.setattr(grown, "LARGE", 3)
    table = Identifiers(["a"], [[1, 1]])
    for n in range(3):
        table = table.with_later([f"n{n}"], [[n, 0]])
        assert table.trie().growth is not None
    table = table.with_later(["last"], [[0, 1]])
    assert table.trie().growth is None and len(table) == 5
    table = table.with_later(["longer"], [[0, 1, 2]])
    assert table.length == 3 and table.code_of("longer") == (0, 1, 2) and table.code_of("n2") == (2, 0)
    table = table.with_later(["shorter"], [[0]])
    assert table.trie().growth is not None and table.code_of("shorter") == (0,)
    table.save(tmp_path)
    again = Identifiers.load(tmp_path)
    assert again.doc_ids == table.doc_ids and (again.codes == table.codes).all()
    with pytest.raises(BadSetting, match="2 doc_ids for 1 codes"):
        table.with_later(["x", "y"], [[0, 1, 2]])
