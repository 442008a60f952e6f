"""BM25, dense and fusion against plain loops and a second library."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip import api
from callslip.corpus.documents import Corpus, Document
from callslip.errors import BadSetting, IndexCorrupt, UnknownName
from callslip.filters.filter import Filter
from callslip.identifiers.vector_table import VectorTable
from callslip.methods import make
from callslip.methods.hybrid import Hybrid, HybridSettings
from callslip.search import nearest
from callslip.search.bm25 import stems_of
from callslip.search.nearest import best_rows
from callslip.storage import folder as folders

WORDS = ["whale", "ship", "mast", "sail", "storm", "harbour"]


def naive_bm25(documents: list[list[str]], query: list[str], k1: float, b: float) -> list[float]:
    """Lucene's BM25, word by word: idf = ln(1 + (N - n + 0.5) / (n + 0.5))."""
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for words in documents:
        counts, score = Counter(words), 0.0
        for word in query:
            n = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            tf = counts[word]
            score += idf * tf / (tf + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    return scores


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8), min_size=2, max_size=8),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique=True),
)
def test_bm25_equals_the_formula(documents, query):
    corpus = Corpus([Document(str(row), " ".join(words)) for row, words in enumerate(documents)])
    for name, k1, b in (("bm25", 0.9, 0.4), ("bm25-classic", 1.5, 0.75)):
        index = make(name, {"language": "none", "stopwords": "none"}).fit(corpus)
        truth = naive_bm25(documents, query, k1, b)
        hits = index.search(" ".join(query), k=len(documents))
        assert {hit.doc_id for hit in hits} == {str(row) for row, score in enumerate(truth) if score > 0}
        for hit in hits:
            assert hit.score == pytest.approx(truth[int(hit.doc_id)], abs=1e-4)


@pytest.mark.parametrize("formula", ["lucene", "robertson", "atire", "bm25l", "bm25+"])
def test_bm25_after_changes_scores_as_an_index_of_the_documents_that_are_there(small_corpus, tmp_path, formula):
    """Added, updated and deleted documents, in memory, in the folder, and after compacting."""
    settings = {"formula": formula}
    index = make("bm25", settings).fit(small_corpus)
    index.save(tmp_path / "index")
    first, second, third, *rest = small_corpus.documents
    more = [Document(f"new {n}", f"a violin and a harbour, number {n}" * n) for n in range(1, 6)]
    changed = Document(second.doc_id, "the violin that was a river")
    index.add(more)
    index.delete([first.doc_id])
    index.update([changed])
    truth = make("bm25", settings).fit(Corpus([third, *rest, *more, changed]))
    queries = ["violin with the mark music5", "harbour number", "the nile", "zebra"]

    def scores(of):
        return [{hit.doc_id: hit.score for hit in hits} for hits in of.search_batch(queries, k=1000)]

    assert scores(index) == scores(truth)
    assert scores(api.load(tmp_path / "index")) == scores(truth)
    index.compact()
    assert scores(index) == scores(api.load(tmp_path / "index")) == scores(truth)


@pytest.mark.parametrize("formula", ["lucene", "robertson", "atire", "bm25l", "bm25+"])
def test_bm25_scores_by_its_formula_as_bm25s_does(small_corpus, formula):
    import bm25s

    stems = stems_of([document.content for document in small_corpus])
    oracle = bm25s.BM25(k1=0.9, b=0.4, method=formula)
    oracle.index(stems, show_progress=False)
    truth = oracle.get_scores(stems_of(["violin music5"])[0])
    found = make("bm25", {"formula": formula}).fit(small_corpus).search("violin music5", k=1000)
    row_of = small_corpus.rows()
    assert len(found) == np.count_nonzero(truth > 0)
    np.testing.assert_allclose(found.scores, [truth[row_of[doc_id]] for doc_id in found.doc_ids], rtol=1e-5)


def test_an_addition_to_bm25_reads_no_other_document(small_corpus, monkeypatch):
    index = make("bm25").fit(small_corpus)
    monkeypatch.setattr(type(index.documents), "__iter__", lambda self: pytest.fail("all documents were read"))
    index.add([Document("new", "a violin")])
    assert "new" in index.search("violin", k=1000).doc_ids


def test_bm25_explains_its_score_word_by_word(small_corpus):
    index = make("bm25").fit(small_corpus)
    for hit in index.search("violin with the mark music5", k=5, explain=True):
        assert sum(hit.why["words"].values()) == pytest.approx(hit.score, abs=1e-4)


