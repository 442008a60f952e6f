"""The sorted table and its trie against dictionaries of tuples."""

import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import identifiers as naive

from callslip.errors import BadSetting, CallslipError, IndexCorrupt, NotAnIndex
from callslip.identifiers import END, Identifiers, code_to_text, text_to_code
from callslip.identifiers.trie import Offsets

token = st.one_of(st.integers(0, 3), st.sampled_from([255, 256, 65_536, 2**31 - 1]))
codes_of_any_length = st.lists(st.lists(token, max_size=4), max_size=25)


@st.composite
def named(draw, codes=codes_of_any_length):
    """Codes of different lengths, and a doc_id for each that is not in their order."""
    sequences = draw(codes)
    names = draw(st.permutations([f"d{i}" for i in range(len(sequences))]))
    return names, sequences


def same(one, other):
    return (
        one.doc_ids == other.doc_ids and np.array_equal(one.codes, other.codes) and np.array_equal(one.rows, other.rows)
    )


@given(named())
def test_order_and_slices_are_those_of_a_dictionary(data):
    names, sequences = data
    table = Identifiers.from_sequences(names, sequences)
    padded = [naive.padded(code, table.length) for code in sequences]
    plain = naive.sorted_table(names, padded)
    assert [tuple(code) for code in table.codes.tolist()] == [code for code, _, _ in plain]
    assert table.rows.tolist() == [row for _, row, _ in plain]
    assert table.doc_ids == [doc_id for _, _, doc_id in plain]
    assert len(table) == len(names) and table.unique == len(set(padded))
    assert table.widths == tuple(max((c[level] for c in padded), default=END) + 1 for level in range(table.length))
    for groups in naive.by_prefix(plain, table.length):
        for prefix, positions in groups.items():
            found = table.prefix_slice(prefix)
            assert list(range(found.start, found.stop)) == positions
    for name, code in zip(names, sequences):
        assert table.code_of(name) == tuple(code) and name in table
        sharing = {n for n, other in zip(names, sequences) if list(other) == list(code)}
        assert set(table.doc_ids[table.bucket(code)]) == sharing
    starts = table.buckets()
    members = [table.doc_ids[a:b] for a, b in itertools.pairwise(starts)]
    assert [doc for bucket in members for doc in bucket] == table.doc_ids
    assert all(len({table.code_of(doc) for doc in bucket}) == 1 for bucket in members)


@given(named(), st.lists(st.integers(-1, 5), max_size=4))
def test_any_prefix_even_of_no_document(data, prefix):
    names, sequences = data
    table = Identifiers.from_sequences(names, sequences, length=4)
    found = table.prefix_slice(prefix)
    expected = {n for n, c in zip(names, sequences) if naive.padded(c, 4)[: len(prefix)] == tuple(prefix)}
    assert set(table.doc_ids[found]) == expected


@given(named(), st.data())
def test_trie_is_the_dictionary_of_prefixes(data, more):
    names, sequences = data
    table = Identifiers.from_sequences(names, sequences)
    plain = naive.sorted_table(names, [naive.padded(code, table.length) for code in sequences])
    levels = naive.by_prefix(plain, table.length)
    trie = table.trie()
    assert trie is table.trie()
    assert trie.node_counts == tuple(map(len, levels))
    keep = np.array(more.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table))), dtype=bool)
    live = trie.live(keep)
    for level, groups in enumerate(levels):
        prefixes = sorted(groups)
        assert trie.tokens[level].tolist() == [prefix[-1] for prefix in prefixes]
        assert trie.stops(level).tolist() == [prefix[-1] == END for prefix in prefixes]
        under = trie.nodes_of_documents(level).tolist()
        for node, prefix in enumerate(prefixes):
            inside = trie.documents_of(level, node)
            assert list(range(inside.start, inside.stop)) == groups[prefix]
            assert {under[position] for position in groups[prefix]} == {node}
            assert trie.prefix_of(level, node) == prefix
            assert trie.node_of(prefix) == node
            assert live[level][node] == any(keep[position] for position in groups[prefix])
            parent = trie.parents(level)[node]
            assert parent == (sorted(levels[level - 1]).index(prefix[:-1]) if level else 0)
            below = trie.tokens[level + 1][trie.children_of(level, node)].tolist() if level + 1 < table.length else []
            longer = levels[level + 1] if level + 1 < table.length else {}
            assert below == [other[-1] for other in sorted(longer) if other[:-1] == prefix]
            assert trie.child(level, node, 7) == -1
        bounds = [groups[prefix][0] for prefix in prefixes] + [len(table)]
        assert trie.documents(level).tolist() == bounds
    codes = sorted(levels[-1])
    assert trie.codes_of(np.arange(len(codes))).tolist() == [list(code) for code in codes]
    assert trie.leaves_of(np.array([*codes, (9,) * table.length])).tolist() == [*range(len(codes)), -1]
    everything = trie.children_of(-1, 0)
    assert everything == slice(0, len(levels[0])) and trie.node_of(()) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=300),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_sparse_and_dense_masks_are_followed_alike(sequences, share, random):
    """A mask that keeps few documents takes another way up the trie than one that keeps many."""
    table = Identifiers.from_sequences([str(i) for i in range(len(sequences))], sequences)
    keep = np.array([random.random() < 1 / share for _ in sequences])
    for level, alive in enumerate(table.trie().live(keep)):
        under = table.trie().nodes_of_documents(level)
        assert alive.tolist() == [bool(keep[under == node].any()) for node in range(table.trie().node_counts[level])]


