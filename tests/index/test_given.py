"""Vectors and codes that the user brings."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import callslip
from callslip.cli import app, register
from callslip.encoders import load_encoder
from callslip.encoders.given import GivenVectors, given_vectors
from callslip.errors import BadInput, BadSetting, CallslipError, Unsupported
from callslip.identifiers import Identifiers
from callslip.identifiers.files import named_codes, read_codes, write_codes
from callslip.index.given import give_queries

FAST = {"epochs": 2, "decoder_width": 32, "width": 4, "backend": "torch"}
SCRATCH = {"encoder": "scratch:dim=24"}


@pytest.fixture(scope="module")
def encoder():
    return load_encoder("scratch:dim=24")


@pytest.fixture
def vectors(small_corpus, encoder):
    return encoder.encode([document.content for document in small_corpus])


@pytest.fixture
def query_vectors(small_corpus, encoder):
    queries = small_corpus.queries.values()
    return dict(zip((q.query_id for q in queries), encoder.encode([q.text for q in queries])))


def lists(index, corpus, split="test"):
    queries, _ = corpus.split(split)
    found = index.search_batch(queries.values(), 10)
    return [[(hit.doc_id, round(hit.score, 5), hit.code) for hit in hits] for hits in found]


@pytest.mark.parametrize("method", ["dense", "dsi-semantic", "tied-atomic", "tied-residual", "memory", "bm25+dense"])
def test_given_vectors_make_the_index_of_the_same_encoder(small_corpus, vectors, tmp_path, method):
    """Row order, a file or a mapping; queries by the same encoder."""
    if "+" in method:
        settings = {"dense.encoder": "scratch:dim=24"}
    else:
        settings = SCRATCH | ({"epochs": 2} if method in ("dsi-semantic", "tied-atomic") else {})
    plain = callslip.fit(small_corpus, method, settings=settings)
    np.save(tmp_path / "vectors.npy", vectors)
    by_id = dict(zip(small_corpus.doc_ids, vectors))
    for given in (vectors, tmp_path / "vectors.npy", by_id):
        index = callslip.fit(small_corpus, method, settings=settings, vectors=given)
        assert lists(index, small_corpus) == lists(plain, small_corpus)


def test_only_directions_count(vectors):
    found = GivenVectors([str(row) for row in range(40)], 3 * vectors)
    np.testing.assert_allclose(found.vectors, vectors, atol=1e-6)


def test_the_vectors_act(small_corpus, vectors):
    index = callslip.fit(small_corpus, "dense", settings=SCRATCH, vectors=vectors)
    with pytest.warns(UserWarning, match="not those of the encoder"):
        other = callslip.fit(small_corpus, "dense", settings=SCRATCH, vectors=vectors[::-1].copy())
    np.testing.assert_allclose(other.vectors[::-1], index.vectors, atol=1e-6)


def test_query_vectors_by_id_in_a_fit_an_evaluation_and_a_loaded_index(small_corpus, vectors, query_vectors, tmp_path):
    settings = {**FAST, "encoder": "scratch:dim=24", "training_texts": ("document",)}
    plain = callslip.fit(small_corpus, "dsi-semantic", settings=settings)
    index = callslip.fit(
        small_corpus, "dsi-semantic", tmp_path / "i", settings=FAST, vectors=vectors, query_vectors=query_vectors
    )
    assert index.settings.encoder == "given" and index.settings.training_texts == ("document",)
    assert lists(index, small_corpus) == lists(plain, small_corpus)
    value = callslip.evaluate(index, small_corpus, measures="nDCG@10").measures["nDCG@10"]
    assert value == callslip.evaluate(plain, small_corpus, measures="nDCG@10").measures["nDCG@10"]
    loaded = callslip.load(tmp_path / "i", query_vectors=query_vectors)
    assert lists(loaded, small_corpus) == lists(plain, small_corpus)
    bare = callslip.load(tmp_path / "i")
    with pytest.raises(Unsupported, match="no encoder for texts"):
        bare.search("a text")
    give_queries(bare, small_corpus, np.stack(list(query_vectors.values())))  # in the order of the corpus's queries
    assert lists(bare, small_corpus) == lists(plain, small_corpus)
    with pytest.raises(Unsupported, match="no vector"):
        loaded.search("a text")  # a text never takes the vector of a query with the number of its place


def test_a_callable_encodes_queries_and_pseudo_queries(small_corpus, vectors, encoder, tmp_path):
    plain = callslip.fit(small_corpus, "dsi-semantic", settings=FAST | SCRATCH)
    given = {"vectors": vectors, "query_vectors": encoder.encode}
    index = callslip.fit(small_corpus, "dsi-semantic", tmp_path / "i", settings=FAST, **given)
    assert index.settings.encoder == "given" and "sentences" in index.settings.training_texts
    assert lists(index, small_corpus) == lists(plain, small_corpus)
    loaded = callslip.load(tmp_path / "i", query_vectors=encoder.encode)
    assert [h.doc_id for h in loaded.search("violin")] == [h.doc_id for h in plain.search("violin")]
    with pytest.raises(BadSetting, match="24"):
        callslip.fit(
            small_corpus, "dense", vectors=vectors, query_vectors=lambda texts: np.ones((len(texts), 3))
        ).search("x")


def test_added_documents_need_vectors_of_their_own(small_corpus, vectors, query_vectors, tmp_path):
    given = {"vectors": vectors, "query_vectors": query_vectors}
    callslip.fit(small_corpus, "dense", tmp_path / "i", **given).close()
    new = callslip.Document("new", "violin")
    with pytest.raises(Unsupported, match="the document 'new' has no vector") as refused:
        callslip.load(tmp_path / "i").add([new])
    assert "--vectors FILE" in refused.value.remedy
    index = callslip.load(tmp_path / "i", vectors={"new": vectors[7]}, query_vectors={"same": vectors[7]})
    index.add([new])
    assert {hit.doc_id for hit in index.search(callslip.Query("same", ""), 2)} == {small_corpus.doc_ids[7], "new"}


def test_the_command_line_adds_documents_with_vectors(small_corpus, vectors, query_vectors, tmp_path):
    given = {"vectors": vectors, "query_vectors": query_vectors}
    callslip.fit(small_corpus, "tied-residual", tmp_path / "i", **given).close()
    (tmp_path / "new.jsonl").write_text('{"_id": "new", "text": "violin"}\n')
    np.save(tmp_path / "new.npy", vectors[7:8])
    register()
    done = CliRunner().invoke(app, ["add", str(tmp_path / "i"), str(tmp_path / "new.jsonl")])
    assert isinstance(done.exception, Unsupported) and "--vectors FILE" in done.exception.remedy
    more = ["--vectors", str(tmp_path / "new.npy")]
    done = CliRunner().invoke(app, ["add", str(tmp_path / "i"), str(tmp_path / "new.jsonl"), *more])
    assert done.exit_code == 0, done.output
    index = callslip.load(tmp_path / "i", query_vectors={"same": vectors[7]})
    assert "new" in index.search(callslip.Query("same", ""), 2).doc_ids
    with pytest.raises(Unsupported, match="no encoder for the queries") as refused:
        callslip.learn(index, [("a question", "new")])
    assert "query_vectors=CALLABLE" in refused.value.remedy  # the command has no option that would help
    callslip.learn(callslip.load(tmp_path / "i", query_vectors=lambda texts: vectors[: len(texts)]), [("a", "new")])


def test_documents_without_texts(vectors, query_vectors, small_corpus):
    """Images, say: ids and vectors alone."""
    bare = callslip.Corpus([callslip.Document(doc_id, "") for doc_id in small_corpus.doc_ids])
    bare.queries = {query_id: callslip.Query(query_id, "") for query_id in query_vectors}
    given = {"vectors": vectors, "query_vectors": query_vectors}
    index = callslip.fit(bare, "dsi-semantic", settings=FAST, **given)
    hits = index.search(callslip.Query("q-music/3", ""), 5)
    expected = callslip.fit(small_corpus, "dense", settings=SCRATCH).search(small_corpus.queries["q-music/3"], 5)
    assert len(hits) == 5 and hits[0].doc_id == expected[0].doc_id


def test_wrong_vectors_are_named(small_corpus, vectors, tmp_path):
    def refused(match, given, **more):
        with pytest.raises(CallslipError, match=match):
            callslip.fit(small_corpus, "dense", settings=SCRATCH, vectors=given, **more)

    refused("39 vectors for 40", vectors[:-1])
    refused("no vector for 1 of 40", dict(zip(small_corpus.doc_ids[1:], vectors[1:])))
    refused("24", np.ones((40, 5)))
    refused("not finite", np.where(np.arange(40)[:, None] == 3, np.nan, vectors))
    refused("array", np.array([["a"] * 3] * 40))
    refused("no such file", tmp_path / "none.npy")
    (tmp_path / "bad.npy").write_bytes(b"no array")
    refused(r"bad\.npy", tmp_path / "bad.npy")
    (tmp_path / "bad.npy").rename(tmp_path / "bad.txt")
    refused("neither", tmp_path / "bad.txt")
    with pytest.raises(Unsupported, match="uses no vectors"):
        callslip.fit(small_corpus, "bm25", vectors=vectors)
    refused("of queries 3", vectors, query_vectors={"q": np.ones(3)})
    with pytest.raises(BadInput, match="more than once"):
        GivenVectors(["a", "a"], np.ones((2, 2)))


def test_parquet(small_corpus, vectors, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    from pyarrow import parquet

    order = np.random.default_rng(0).permutation(40)
    names = [small_corpus.doc_ids[row] for row in order]
    table = pyarrow.table({"item_id": names, "embedding": [vectors[row].tolist() for row in order]})
    parquet.write_table(table, tmp_path / "v.parquet")
    found = given_vectors(tmp_path / "v.parquet", small_corpus.doc_ids, "documents")
    np.testing.assert_allclose(found.of(small_corpus.doc_ids), vectors, atol=1e-6)
    parquet.write_table(pyarrow.table({"item_id": names}), tmp_path / "w.parquet")
    with pytest.raises(BadInput, match="no column of vectors"):
        given_vectors(tmp_path / "w.parquet", None, "documents")
    identifiers = Identifiers.from_sequences(["a", "b", "c"], [[1, 2], [1], [0, 3]])
    write_codes(tmp_path / "c.parquet", identifiers)
    assert read_codes(tmp_path / "c.parquet").in_row_order()[1].tolist() == [[1, 2], [1, -1], [0, 3]]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".npy"])
def test_codes_are_written_and_read_again(tmp_path, suffix):
    identifiers = Identifiers.from_sequences(["a,1", 'b"', "c", "7"], [[1, 2], [1], [0, 3], [1, 2]])
    path = tmp_path / f"codes{suffix}"
    write_codes(path, identifiers)
    named, again = named_codes(path)
    assert named == (suffix != ".npy")
    if named:
        assert {d: again.code_of(d) for d in again.doc_ids} == {d: identifiers.code_of(d) for d in identifiers.doc_ids}
    else:
        assert again.in_row_order()[1].tolist() == identifiers.in_row_order()[1].tolist()
    if suffix == ".csv":
        assert path.read_text().splitlines()[:2] == ["item_id,sid_0,sid_1", '"a,1",1,2']
    if suffix == ".json":
        assert json.loads(path.read_text()) == {"1,2": ["a,1", "7"], "1": ['b"'], "0,3": ["c"]}


@pytest.mark.parametrize("suffix", [".csv", ".json", ".npy"])
def test_an_index_of_given_codes(small_corpus, tmp_path, suffix):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 5, (40, 3)).astype(np.int32)
    path = tmp_path / f"codes{suffix}"
    write_codes(path, Identifiers(small_corpus.doc_ids, codes))
    index = callslip.fit(small_corpus, "dsi-semantic", settings=FAST | SCRATCH | {"codes_from": str(path)})
    np.testing.assert_array_equal(index.codes_by_row(), codes)
    fewer = callslip.Corpus(small_corpus.documents[:10])
    if suffix == ".npy":
        with pytest.raises(BadInput, match="40 codes for 10"):
            callslip.fit(fewer, "dsi-semantic", settings=SCRATCH | {"codes_from": str(path)})
    else:
        more = callslip.Corpus([*small_corpus.documents, callslip.Document("new", "x")])
        with pytest.raises(BadInput, match="no code for 1 of 41"):
            callslip.fit(more, "dsi-semantic", settings=SCRATCH | {"codes_from": str(path)})
