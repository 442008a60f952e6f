"""Ultron-PQ: its codes are those of a plain product quantiser, and new documents get the nearest centroids."""

from __future__ import annotations

import numpy as np
import pytest

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import BadSetting
from callslip.methods import make

QUICK = {"encoder": "scratch", "epochs": 10, "decoder_width": 32, "width": 4, "length": 3, "batch_size": 64}


def plain_code(vector: np.ndarray, books: list[np.ndarray]) -> list[int]:
    """The nearest centroid of each stretch, one distance at a time."""
    code, at = [], 0
    for book in books:
        part = vector[at : at + book.shape[1]]
        code.append(min(range(len(book)), key=lambda token: float(((part - book[token]) ** 2).sum())))
        at += book.shape[1]
    return code


def test_codes_are_nearest_centroids(small_corpus):
    index = make("ultron-pq", QUICK | {"epochs": 0}).fit(small_corpus)
    _, table = index.identifiers.in_row_order()
    assert table.shape == (40, 3)
    expected = [plain_code(vector, index.maker.codebooks) for vector in index.vectors]
    np.testing.assert_array_equal(table, expected)


def test_a_new_document_is_coded_by_the_saved_codebooks(small_corpus, tmp_path):
    make("ultron-pq", QUICK).fit(small_corpus).save(tmp_path / "index")
    index = api.load(tmp_path / "index")
    twin = small_corpus.documents[7]
    index.add([Document("twin", twin.text, twin.title), Document("other", "A flute of copper on the Volga.")])
    assert index.identifiers.code_of("twin") == index.identifiers.code_of(twin.doc_id)
    assert list(index.identifiers.code_of("other")) == plain_code(index.vectors[-1], index.maker.codebooks)


def test_mistakes_are_explained(small_corpus):
    with pytest.raises(BadSetting, match="length"):
        make("ultron-pq", {"length": 0})
    with pytest.raises(BadSetting, match="subvectors"):
        make("ultron-pq", QUICK | {"length": 10_000}).fit(small_corpus)