def test_bm25_with_unknown_names(small_corpus):
    with pytest.raises(BadSetting, match="formula"):
        make("bm25", {"formula": "bm99"})
    with pytest.raises(UnknownName, match="klingon"):
        make("bm25", {"language": "klingon"}).fit(small_corpus)
    with pytest.raises(BadSetting, match="stopwords"):
        make("bm25", {"stopwords": "xx"}).fit(small_corpus)


def test_dense_equals_sorting_all_inner_products(small_corpus):
    index = make("dense", {"encoder": "scratch"}).fit(small_corpus)
    for text in ("violin music3", "the nile", ""):
        scores = index.vectors @ index.texts.encode([text])[0]
        order = sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:10]
        hits = index.search(text, k=10)
        np.testing.assert_allclose(hits.scores, scores[order], atol=1e-6)
        assert set(hits.doc_ids) == {small_corpus.documents[row].doc_id for row in order}


def test_faiss_finds_what_exact_search_finds(small_corpus):
    exact = make("dense", {"encoder": "scratch"}).fit(small_corpus)
    graph = make("dense", {"encoder": "scratch", "index": "faiss"}).fit(small_corpus)
    only = Filter(where={"topic": "river"})
    for text in ("violin music3", "the nile river5"):
        assert graph.search(text, k=5).doc_ids == exact.search(text, k=5).doc_ids
        assert graph.search(text, k=5, filter=only).doc_ids == exact.search(text, k=5, filter=only).doc_ids


def graph_index(corpus, path):
    index = make("dense", {"encoder": "scratch", "index": "faiss"}).fit(corpus)
    index.save(path)
    return index


def hits_of(index, k=7):
    return [index.search(text, k=k).doc_ids for text in ("violin music3", "the nile river5", "harbour 3")]


def more_documents(count: int) -> list[Document]:
    return [Document(f"new {n}", f"violin in a harbour, number {n}") for n in range(count)]


def test_a_saved_graph_is_read_and_not_built(small_corpus, tmp_path, monkeypatch):
    expected = hits_of(graph_index(small_corpus, tmp_path / "index"))
    monkeypatch.setattr(nearest, "_graph_of", lambda *_: pytest.fail("the graph was built"))
    assert hits_of(api.load(tmp_path / "index")) == expected


def test_documents_beside_a_graph_are_found_and_folded(small_corpus, tmp_path, monkeypatch):
    """In memory, opened again, above the limit, and compacted: with and without deletions."""
    monkeypatch.setattr(nearest, "BESIDE", 3)
    index, exact = (
        graph_index(small_corpus, tmp_path / "index"),
        make("dense", {"encoder": "scratch"}).fit(small_corpus),
    )
    index = api.load(tmp_path / "index")
    with monkeypatch.context() as patch:
        patch.setattr(nearest, "_graph_of", lambda *_: pytest.fail("the graph was built"))
        for document in more_documents(9):
            index.add([document])
            exact.add([document])
            assert hits_of(index) == hits_of(exact)
            assert len(index) - index._nearest._graph.ntotal <= 3
        assert hits_of(api.load(tmp_path / "index")) == hits_of(exact)
        only = Filter(allow={"new 3", "new 8", small_corpus.documents[0].doc_id})
        assert index.search("violin", k=5, filter=only).doc_ids == exact.search("violin", k=5, filter=only).doc_ids
        index.compact()
        assert hits_of(index) == hits_of(api.load(tmp_path / "index")) == hits_of(exact)
    gone = ["new 1", small_corpus.documents[2].doc_id]
    index.delete(gone)
    exact.delete(gone)
    assert hits_of(index) == hits_of(exact)
    index.compact()
    assert hits_of(index) == hits_of(api.load(tmp_path / "index")) == hits_of(exact)


