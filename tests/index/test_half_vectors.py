"""The vectors of generative methods: half precision in memory and in the folder, and older folders as they are."""

from __future__ import annotations

import numpy as np
from test_contract import quick

from callslip import api
from callslip.corpus.documents import Document
from callslip.search.vector_table import VectorTable

QUERIES = ["violin with the mark music5", "the nile", "a planet"]


def hits(index) -> list[list[tuple[str, float]]]:
    return [[(hit.doc_id, hit.score) for hit in one] for one in index.search_batch(QUERIES, k=8)]


def stored(path, generation: int = 1) -> np.dtype:
    return np.load(path / f"generation-00000{generation}" / "vectors.npy", allow_pickle=False).dtype


def test_vectors_are_held_and_stored_in_half_precision(small_corpus, tmp_path):
    index = quick("dsi-semantic").fit(small_corpus)
    assert index.vectors.stored == np.float16
    index.save(tmp_path / "index")
    assert stored(tmp_path / "index") == np.float16
    assert hits(api.load(tmp_path / "index")) == hits(index)
    index.add([Document("new", "a violin on a planet")])
    expected = hits(index)
    assert hits(api.load(tmp_path / "index")) == expected
    index.compact()
    assert stored(tmp_path / "index", 2) == np.float16 and hits(api.load(tmp_path / "index")) == hits(index) == expected


def test_folders_with_whole_precision_stay_as_they_are(small_corpus, tmp_path):
    index = quick("dsi-semantic").fit(small_corpus)
    index.vectors = VectorTable(index.texts.documents(small_corpus, ""))  # as earlier versions held them
    index.save(tmp_path / "index")
    assert stored(tmp_path / "index") == np.float32
    opened = api.load(tmp_path / "index")
    assert hits(opened) == hits(index)
    opened.add([Document("new", "a violin on a planet")])
    opened.compact()
    assert stored(tmp_path / "index", 2) == np.float32 and hits(api.load(tmp_path / "index")) == hits(opened)
