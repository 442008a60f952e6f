"""DSI: its codes are those of the makers, its atomic search is a top-k of a softmax, and it can take new documents."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import BadSetting
from callslip.identifiers import HierarchicalKMeans, levels_for
from callslip.methods import make

QUICK = {"encoder": "scratch", "epochs": 10, "decoder_width": 32, "width": 4, "leaf": 3, "batch_size": 64}


def test_levels_leave_about_a_leaf_to_each_code():
    for documents, width, leaf in [(5183, 32, 5), (100_000, 10, 1), (40, 4, 3), (1, 32, 5), (7, 32, 5)]:
        length = levels_for(documents, width, leaf)
        assert length >= 1
        exact = np.log(max(2, documents / leaf)) / np.log(width)
        assert abs(length - exact) <= 0.5 or length == 1
    with pytest.raises(BadSetting, match="width"):
        levels_for(10, 1, 1)


def test_semantic_codes_are_the_k_means_tree(small_corpus):
    index = make("dsi-semantic", QUICK | {"epochs": 0, "length": 2}).fit(small_corpus)
    codes = HierarchicalKMeans(width=4, length=2, seed=0).fit(index.vectors)
    ids, table = index.identifiers.in_row_order()
    assert list(ids) == small_corpus.doc_ids
    np.testing.assert_array_equal(table, codes)


@pytest.mark.parametrize("name", ["dsi-atomic", "dsi-naive", "dsi-random"])
def test_other_codes_tell_all_documents_apart(name, small_corpus):
    index = make(name, QUICK | {"epochs": 0, "length": 4}).fit(small_corpus)
    assert index.identifiers.unique == len(small_corpus)


def test_atomic_search_is_the_top_of_one_softmax(small_corpus):
    index = make("dsi-atomic", QUICK | {"ranking": "bucket"}).fit(small_corpus)
    query = "which violin has the mark music5"
    vector = torch.from_numpy(index.texts.encode([query]))
    with torch.inference_mode():
        logits = index.model(vector, torch.zeros(1, 1, dtype=torch.long))[0][0]
    best = logits.log_softmax(-1).topk(5)
    hits = index.search(query, k=5)
    assert hits.doc_ids == [small_corpus.documents[row].doc_id for row in best.indices]
    np.testing.assert_allclose(hits.scores, best.values, atol=1e-5)


def test_a_wide_beam_finds_every_document(small_corpus):
    index = make("dsi-semantic", QUICK).fit(small_corpus)
    for beam in (1, 3, 1000):
        index.settings = dataclasses.replace(index.settings, beam=beam)
        assert set(index.search("violin", k=40).doc_ids) == set(small_corpus.doc_ids)


def test_a_new_document_gets_the_code_of_its_cluster(small_corpus):
    """A copy of a known document must land in the known one's bucket."""
    index = make("dsi-semantic", QUICK).fit(small_corpus)
    twin = small_corpus.documents[7]
    index.add([Document("twin", twin.text, twin.title)])
    assert index.identifiers.code_of("twin") == index.identifiers.code_of(twin.doc_id)


def test_the_training_log_is_kept(small_corpus, tmp_path):
    index = make("dsi-semantic", QUICK).fit(small_corpus)
    index.save(tmp_path / "index")
    records = api.load(tmp_path / "index").log.records
    assert len(records) == 10
    assert records[-1]["generation"] < records[0]["generation"]


def test_pseudo_queries_can_be_chosen(small_corpus):
    pairs = make("dsi-semantic", QUICK | {"training_texts": "title", "query_repeat": 0}).training_pairs(small_corpus)
    assert {pair.query for pair in pairs} == {document.title for document in small_corpus}
    both = make("dsi-semantic", QUICK | {"training_texts": "", "query_repeat": 3}).training_pairs(small_corpus)
    assert len(both) == 3 * 40


def test_dsi_qg_never_reads_a_documents_text(small_corpus):
    """Its examples are the vectors of pseudo-queries and judged queries, and none is a document's."""
    index = make("dsi-qg", QUICK | {"epochs": 0}).fit(small_corpus)
    contents = {document.content for document in small_corpus}
    pairs = index.training_pairs(small_corpus)
    assert pairs and not {pair.query for pair in pairs} & contents
    examples = index.examples(small_corpus)
    assert len(examples.inputs) == len(examples.rows) == len(pairs)
    with_text = make("dsi-qg", QUICK | {"epochs": 0, "training_texts": "document,title,sentences"}).fit(small_corpus)
    assert len(with_text.examples(small_corpus).inputs) == len(pairs) + len(small_corpus)


def test_dsi_by_text_makes_no_queries(small_corpus):
    """The preset `text` trains on stretches of the text alone: every example is found in its document, word by word."""
    index = make("dsi-semantic", QUICK | {"query_repeat": 0}, preset="text")
    text_of = {document.doc_id: document.text for document in small_corpus}
    pairs = index.training_pairs(small_corpus)
    assert pairs and all(pair.query in text_of[pair.doc_id] for pair in pairs)
    assert "document" in index.settings.training_texts


def test_settings_of_a_search_are_followed_or_refused(small_corpus):
    from callslip.errors import BadSetting

    index = make("dsi-semantic", QUICK).fit(small_corpus)
    before = index.texts.encoder
    assert index.adjust({"beam": 3}).texts.encoder is before
    assert index.adjust({"backend": "torch"}).texts.encoder is not before
    index.adjust({"device": "cpu"})
    for wrong in ({"device": "foo"}, {"similarity_weight": float("nan")}):
        with pytest.raises(BadSetting):
            index.adjust(wrong)
    assert index.settings.device == "cpu" and index.search("lift", k=2)
