"""Drift against figures that can be counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from word_codes import WordCodes, code_of, make_index

from callslip import api
from callslip.corpus.documents import Document
from callslip.storage.drift import Drift


def test_figures_by_hand(tmp_path):
    old = {f"d{n}": f"text {n}" for n in range(30)}
    make_index(tmp_path / "index", old)
    index = api.load(tmp_path / "index")
    before = index.drift()
    assert (before.documents, before.new, before.outside, before.reasons) == (30, 0, 0.0, [])
    assert before.bucket_now == before.bucket_trained
    new = {f"n{n}": f"new {n}" for n in range(20)} | {"same": "text 3"}
    index.add([Document(doc_id, text) for doc_id, text in new.items()])
    index.delete(["d0", "n0"])
    for compacted in (False, True):  # a snapshot changes nothing about what the model was trained on
        if compacted:
            index.compact()
        found = index.drift()
        trained = {tuple(code_of(text)) for doc_id, text in old.items() if not (compacted and doc_id == "d0")}
        alive = {key: text for key, text in (old | new).items() if key not in ("d0", "n0")}
        outside = [tuple(code_of(text)) not in trained for key, text in alive.items() if key in new]
        codes = [tuple(code_of(text)) for text in alive.values()]
        assert (found.documents, found.new) == (49, 20)
        assert found.outside == pytest.approx(np.mean(outside))
        assert found.bucket_now == pytest.approx(np.mean([codes.count(code) for code in codes]))
        assert any("came after training" in reason for reason in found.reasons)
        assert found.lines()[-1].startswith("fit again")


def test_documents_unlike_those_trained_on(tmp_path, monkeypatch):
    """Vectors on a circle: the trained ones on one side, the new ones among them or opposite."""
    monkeypatch.setattr(
        WordCodes,
        "_vectors_of",
        lambda self, documents: np.array(
            [[np.cos(float(d.text)), np.sin(float(d.text)), 0, 0] for d in documents], np.float32
        ).reshape(-1, 4),
    )
    make_index(tmp_path / "index", {f"d{n}": str(n / 100) for n in range(100)})
    index = api.load(tmp_path / "index")
    index.add([Document(f"near{n}", str(n / 100 + 0.001)) for n in range(3)])
    assert index.drift().unlike == 0.0
    index.add([Document("far", str(np.pi))])
    assert index.drift().unlike == pytest.approx(1 / 4)
    index.compact()
    assert index.drift().unlike == pytest.approx(1 / 4)


def test_the_advice_does_not_contradict_the_figures():
    """Few new documents are no reason to fit again, but if they are unlike the others, all is not well."""
    few = Drift(documents=265, new=1, unlike=1.0, outside=1.0, bucket_trained=2.0, bucket_now=2.0)
    assert few.reasons == []
    assert "100.0% of the new ones are unlike any trained on (5 % would be no drift)" in few.lines()
    assert few.lines()[-1].endswith("fit again when there are more of them")
    assert "no need" not in " ".join(few.lines())
    assert replace(few, unlike=0.0, outside=0.0).lines()[-1] == "no need to fit again"
    assert replace(few, new=0).lines()[-1] == "no need to fit again"
    assert replace(few, new=60).lines()[-1].startswith("fit again: ")