@given(st.lists(st.integers(0, 400), min_size=1, max_size=300), st.sampled_from([1, 2**8, 2**16, 2**33]))
def test_packed_offsets_are_the_numbers_themselves(steps, scale):
    values = np.concatenate([[0], np.cumsum(np.array(steps) * scale)])
    packed = Offsets.pack(values)
    assert packed.all().tolist() == values.tolist() == packed[np.arange(len(values))].tolist()
    assert packed.nbytes <= values.nbytes + 16
    ranges = np.concatenate([[0], np.cumsum(np.array(steps) + 1)])  # none of them empty
    inside = np.arange(ranges[-1])
    assert Offsets.pack(ranges).owner(inside).tolist() == np.repeat(np.arange(len(steps)), np.diff(ranges)).tolist()


@given(named(), st.data())
def test_add_and_remove_equal_a_table_made_anew(data, more):
    names, sequences = data
    length = max(map(len, sequences), default=1) or 1
    cut = more.draw(st.integers(0, len(names)))
    first = Identifiers.from_sequences(names[:cut], sequences[:cut])
    rest = Identifiers.from_sequences(names[cut:], sequences[cut:]).in_row_order()
    both = first.with_added(*rest)
    assert both.length == length
    assert same(both, Identifiers.from_sequences(names, sequences))
    gone = set(more.draw(st.lists(st.sampled_from(names), unique=True))) if names else set()
    left = [(name, code) for name, code in zip(names, sequences) if name not in gone]
    expected = Identifiers.from_sequences([n for n, _ in left], [c for _, c in left], length=length)
    assert same(both.without(gone), expected)
    ids, codes = both.in_row_order()
    assert list(ids) == list(names)
    assert codes.tolist() == [list(naive.padded(code, length)) for code in sequences]


@settings(max_examples=25, deadline=None)
@given(named(st.lists(st.lists(token, min_size=1, max_size=3), max_size=8)), st.booleans())
def test_save_and_load(data, mmap):
    table = Identifiers.from_sequences(*data)
    with tempfile.TemporaryDirectory() as folder:
        table.save(folder)
        again = Identifiers.load(folder, mmap=mmap)
        assert same(table, again) and again.trie().node_counts == table.trie().node_counts
        again.save(folder)  # over its own mapped file
        assert same(table, again) and same(table, Identifiers.load(folder))
        lazy = Identifiers.load(folder, mmap=True, check=False)
        assert lazy.trie().node_counts == table.trie().node_counts and lazy.unique == table.unique
        for mine, theirs in zip(table.trie().below, lazy.trie().below, strict=True):
            assert mine.all().tolist() == theirs.all().tolist()
        lazy.save(folder)
        assert same(table, lazy)
        parts = [f"trie-{level}-{name}.npy" for level in range(table.length) for name in ("bases", "rest", "tokens")]
        names = sorted(path.name for path in Path(folder).iterdir())
        assert names == ["codes.npy", "doc_ids.json", "rows.npy", *parts]


def test_mapped_arrays_stay_on_disk(tmp_path):
    Identifiers(["a", "b"], [[1, 2], [0, 1]]).save(tmp_path)
    table = Identifiers.load(tmp_path, mmap=True, check=False)
    arrays = [table.codes, table.rows, *table.trie().tokens, *(offsets.rest for offsets in table.trie().below)]
    assert all(isinstance(array.base, np.memmap) for array in arrays)
    (tmp_path / "doc_ids.json").unlink()  # nobody asked for them yet
    with pytest.raises(IndexCorrupt, match="doc_ids"):
        _ = table.doc_ids


def test_a_missing_part_of_the_trie_is_named(tmp_path):
    Identifiers(["a", "b"], [[1, 2], [0, 1]]).save(tmp_path)
    (tmp_path / "trie-1-rest.npy").write_bytes(b"junk")
    with pytest.raises(IndexCorrupt, match="trie-1-rest"):
        Identifiers.load(tmp_path, mmap=True, check=False).trie()


def test_unusual_doc_ids_survive(tmp_path):
    names = ["é", "a\nb", "\U0001f600", "\ud800", "a b"]
    Identifiers(names, np.arange(5)[:, None]).save(tmp_path)
    assert Identifiers.load(tmp_path).doc_ids == names