def test_a_graph_of_other_vectors_is_refused(small_corpus, tmp_path):
    import faiss

    index = graph_index(small_corpus, tmp_path / "index")
    folder = tmp_path / "index" / "generation-000001"
    with (folder / "graph.faiss").open("r+b") as file:
        file.seek(2000)
        file.write(b"\x7f" * 8)
    with pytest.raises(IndexCorrupt, match=r"graph\.faiss"):
        api.load(tmp_path / "index")
    graph = faiss.IndexHNSWFlat(index.vectors.shape[1], 4, faiss.METRIC_INNER_PRODUCT)
    graph.add(np.asarray(index.vectors)[:5])
    faiss.write_index(graph, str(folder / "graph.faiss"))
    with pytest.raises(IndexCorrupt, match="not the graph of the vectors"):
        index.load_files(folder)
    graph.reset()
    graph.add(np.asarray(index.vectors))
    links = faiss.vector_to_array(graph.hnsw.neighbors)
    links[0] = len(index) + 7
    faiss.copy_array_to_vector(links, graph.hnsw.neighbors)
    faiss.write_index(graph, str(folder / "graph.faiss"))
    with pytest.raises(IndexCorrupt, match=r"vectors that are not there|faiss can read"):
        index.load_files(folder)
    (folder / "graph.faiss").write_bytes(b"no graph")
    with pytest.raises(IndexCorrupt, match="no graph that faiss can read"):
        index.load_files(folder)
    (folder / "graph.faiss").unlink()  # as in folders of earlier versions
    index.load_files(folder)
    assert not index._nearest.exact


@pytest.mark.parametrize("half", [False, True])
def test_inner_products_are_those_of_every_vector(monkeypatch, half):
    """Of vectors that are held in half precision, widened a few at a time, and of those that were added."""
    monkeypatch.setattr(nearest, "WIDENED", 7)
    rng = np.random.default_rng(0)
    vectors, more, queries = (rng.normal(size=(count, 5)).astype(np.float32) for count in (40, 9, 3))
    table = (VectorTable.of(vectors) if half else VectorTable(vectors)).extended(more)
    truth = np.concatenate([vectors, more]) if not half else np.asarray(table)
    found = np.stack(list(nearest.inner_products(queries, table, block=2)))
    np.testing.assert_allclose(found, queries @ truth.T, atol=1e-5)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(1, 14), st.data())
