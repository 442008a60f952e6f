"""An index in `mteb.evaluate`, on a task of this machine."""

import sys
from pathlib import Path

import pytest

import callslip
from callslip.errors import BadSetting

pytest.importorskip("mteb", reason="the extra 'mteb' is not installed")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


def test_evaluate_gives_our_own_figure(small_corpus):
    from mteb.models.models_protocols import SearchProtocol
    from mteb_task import ndcg

    from callslip.adapters.mteb import MTEBModel

    assert isinstance(MTEBModel("bm25"), SearchProtocol)
    ours = callslip.evaluate(callslip.fit(small_corpus, "bm25"), small_corpus, measures="nDCG@10")
    assert round(ndcg("bm25", small_corpus), 4) == round(ours.measures["nDCG@10"].mean, 4)


def test_scores_are_minus_the_rank_and_candidates_are_kept(small_corpus):
    from callslip.adapters.mteb import MTEBModel

    model = MTEBModel(callslip.fit(small_corpus, "bm25"))
    rows = [{"id": d.doc_id, "title": d.title, "text": d.text} for d in small_corpus]
    model.index(rows)
    query = [{"id": "q", "text": "violin music0"}]
    found = model.search(query, top_k=3)["q"]
    assert list(found.values()) == [-1.0, -2.0, -3.0] and next(iter(found)) == "music/0"
    few = model.search(query, top_k=3, top_ranked={"q": ["music/5", "river/1"]})["q"]
    assert set(few) <= {"music/5", "river/1"} and next(iter(few)) == "music/5"
    assert model.mteb_model_meta.name == "callslip/bm25"
    with pytest.raises(BadSetting, match="lacks 1 documents"):
        model.index([*rows, {"id": "new", "text": "x"}])
    with pytest.raises(BadSetting, match="nothing is indexed"):
        MTEBModel("bm25").search(query, top_k=1)
