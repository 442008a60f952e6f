"""Vectors that an index holds: half precision, in the order of codes where there are codes, and older folders as they
are."""

from __future__ import annotations

import json

import numpy as np
import pytest
from half_precision import HALF
from small_log import small_log
from test_contract import quick

from callslip import api
from callslip.corpus.documents import Document, Query
from callslip.identifiers import vector_table
from callslip.storage.check import check
from callslip.storage.drift import measure
from callslip.storage.home import Home

QUERIES = ["violin with the mark music5", "the nile", "a planet"]
CODED = ["dsi-semantic", "glen", "uri", "recforest"]
UNCODED = ["dense", "memory", "tied-atomic"]


def hits(index) -> list[list[tuple[str, float]]]:
    return [[(hit.doc_id, hit.score) for hit in one] for one in index.search_batch(QUERIES, k=8)]


def same(index, expected: list[list[tuple[str, float]]]) -> None:
    """The index has these hits; scores may differ in last bits, where a product is computed in other blocks."""
    for one, other in zip(hits(index), expected, strict=True):
        assert [doc_id for doc_id, _ in one] == [doc_id for doc_id, _ in other]
        assert [score for _, score in one] == pytest.approx([score for _, score in other], abs=1e-6)


def vectors_of(path, method: str, generation: int = 1) -> np.ndarray:
    """The vectors of a folder as they lie in the file."""
    name = "vectors.npy" if method in UNCODED else "vectors-by-code.npy"
    place = next(iter(sorted((path / f"generation-00000{generation}").rglob(name))))
    other = {"vectors.npy", "vectors-by-code.npy"} - {name}
    assert not (place.parent / other.pop()).exists()
    return np.load(place, allow_pickle=False)


@pytest.mark.parametrize("method", [*CODED, *UNCODED])
def test_vectors_are_held_and_stored_in_half_precision(small_corpus, tmp_path, method):
    """Fitted, saved, opened, changed and compacted, an index finds the same."""
    index = quick(method).fit(small_corpus)
    index.save(tmp_path / "index")
    stored = vectors_of(tmp_path / "index", method)
    assert stored.dtype == np.float16 and stored.shape[0] == 40 and stored.shape[1] > 1
    opened, before = api.load(tmp_path / "index"), hits(index)
    same(opened, before)
    opened.add([Document("new", "a violin on a planet")])
    opened.delete([small_corpus.documents[3].doc_id])
    changed = hits(opened)
    assert changed != before
    same(api.load(tmp_path / "index"), changed)
    opened.compact()
    assert vectors_of(tmp_path / "index", method, 2).dtype == np.float16
    for one in (opened, api.load(tmp_path / "index")):
        same(one, changed)
    check(tmp_path / "index")


@pytest.mark.parametrize("method", ["dsi-semantic", "glen", "uri"])
def test_vectors_lie_in_the_order_of_the_codes(small_corpus, tmp_path, method):
    index = quick(method).fit(small_corpus)
    index.save(tmp_path / "index")
    truth = index.texts.encode([document.content for document in small_corpus])
    rows = index.identifiers.rows
    assert (np.diff(rows) < 0).any()  # or the order of the rows would do
    np.testing.assert_allclose(vectors_of(tmp_path / "index", method).astype(np.float32), truth[rows], **HALF)
    opened = api.load(tmp_path / "index")
    np.testing.assert_allclose(opened.vectors, truth, **HALF)
    opened.add([Document("new", "a violin on a planet")])
    opened.compact()
    truth = np.concatenate([truth, index.texts.encode(["a violin on a planet"])])
    whole = opened.identifiers.rows
    assert whole[-1] != 40  # the new document is among the others
    np.testing.assert_allclose(vectors_of(tmp_path / "index", method, 2).astype(np.float32), truth[whole], **HALF)


@pytest.mark.parametrize("method", ["dsi-semantic", "dense"])
def test_folders_with_whole_precision_stay_as_they_are(small_corpus, tmp_path, method, monkeypatch):
    with monkeypatch.context() as patch:  # as earlier versions wrote them: float32, by row
        patch.setattr(vector_table, "HELD", np.float32)
        save = vector_table.VectorTable.save
        patch.setattr(vector_table.VectorTable, "save", lambda self, folder, rows=None: save(self, folder))
        index = quick(method).fit(small_corpus)
        index.save(tmp_path / "index")
        expected = hits(index)
    folder = tmp_path / "index" / "generation-000001"
    np.testing.assert_allclose(
        np.load(folder / "vectors.npy"), index.texts.encode([d.content for d in small_corpus]), atol=1e-6
    )
    opened = api.load(tmp_path / "index")
    same(opened, expected)
    opened.add([Document("new", "a violin on a planet")])
    changed = hits(opened)
    opened.compact()
    assert vectors_of(tmp_path / "index", method, 2).dtype == np.float32
    for one in (opened, api.load(tmp_path / "index")):
        same(one, changed)


def test_items_of_a_log_are_read_as_they_are_stored(tmp_path):
    log = small_log(users=24)
    values = {"items": "both", "queries": "sequence", "start": "none"}
    index = quick("dsi-semantic", **values).fit(log)
    index.save(tmp_path / "index")
    opened = api.load(tmp_path / "index")
    asked = [Query("a", "", tuple(log.doc_ids[:3])), Query("b", "", tuple(log.doc_ids[7:9]))]

    def found(one):
        return [[(hit.doc_id, hit.score) for hit in hits] for hits in one.search_batch(asked, k=9)]

    assert found(opened) == found(index)
    texts = index.model.items.texts[1:].numpy()
    np.testing.assert_array_equal(texts, np.asarray(opened.vectors))
    assert np.array_equal(texts, texts.astype(np.float16)) and len(np.unique(texts)) > 100


def test_drift_and_inspect_read_vectors_in_the_order_of_codes(small_corpus, tmp_path, monkeypatch):
    """Both see every document beside its own code: as with a folder of vectors by row."""
    from typer.testing import CliRunner

    from callslip.cli import app, register

    register()
    drifts, reports = [], []
    save = vector_table.VectorTable.save
    for by_row in (False, True):
        with monkeypatch.context() as patch:
            if by_row:
                patch.setattr(vector_table.VectorTable, "save", lambda self, folder, rows=None: save(self, folder))
            path = tmp_path / f"by row {by_row}"
            index = quick("dsi-semantic").fit(small_corpus)
            index.save(path)
            index.add([Document("new", "a violin on a planet"), Document("odd", "xylophone 77 quartz")])
        home = Home.open(path, verify=False)
        drifts.append(measure(home))
        home.close()
        said = CliRunner().invoke(app, ["inspect", str(path), "--json"])
        assert said.exit_code == 0, said.output
        reports.append(json.loads(said.stdout))
    assert drifts[0] == drifts[1] and drifts[0].unlike is not None
    assert reports[0]["neighbours"] == reports[1]["neighbours"]
