"""Segments in the ranking of tied residual codes: fitted, searched, changed, saved, and made by a job."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_bert import save_small_bert

import callslip
from callslip import api
from callslip.corpus.documents import Corpus, Document, Query
from callslip.encoders.segments import unit_vectors
from callslip.errors import BadSetting
from callslip.methods import make
from callslip.methods.tied_residual import method
from callslip.search import fusion

WORDS = ["badger", "otter", "heron", "salmon", "river", "forest", "harbour", "desert", "violin", "oak"]
QUERIES = ["heron of the river", "violin", "the desert and the oak", "salmon salmon"]


def document(number: int, salt: int = 0) -> Document:
    """A document of up to six stretches, each about one word."""
    rng = np.random.default_rng(number + 1000 * salt)
    stretches = [" ".join([WORDS[rng.integers(len(WORDS))]] * 16) for _ in range(rng.integers(1, 7))]
    text = ". ".join(f"It {stretch}" for stretch in stretches)
    return Document(f"d{number}", f"{text}. Mark mark{number}.", "", {"even": number % 2 == 0})


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> str:
    return str(save_small_bert(tmp_path_factory.mktemp("bert"), WORDS, max_position_embeddings=128))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    documents = [document(number) for number in range(30)]
    found = Corpus(documents, {f"q{n}": Query(f"q{n}", text) for n, text in enumerate(QUERIES)})
    found.judgements = {"train": {"q0": {"d1": 1}, "q1": {"d3": 1}}}
    return found


def fit(corpus: Corpus, encoder: str, **values):
    fixed = {"encoder": encoder, "backend": "torch", "length": 10, "segments": 4, "segment_length": 6}
    return make("tied-residual", fixed | values).fit(corpus)


@pytest.fixture(scope="module")
def index(corpus, encoder):
    return fit(corpus, encoder)


def plain_nearest(index, documents, query: str) -> np.ndarray:
    """The similarity of a query to the nearest of each document's text and segments, as their codes say."""
    vectors, segments = index.texts.encoder.segmented([d.content for d in documents], 4, kind="document")
    bases = index.maker.decode(index.maker.assign(vectors))
    asked, best = index.texts.encode([query])[0], []
    for row, base in enumerate(bases):
        own = unit_vectors(segments[row])
        rebuilt = [base]
        if len(own):
            codes = index.segment_maker.levels.assign(own - base)
            rebuilt += [one / np.linalg.norm(one) for one in base + index.segment_maker.levels.sums(codes)]
        best.append(max(float(asked @ one) for one in rebuilt))
    return np.array(best)


def check_nearest(index, documents, query: str):
    """The evidence for a query has the similarity of the nearest segment, of all documents."""
    table, stems = index.tables(index.texts.encode([query]))[0], index.words.tokenize([query])[0]
    evidence = index.evidence(table, stems, len(documents))
    assert len(evidence.rows) == len(documents)
    np.testing.assert_allclose(evidence.nearest, plain_nearest(index, documents, query)[evidence.rows], atol=3e-3)
    return evidence


@pytest.mark.parametrize("query", QUERIES)
def test_evidence_has_the_nearest_of_text_and_segments(index, corpus, query):
    evidence = check_nearest(index, corpus.documents, query)
    named = dict(zip(fusion.FEATURES, evidence.features.T, strict=True))
    np.testing.assert_allclose(named["segment_similarity"], 10 * evidence.nearest, rtol=1e-5)
    assert (evidence.nearest > evidence.similarity + 0.01).any() and named["segment"].max() == 1


def test_a_document_is_found_by_a_segment_that_its_whole_text_hides(corpus, encoder):
    index = fit(corpus, encoder, words=False, memory=False, depth=1)
    index.weights = dataclasses.replace(index.weights, values=fusion.weights_of(segment=1.0))
    texts = index.maker.decode(index.entries.codes_of(np.arange(30)))
    hidden = 0
    for query in QUERIES:
        # The nearest document by its whole text, and three more, are compared by their segments.
        whole = texts @ index.texts.encode([query])[0]
        compared = np.argsort(-whole)[:4]
        nearest = plain_nearest(index, corpus.documents, query)[compared]
        best = compared[nearest.argmax()]
        hidden += best != compared[0]
        assert index.search(query, 1).doc_ids == [corpus.documents[best].doc_id]
    assert hidden


