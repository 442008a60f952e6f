"""Diverse lists: against a plain loop, and in every method that has the setting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_log import small_log

from callslip.corpus.documents import Query
from callslip.errors import BadSetting
from callslip.filters.filter import Filter
from callslip.methods import make
from callslip.search.diversity import marginal_relevance

ASKED = Query("q", "", ("soap-2", "soap-3", "tea-4"))


def plain(scores, vectors, k, diversity):
    """Maximal marginal relevance by loops."""
    low, high = min(scores), max(scores)
    relevance = [(score - low) / (high - low) for score in scores]

    def cosine(a, b):
        return float(vectors[a] @ vectors[b] / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b]))

    chosen: list[int] = []
    while len(chosen) < min(k, len(scores)):
        gains = {
            n: (1 - diversity) * relevance[n] - diversity * max([0.0, *(cosine(n, c) for c in chosen)])
            for n in range(len(scores))
            if n not in chosen
        }
        chosen.append(max(gains, key=lambda n: (gains[n], -n)))
    return chosen


@given(seed=st.integers(0, 999), k=st.integers(1, 9), diversity=st.sampled_from([0.0, 0.3, 0.8]))
def test_the_order_is_that_of_a_plain_loop(seed, k, diversity):
    rng = np.random.default_rng(seed)
    scores, vectors = rng.normal(size=7), rng.normal(size=(7, 3))
    assert marginal_relevance(scores, vectors, k, diversity) == plain(scores, vectors, k, diversity)
    assert marginal_relevance(scores, vectors, 7, 0.0) == np.argsort(-scores).tolist()


@pytest.mark.parametrize(
    "values", [("tied-log", {}), ("sasrec", {}), ("sasrec", {"start": "none"}), ("dsi-semantic", {}),
               ("dsi-semantic", {"start": "none"})], ids=str,
)  # fmt: skip
def test_a_diverse_list_has_items_of_more_rings(values):
    method, own = values
    quick = {"encoder": "scratch", "factors": 8, "length": 12} if method == "tied-log" else {"encoder": "scratch"}
    quick |= {} if method == "tied-log" else {"epochs": 1, "history_width": 16}
    quick |= {"decoder_width": 16, "width": 4, "length": 2} if method == "dsi-semantic" else {}
    index = make(method, quick | own).fit(small_log())
    before = index.search(ASKED, k=8)
    index.adjust({"diversity": 0.9})
    after = index.search(ASKED, k=8)
    rings = [len({doc_id.split("-")[0] for doc_id in hits.doc_ids}) for hits in (before, after)]
    assert after.doc_ids != before.doc_ids and rings[1] >= rings[0]
    assert not set(after.doc_ids) & set(ASKED.history) and len(set(after.doc_ids)) == 8
    narrow = index.search(ASKED, k=4, filter=Filter(where={"topic": "tea", "even": False}))
    assert set(narrow.doc_ids) == {"tea-1", "tea-3", "tea-5", "tea-7"}
    index.adjust({"diversity": 0.0})
    assert index.search(ASKED, k=8).doc_ids == before.doc_ids
    with pytest.raises(BadSetting, match="diversity"):
        index.adjust({"diversity": 1.0})
