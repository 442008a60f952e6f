"""A document that was added is found by its own words, whatever the method, also after opening and compacting."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from small_bert import save_small_bert
from test_contract import NAMES, quick

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import Unsupported
from callslip.filters.filter import Filter
from callslip.index.fresh import DEPTH, Asked, Fresh
from callslip.index.retriever import Found
from callslip.index.rows import Rows
from callslip.storage.rows import MemoryDocuments

COUNT = 200
PLACES = ["harbour", "mountain", "station", "garden", "library", "bakery", "tunnel"]
THINGS = ["lantern", "ladder", "kettle", "carpet", "engine", "mirror", "pillow", "hammer", "basket", "window", "saddle"]
COLOURS = ["purple", "yellow", "crimson", "ivory", "amber"]


def added_documents() -> list[Document]:
    """Two hundred documents on things that the small corpus never mentions; no two first sentences are the same."""
    pairs = itertools.islice(itertools.product(COLOURS, THINGS, PLACES), COUNT)
    return [
        Document(
            f"added/{n}",
            f"The {colour} {thing} stands in the {place}. It was brought there by a visitor, and nobody asked.",
            metadata={"place": place, "topic": "added"},
        )
        for n, (colour, thing, place) in enumerate(pairs)
    ]


def first_sentence(document: Document) -> str:
    return document.text.partition(". ")[0] + "."


def takes_documents(name: str) -> bool:
    return name not in ("dsi-random", "dsi-atomic", "dsi-naive", "deep-retrieval")


@pytest.fixture(scope="module")
def grown(small_corpus, tmp_path_factory):
    """The folder of an index that was fitted on the small corpus and took the added documents."""

    @functools.cache
    def make(name: str):
        more = {"beam": 2}  # in so small a corpus, a usual beam would hold all codes
        if name == "dense-trained":  # its encoder must know the words that are added
            texts = [document.content for document in (*small_corpus, *added_documents())]
            words = sorted({word.strip(".,") for text in texts for word in text.split()})
            more["encoder"] = str(save_small_bert(tmp_path_factory.mktemp("bert"), words, hidden_size=128))
        index = quick(name, epochs=4, round_epochs=2, **more).fit(small_corpus)
        path = tmp_path_factory.mktemp("grown") / "index"
        index.save(path)
        index.add(added_documents())
        return path

    return make


def missed(index, documents, k: int = 10) -> list[str]:
    """Documents that are not among the first k hits for their own first sentence."""
    hits = index.search_batch([first_sentence(document) for document in documents], k=k)
    return [d.doc_id for d, found in zip(documents, hits, strict=True) if d.doc_id not in found.doc_ids]


@pytest.mark.parametrize("name", [name for name in NAMES if takes_documents(name)])
def test_added_documents_are_found_by_their_first_sentence(name, grown, tmp_path):
    index, documents = api.load(grown(name)), added_documents()
    assert missed(index, documents) == []
    index.save(tmp_path / "copy")
    assert missed(api.load(tmp_path / "copy"), documents) == []
    other = api.load(tmp_path / "copy")
    gone = [document.doc_id for document in documents[::2]]
    other.delete(gone)
    sentences = [first_sentence(document) for document in documents]
    for hits in other.search_batch(sentences, k=40):
        assert not set(gone) & set(hits.doc_ids)
    other.compact()
    for same in (other, api.load(tmp_path / "copy")):
        assert missed(same, documents[1::2]) == []
        assert not set(gone) & {doc_id for hits in same.search_batch(sentences, k=40) for doc_id in hits.doc_ids}


@pytest.mark.parametrize("name", [name for name in NAMES if not takes_documents(name)])
def test_methods_that_take_no_documents_say_so(name, small_corpus):
    index = quick(name, epochs=1, round_epochs=1).fit(small_corpus)
    with pytest.raises(Unsupported, match="cannot"):
        index.add(added_documents()[:1])


GENERATIVE = ["dsi-semantic", "glen", "recforest"]


@pytest.mark.parametrize("name", GENERATIVE)
def test_codes_alone_miss_them(name, grown):
    """Some are missed by the ranking that measures codes alone, so that the test above tests something."""
    index = api.load(grown(name))
    assert index.code_settings["ranking"] == "share"
    before = index.settings.ranking
    assert len(missed(index.adjust({"ranking": "share"}), added_documents())) >= 10
    assert missed(index.adjust({"ranking": before}), added_documents()) == []


@pytest.mark.parametrize("name", GENERATIVE)
def test_filters_are_respected(name, grown):
    index, documents = api.load(grown(name)), added_documents()
    place = Filter(where={"place": "garden"})
    inside = [document for document in documents if document.metadata["place"] == "garden"]
    for document in inside[:10]:
        hits = index.search(first_sentence(document), k=5, filter=place)
        assert hits.doc_ids[0] == document.doc_id
        assert set(hits.doc_ids) <= {one.doc_id for one in inside}
        hits = index.search(first_sentence(document), k=40, filter=Filter(where={"topic": "river"}))
        assert len(hits) == 10
        assert all(hit.doc_id.startswith("river/") for hit in hits)


def test_reasons_and_scores(grown):
    index = api.load(grown("dsi-semantic"))
    outside = set(missed(index.adjust({"ranking": "share"}), added_documents()))
    document = next(one for one in added_documents() if one.doc_id in outside)
    index.adjust({"ranking": "bucket"})
    hits = index.search(first_sentence(document), k=20, explain=True)
    assert hits[0].doc_id == document.doc_id
    assert hits[0].why["fresh"] == "added since the fit; found by its own words"
    assert hits[0].why["bm25"] > 0
    assert hits[0].code == index.identifiers.code_at(index.identifiers.position_of(document.doc_id))
    assert all(a >= b for a, b in zip(hits.scores, hits.scores[1:], strict=False))
    assert index.search(first_sentence(document), k=7).doc_ids == hits.doc_ids[:7]
    assert not any("fresh" in hit.why for hit in hits if not hit.doc_id.startswith("added/"))


def test_another_process_finds_them_and_an_update_replaces_them(grown, tmp_path):
    index = api.load(grown("dsi-semantic"))
    index.save(tmp_path / "copy")
    index, other = api.load(tmp_path / "copy"), api.load(tmp_path / "copy")
    index.update([Document("added/0", "A walrus sings opera on the balcony.")])
    assert other.search("A walrus sings opera on the balcony.", k=3).doc_ids[0] == "added/0"
    old = other.search(first_sentence(added_documents()[0]), k=10)
    assert all(hit.doc_id != "added/0" or "walrus" in hit.text for hit in old)


def test_an_index_without_additions_is_searched_as_before(small_corpus, monkeypatch, tmp_path):
    """Nothing of it runs, and nothing of it is saved; a new fit forgets what was added before."""
    index = quick("dsi-semantic", epochs=1).fit(small_corpus)
    monkeypatch.setattr(Fresh, "merged", lambda *_: pytest.fail("no document was added"))
    index.search("violin", k=5)
    index.save(tmp_path / "index")
    assert not list((tmp_path / "index").rglob("fresh.npy"))
    index.add(added_documents()[:3])
    assert len(index.fresh) == 3
    index.fit(small_corpus)
    index.search("violin", k=5)


# The merge, by hand.


def rows_of(texts: list[str]) -> Rows:
    rows = Rows()
    rows.replace(MemoryDocuments([Document(f"d{n}", text) for n, text in enumerate(texts)]))
    return rows


def fresh_of(first: int, count: int) -> Fresh:
    fresh = Fresh()
    fresh.extend(first, np.full((count, 2), 7))
    return fresh


def asked(text: str, similarities: np.ndarray | None = None) -> Asked:
    return Asked(text, np.ones(1), None if similarities is None else similarities[:, None])


def beam(*rows: int) -> Found:
    scores = [-float(n) for n in range(len(rows))]
    return Found(list(rows), scores, np.zeros((len(rows), 2), int), [{"beam_rank": n} for n in range(len(rows))])


def test_a_fresh_document_takes_the_place_of_its_similarity():
    """Without common words, similarity alone decides; the order of the other hits is that of the model."""
    rows, values = rows_of(["some text"] * 6), np.array([0.2, 0.9, 0.5, 0.1, 0.6, 0.05])
    found = fresh_of(4, 2).merged(asked("query", values), beam(0, 1, 2, 3), rows, None, True)
    # 0.6 is behind one hit (0.9); 0.05 is behind all four.
    assert found.rows.tolist() == [0, 4, 1, 2, 3, 5]
    assert found.scores.tolist() == [0, -1, -1, -2, -3, -3]
    assert found.codes.tolist() == [[0, 0], [7, 7], [0, 0], [0, 0], [0, 0], [7, 7]]
    assert [sorted(why) for why in found.why][:2] == [["beam_rank"], ["bm25", "fresh", "similarity"]]


def test_words_alone_where_there_are_no_vectors():
    rows = rows_of(["red apple", "green pear", "blue plum", "yellow plum tart", "nothing"])
    found = fresh_of(3, 2).merged(asked("yellow plum"), beam(0, 2, 1), rows, None, False)
    assert found.rows.tolist() == [3, 0, 2, 1]  # `nothing` has no word of the query
    assert found.why is None


def test_a_document_that_the_beam_reached_keeps_the_better_place():
    rows, values = rows_of(["some text"] * 5), np.array([0.2, 0.9, 0.5, 0.99, 0.01])
    found = fresh_of(3, 2).merged(asked("query", values), beam(4, 0, 1, 2, 3), rows, None, True)
    assert found.rows.tolist() == [3, 4, 0, 1, 2]
    assert found.why[0] == {"fresh": "added since the fit; found by its own words", "bm25": 0.0, "similarity": 0.99} | {
        "beam_rank": 4
    }


def test_masks_deletions_and_compaction():
    rows, values = rows_of(["text"] * 6), np.array([0.1, 0.2, 0.3, 0.7, 0.8, 0.9])
    fresh, mask = fresh_of(3, 3), np.array([True, True, True, True, True, False])
    rows.delete([4], ["d4"])
    mask[4] = False
    found = fresh.merged(asked("query", values), beam(0, 1), rows, mask, False)
    assert found.rows.tolist() == [3, 0, 1]
    mask[3] = False
    assert fresh.merged(asked("query", values), beam(0, 1), rows, mask, False).rows == [0, 1]
    fresh.keep(np.array([0, 2, 3, 5]))
    assert fresh.rows.tolist() == [2, 3]
    assert len(fresh.codes) == 2


def test_no_more_than_depth_of_each_kind_are_candidates():
    rows, values = rows_of(["text"] * (DEPTH + 30)), np.arange(DEPTH + 30) / 100
    found = fresh_of(1, DEPTH + 29).merged(asked("query", values), beam(0), rows, None, False)
    assert found.rows.tolist() == [*range(DEPTH + 29, 29, -1), 0]


def test_words_of_fresh_documents_are_indexed_once(monkeypatch):
    """An addition reads the words of the new documents alone, and a deletion those of none; scores are those of the
    fresh documents that are there."""
    texts = [f"{'otter ' * (n % 3)}heron number {n}" for n in range(12)]
    documents = MemoryDocuments([Document(str(n), text) for n, text in enumerate(texts)])
    rows, fresh, read = Rows(), Fresh(), []
    rows.replace(documents)
    original = MemoryDocuments.rows
    monkeypatch.setattr(MemoryDocuments, "rows", lambda self, some: read.append(len(some)) or original(self, some))

    def ask() -> dict[int, float]:
        found = Found(np.zeros(0, np.int64), np.zeros(0))
        merged = fresh.merged(Asked("otter heron", np.zeros(0), None), found, rows, None, True)
        return dict(zip(merged.rows.tolist(), [why["bm25"] for why in merged.why], strict=True)) if merged.why else {}

    fresh.extend(4, np.zeros((3, 2), np.int32))
    ask()
    assert read[0] == 3
    rows.delete([5], ["5"])
    fresh.extend(7, np.zeros((2, 2), np.int32))
    read.clear()
    ask()
    assert read[0] == 2
    words = fresh._indexed(rows)
    again = Fresh()
    again.extend(4, np.zeros((5, 2), np.int32))
    stems = words.tokenize(["otter heron number"])[0]
    alive = rows.alive[fresh.rows]
    np.testing.assert_array_equal(words.scores(stems)[alive], again._indexed(rows).scores(stems)[alive])
    read.clear()
    ask()
    assert read == [4]  # the texts of the candidates, which are compared with one another