def test_explanations_tell_a_segment_that_is_nearer_than_the_text(index):
    whys = [hit.why for query in QUERIES for hit in index.search(query, 10, explain=True)]
    nearer = [why for why in whys if "segment_similarity" in why]
    assert nearer and all(why["segment_similarity"] > why["similarity"] for why in nearer)


@pytest.mark.parametrize(("values", "length"), [({"segments": 0}, None), ({"segment_length": 3}, 3), ({}, 6)])
def test_segments_have_the_length_that_is_asked_for(corpus, encoder, values, length):
    index = fit(corpus, encoder, **values)
    assert (index.segments is None) == (length is None)
    prior = fusion.EVEN if length is None else fusion.EVEN_WITH_SEGMENTS
    np.testing.assert_allclose(fit(corpus, encoder, held_out=0, memory=False, **values).weights.values, prior)
    if length is not None:
        assert index.segments.layers[0].codes.shape[1] == length
        assert index.segments.layers[0].counts.max() == 4


def test_too_many_segments_are_refused():
    with pytest.raises(BadSetting, match="segments"):
        make("tied-residual", {"segments": 256})


def test_encoders_without_segments_have_an_index_without(corpus):
    index = make("tied-residual", {"encoder": "scratch:dim=16", "length": 6}).fit(corpus)
    assert index.segments is None and not index.weights.values[2:4].any()


def test_sentences_are_asked_of_documents_without_their_segments(corpus, encoder, spy, monkeypatch):
    from callslip.methods.tied_residual import weights

    monkeypatch.setattr(weights, "SENTENCE_WORDS", 3)
    calls = spy(method.TiedResidual, "evidence")
    blind = dataclasses.replace(corpus, judgements={})
    fit(blind, encoder)
    tables = [call["segments"] for call in calls if call["mask"] is not None]
    assert tables and all(len(table) == 30 + len(tables) for table in tables)


@pytest.fixture(scope="module")
def folder(corpus, encoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "index"
    fit(corpus, encoder).save(path)
    return path


def hits(index):
    return [[(hit.doc_id, hit.score) for hit in one] for one in index.search_batch(QUERIES, k=8)]


changes = st.lists(
    st.tuples(st.sampled_from(["add", "delete", "update", "compact"]), st.integers(0, 40), st.integers(0, 3)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes)
def test_changes_keep_segments_with_their_documents(folder, tmp_path, planned):
    path = tmp_path / "index"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder, path)
    changed = callslip.load(path)
    known = {f"d{number}": document(number) for number in range(30)}
    for kind, number, salt in planned:
        name = f"d{number}"
        if kind == "add" and name not in known:
            known[name] = document(number, salt)
            changed.add([known[name]])
        elif kind == "delete" and name in known and len(known) > 5:
            changed.delete([name])
            del known[name]
        elif kind == "update":
            known[name] = document(number, salt)
            changed.update([known[name]])
        elif kind == "compact":
            changed.compact()
    expected = hits(changed)
    again = callslip.load(path)
    assert hits(again) == expected
    again.compact()
    folded = callslip.load(path)
    assert hits(folded) == expected and len(folded.segments.layers) == 1
    rows = folded.row_of()
    check_nearest(folded, [known[doc_id] for doc_id in sorted(rows, key=rows.__getitem__)], QUERIES[0])


def test_a_job_makes_the_segments_of_a_fit(corpus, encoder, tmp_path):
    source = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text}) for d in corpus.documents]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    fixed = {"encoder": encoder, "backend": "torch", "length": 10, "segments": 4, "segment_length": 6, "held_out": 0}
    api.plan(source, tmp_path / "job", settings=fixed, shard_rows=7)
    api.encode(tmp_path / "job")
    built = api.build(tmp_path / "job", tmp_path / "built")
    fitted = make("tied-residual", fixed).fit(callslip.load_corpus(source))
    assert fitted.segments.layers[0].counts.tolist() == built.segments.layers[0].counts.tolist()
    check_nearest(built, corpus.documents, QUERIES[0])
    loaded = callslip.load(tmp_path / "built")
    assert hits(loaded) == hits(built)


def test_folders_without_segments_are_searched_as_before(corpus, encoder, tmp_path):
    fit(corpus, encoder, segments=0).save(tmp_path / "old")
    manifest = json.loads((tmp_path / "old" / "manifest.json").read_text(encoding="utf-8"))
    assert not any("segment" in name for name in manifest["files"])
    old = callslip.load(tmp_path / "old")
    before = hits(old)
    old.add([document(77)])
    old.delete(["d77"])
    assert old.segments is None and hits(old) == before