@pytest.mark.parametrize(
    "codes",
    [
        [[0, -2]],
        [[END, 0]],
        [[0.5, 1.0]],
        [0, 1],
        [[]],
        [[[0]]],
        [[2**31]],
        [["a"]],
        [[True, False]],
    ],
)
def test_bad_codes_are_refused(codes):
    with pytest.raises(BadSetting):
        Identifiers([str(i) for i in range(len(codes))], codes)


def test_ragged_codes_name_the_remedy():
    with pytest.raises(BadSetting, match="from_sequences"):
        Identifiers(["a", "b"], [[1], [1, 2]])


@pytest.mark.parametrize("names", [["a", "a"], ["a"], ["a", ""], ["a", 3]])
def test_bad_doc_ids_are_refused(names):
    with pytest.raises(BadSetting):
        Identifiers(names, [[0], [1]])


def test_unknown_and_known_doc_ids_are_refused():
    table = Identifiers(["a", "b"], [[0], [1]])
    for refused in (
        lambda: table.code_of("c"),
        lambda: table.without(["c"]),
        lambda: table.with_added(["a"], [[3]]),
        lambda: table.prefix_slice((0, 0)),
        lambda: table.trie().node_of((0, 0)),
        lambda: table.trie().live(np.array([1, 0])),
        lambda: table.trie().live(np.ones(3, bool)),
        lambda: Identifiers.from_sequences(["a"], [[1, 2]], length=1),
    ):
        with pytest.raises(BadSetting):
            refused()


def test_tables_do_not_change():
    table = Identifiers(["a", "b"], [[0], [1]])
    for array in (table.codes, table.rows, table.buckets(), table.trie().tokens[0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5


def test_an_empty_table(tmp_path):
    table = Identifiers([], np.zeros((0, 3), np.int64))
    table.save(tmp_path)
    for one in (table, Identifiers.load(tmp_path), Identifiers(["a"], [[1, 2, 3]]).without(["a"])):
        assert len(one) == 0 and one.unique == 0 and one.trie().node_counts == (0, 0, 0)
        assert one.prefix_slice((1,)) == slice(0, 0) and one.trie().node_of((1,)) == -1
    assert table.with_added(["a"], [[1, 2, 3]]).code_of("a") == (1, 2, 3)


class TestCorruptFolders:
    @pytest.fixture
    def folder(self, tmp_path):
        Identifiers(["a", "b", "c"], [[1, 2], [0, 1], [1, 2]]).save(tmp_path)
        return tmp_path

    @pytest.mark.parametrize("name", ["codes.npy", "rows.npy", "doc_ids.json"])
    def test_a_missing_file(self, folder, name):
        (folder / name).unlink()
        with pytest.raises(NotAnIndex, match=name):
            Identifiers.load(folder)

    @pytest.mark.parametrize("name", ["codes.npy", "rows.npy", "doc_ids.json"])
    @pytest.mark.parametrize("keep", [0, 3, 40, -5])
    def test_a_cut_file(self, folder, name, keep):
        path = folder / name
        path.write_bytes(path.read_bytes()[: min(keep, path.stat().st_size - 2)])
        with pytest.raises(CallslipError):
            Identifiers.load(folder)

    @pytest.mark.parametrize(
        "codes",
        [
            np.array([[1, 2], [0, 1], [1, 2]], np.int32),  # not sorted
            np.array([[0, 1], [1, 2]], np.int32),  # too few
            np.array([[0, 1], [1, 2], [1, 2]], np.int64),
            np.array([[0, 1], [1, -3], [1, 2]], np.int32),
            np.array([[-1, 1], [1, 2], [1, 2]], np.int32),
            np.array([{}, {}, {}], object),
        ],
    )
    def test_wrong_codes(self, folder, codes):
        np.save(folder / "codes.npy", codes)
        with pytest.raises(IndexCorrupt):
            Identifiers.load(folder)

    @pytest.mark.parametrize("rows", [[1, 2, 0], [1, 0, 0], [1, 0, 5], [1, 0, -1], [1, 0]])
    def test_wrong_rows(self, folder, rows):
        np.save(folder / "rows.npy", np.array(rows, np.int64))
        with pytest.raises(IndexCorrupt):
            Identifiers.load(folder)

    @pytest.mark.parametrize("names", [["a", "a", "c"], ["a", "b"], {"a": 1}, ["a", "b", 3], "abc"])
    def test_wrong_doc_ids(self, folder, names):
        (folder / "doc_ids.json").write_text(json.dumps(names))
        with pytest.raises(IndexCorrupt):
            Identifiers.load(folder)


def test_codes_as_text():
    assert code_to_text((12, 7, 200)) == "12-7-200"
    assert code_to_text(np.array([2, 0, END]), ["cell", "cycle", "phase"]) == "phase-cell"
    assert code_to_text((0, 3), ["cell", "cycle", "phase"]) == "cell-#1"
    assert Identifiers(["a", "b"], [[5, 6], [1, END]]).code_text(0) == "1"
    assert text_to_code("12-7-200") == (12, 7, 200) and text_to_code("") == ()
    with pytest.raises(BadSetting):
        text_to_code("12-x")