def test_best_rows_equals_sorting(scores, k, data):
    mask = data.draw(st.none() | st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    allowed = [row for row in range(len(scores)) if mask is None or mask[row]]
    truth = sorted(allowed, key=lambda row: (-scores[row], row))[:k]
    found = best_rows(np.array(scores, dtype=np.float32), k, None if mask is None else np.array(mask, dtype=bool))
    assert found.tolist() == truth


def test_fusion_equals_the_formula(small_corpus):
    bm25, dense = make("bm25"), make("dense", {"encoder": "scratch"})
    fused = Hybrid(HybridSettings(fusion="rrf"), parts=[bm25, dense]).fit(small_corpus)
    assert fused.settings.parts == ("bm25", "dense")
    query = "violin with the mark music5"
    truth: Counter[str] = Counter()
    for part in (bm25, dense):
        for hit in part.search(query, k=100):
            truth[hit.doc_id] += 1 / (60 + hit.rank)
    hits = fused.search(query, k=40, explain=True)
    assert {hit.doc_id: pytest.approx(hit.score) for hit in hits} == dict(truth)
    assert hits[0].why["ranks"]["bm25"] == [h.doc_id for h in bm25.search(query, 40)].index(hits[0].doc_id) + 1


def naive_convex(parts, weights, query, depth=100):
    """Scores by doc_id: each part's first hits, scaled from 0 at the last to 1 at the first, weighted and added."""
    truth: Counter[str] = Counter()
    for part, weight in zip(parts, weights, strict=True):
        hits = part.search(query, k=depth)
        low, high = (hits[-1].score, hits[0].score) if hits else (0.0, 0.0)
        for hit in hits:
            truth[hit.doc_id] += weight * (1.0 if high == low else (hit.score - low) / (high - low))
    return truth


@pytest.mark.parametrize("weights", [None, (1.0, 3.0)])
def test_convex_fusion_equals_the_naive_sum(small_corpus, weights):
    parts = [make("bm25"), make("dense", {"encoder": "scratch"})]
    unjudged = Corpus(small_corpus.documents)
    fused = Hybrid(HybridSettings(weights=weights, depth=20), parts=parts).fit(unjudged)
    shares = (0.5, 0.5) if weights is None else (0.25, 0.75)
    for query in ("violin with the mark music5", "music5", "river", "zzzz"):
        truth = naive_convex(parts, shares, query, depth=20)
        hits = fused.search(query, k=20, explain=True)
        assert [hit.score for hit in hits] == pytest.approx(sorted(truth.values(), reverse=True)[:20])
        for hit in hits:
            assert hit.score == pytest.approx(truth[hit.doc_id], abs=1e-6)
            assert set(hit.why["shares"]) == {"bm25", "dense"}
            assert sum(hit.why["shares"].values()) == pytest.approx(hit.score)


def test_the_first_hits_of_a_fusion_do_not_depend_on_k(small_corpus):
    fused = make("bm25+dense", {"dense.encoder": "scratch", "depth": 5}).fit(small_corpus)
    few, many = fused.search("violin river", k=3), fused.search("violin river", k=40)
    assert few.doc_ids == many.doc_ids[:3] and len(many) == 40


def test_weights_are_fitted_on_judged_queries_and_used(small_corpus, tmp_path):
    """Words name the document and the vectors are noise: the fit has to say so, and the search has to follow it."""
    from callslip.training.fusion import fit_weights

    parts = [make("bm25"), make("dense", {"encoder": "scratch"})]
    fused = Hybrid(parts=parts, method="bm25+dense").fit(small_corpus)
    queries, judgements = small_corpus.split("train")
    tables, gains = [], []
    for qid, query in queries.items():
        each = [naive_convex([part], [1.0], query) for part in parts]
        ids = sorted(set(each[0]) | set(each[1]))
        tables.append(np.array([[one[d] for one in each] for d in ids]))
        gains.append(np.array([max(judgements[qid].get(d, 0), 0) for d in ids], float))
    truth = fit_weights(tables, gains, np.array([0.5, 0.5]))
    np.testing.assert_allclose(fused.weights, truth / truth.sum(), atol=1e-3)
    assert abs(fused.weights[0] - 0.5) > 0.01
    scores = naive_convex(parts, fused.weights, "violin river")
    hits = fused.search("violin river", k=10)
    assert hits.scores == pytest.approx([scores[d] for d in hits.doc_ids])
    fused.save(tmp_path / "index")
    again = api.load(tmp_path / "index")
    np.testing.assert_allclose(again.weights, fused.weights)
    assert again.search("violin river", k=10).doc_ids == hits.doc_ids


def test_weights_stay_equal_where_a_fit_would_mislead(small_corpus):
    for name, values in (("bm25+memory", {"memory.encoder": "scratch"}), ("bm25+dense", {"dense.encoder": "scratch"})):
        fused = make(name, values)
        judged = small_corpus.judgements["train"]
        few = {qid: judged[qid] for qid in list(judged)[:29]}
        corpus = small_corpus
        if name == "bm25+dense":  # too few queries
            corpus = Corpus(small_corpus.documents, queries=small_corpus.queries, judgements={"train": few})
        assert fused.fit(corpus).weights.tolist() == [0.5, 0.5], name


def test_a_hybrid_of_an_earlier_version_keeps_its_order(small_corpus, tmp_path):
    """Its manifest names no fusion: ranks were fused, and still are."""
    index = make("bm25+dense", {"dense.encoder": "scratch", "fusion": "rrf"}).fit(small_corpus)
    index.save(tmp_path / "index")
    manifest = folders.read_manifest(tmp_path / "index")
    for name in ("fusion", "weights"):
        del manifest["settings"][name]
    folders.write_manifest(tmp_path / "index", manifest)
    again = api.load(tmp_path / "index")
    assert again.settings.fusion == "rrf" and make("bm25+dense").settings.fusion == "convex"
    for query in ("violin with the mark music5", "river"):
        a, b = index.search(query, k=20), again.search(query, k=20)
        assert a.doc_ids == b.doc_ids and a.scores == pytest.approx(b.scores)
    assert again.adjust({"fusion": "convex"}).search("river", k=1)[0].score > 0.5


@pytest.mark.parametrize("weights", [(1.0,), (1.0, -1.0), (0.0, 0.0), ()])
def test_bad_weights_are_refused(weights):
    with pytest.raises(BadSetting, match="weights"):
        make("bm25+dense", {"weights": weights})


def test_settings_reach_the_parts_of_a_fusion():
    fused = make("bm25+dense", {"dense.encoder": "scratch", "bm25.k1": 2.0, "constant": 10})
    assert fused.parts[0].settings.k1 == 2.0
    assert fused.parts[1].settings.encoder == "scratch"
    assert fused.settings.constant == 10
    with pytest.raises(UnknownName, match="part of the hybrid"):
        make("bm25+dense", {"dsi-semantic.epochs": 3})
    with pytest.raises(BadSetting, match="at least two"):
        make("hybrid", {"parts": "bm25"})


@pytest.mark.parametrize(
    ("name", "values"),
    [("dense", {"neighbours": -3}), ("dense", {"effort": 0}), ("hybrid", {"constant": -60}), ("hybrid", {"depth": 0})],
)
def test_numbers_that_make_no_sense_are_refused(name, values):
    with pytest.raises(BadSetting, match=next(iter(values))):
        make(name, values)
