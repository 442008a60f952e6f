"""Documents that come and go: the same hits from the changed index, from one that opens it again, and after a fold."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import callslip
from callslip.corpus.documents import Corpus, Document, Query
from callslip.filters.filter import Filter
from callslip.index.rows import StoredNames
from callslip.methods import make
from callslip.methods.tied_residual import method
from callslip.search import postings

ANIMALS, PLACES = ["badger", "otter", "heron", "salmon"], ["river", "forest", "harbour"]
QUERIES = ["the badger of the river", "heron", "who lives in the harbour", "salmon forest desert"]


def document(doc_id: str, salt: int = 0) -> Document:
    animal, place = ANIMALS[(len(doc_id) + salt) % 4], PLACES[(ord(doc_id[-1]) + salt) % 3]
    text = f"The {animal} lives near the {place}. It eats what the {place} offers. Mark {doc_id} and {salt}."
    return Document(doc_id, text, animal, {"place": place})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("changes") / "index"
    documents = [document(f"d{n}", n) for n in range(24)]
    corpus = Corpus(documents, {f"q{n}": Query(f"q{n}", text) for n, text in enumerate(QUERIES[:2])})
    corpus.judgements = {"train": {"q0": {"d1": 1, "d2": 1}, "q1": {"d3": 1}}}
    make("tied-residual", {"encoder": "scratch:dim=16", "length": 6, "passages": 2}).fit(corpus).save(path)
    return path


def hits(index):
    found = index.search_batch(QUERIES, k=8) + index.search_batch(QUERIES, k=5, filter=Filter({"place": "river"}))
    return [[(hit.doc_id, hit.score, hit.code, hit.text) for hit in one] for one in found]


changes = st.lists(
    st.tuples(st.sampled_from(["add", "delete", "update", "compact"]), st.integers(0, 40), st.integers(0, 5)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes)
def test_a_changed_index_answers_like_one_that_was_opened_again_and_one_that_was_folded(folder, tmp_path, planned):
    path = tmp_path / "index"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder, path)
    index = callslip.load(path)
    known = {f"d{n}" for n in range(24)}
    for kind, number, salt in planned:
        name = f"d{number}"
        if kind == "add" and name not in known:
            index.add([document(name, salt)])
            known.add(name)
        elif kind == "delete" and name in known:
            index.delete([name])
            known.discard(name)
        elif kind == "update":
            index.update([document(name, salt)])
            known.add(name)
        elif kind == "compact":
            index.compact()
    assert set(index.row_of()) == known and len(index) == len(known)
    expected = hits(index)
    again = callslip.load(path)
    assert hits(again) == expected
    again.compact()
    assert hits(again) == expected
    folded = callslip.load(path)
    assert len(folded.entries.layers) == 1 and hits(folded) == expected
    for one in (index, again, folded):
        one.close()


def test_an_addition_reads_and_writes_nothing_of_the_other_documents(folder, tmp_path, monkeypatch):
    """No walk over the store, no table made again: the arrays that were opened stay the same objects."""
    path = shutil.copytree(folder, tmp_path / "index")
    index = callslip.load(path)
    index.search(QUERIES[0], filter=Filter({"place": "river"}))
    layer, alive = index.entries.layers[0], index.rows
    monkeypatch.setattr(type(index.living.home.store), "_walk", lambda *_, **__: pytest.fail("the store was walked"))
    monkeypatch.setattr(postings, "merged", lambda *_: pytest.fail("postings were merged"))
    index.add([document("new", 1)])
    index.update([document("d3", 2)])
    index.delete(["d4"])
    assert index.entries.layers[0] is layer and isinstance(alive.row_of(), StoredNames)
    marked = index.search("mark new", k=1, filter=Filter({"place": document("new", 1).metadata["place"]}))
    assert marked[0].doc_id == "new"
    assert "d4" not in index.row_of() and index.row_of()["new"] == len(alive.alive) - 2


def test_names_are_looked_up_in_the_store_unless_a_filter_has_many(folder, tmp_path, monkeypatch):
    index = callslip.load(shutil.copytree(folder, tmp_path / "index"))
    names = index.row_of()
    assert [names[f"d{n}"] for n in (3, 1)] == [3, 1] and isinstance(names, StoredNames)
    monkeypatch.setattr("callslip.index.rows.MANY", 2)
    few, many = ({f"d{n}" for n in range(count)} for count in (2, 3))
    assert index.rows.mask(Filter(allow=few)).sum() == 2 and isinstance(index.row_of(), StoredNames)
    assert index.rows.mask(Filter(allow=many)).sum() == 3 and isinstance(index.row_of(), dict)
    index.add([document("new")])
    index.delete(["d0"])
    assert index.row_of()["new"] == 24 == names["new"] and "d0" not in index.row_of() and "d0" not in names


def test_words_as_earlier_versions_saved_them_are_indexed_again(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "index")
    index = callslip.load(path)
    generation = next(path.glob("generation-*"))
    expected = index.words.matches(["badger"])
    (generation / method.WORDS).rename(generation / method.SCORED_WORDS)
    index.load_files(generation)
    np.testing.assert_array_equal(index.words.matches(["badger"]).scores, expected.scores)
