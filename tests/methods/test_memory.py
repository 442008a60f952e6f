"""The memory control: a document is as near as the nearest of its text and the train queries that it answered."""

from __future__ import annotations

import numpy as np
import pytest
from half_precision import HALF

from callslip import api
from callslip.corpus.documents import Corpus, Document
from callslip.errors import BadSetting
from callslip.methods import make

SCRATCH = {"encoder": "scratch"}


def naive_scores(index, corpus, text, margin):
    """doc_id -> score, query by query and document by document."""
    vector = lambda words: index.texts.encode([words])[0]  # noqa: E731
    q, scores = vector(text), {}
    queries, judgements = corpus.split("train")
    for document in corpus:
        known = [queries[qid].text for qid, judged in judgements.items() if judged.get(document.doc_id, 0) > 0]
        scores[document.doc_id] = max([q @ vector(document.content), *(q @ vector(t) - margin for t in known)])
    return scores


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_scores_equal_the_naive_maximum(small_corpus, margin):
    index = make("memory", SCRATCH | {"margin": margin}).fit(small_corpus)
    asked = next(iter(small_corpus.split("train")[0].values())).text
    for text in (asked, "violin music3", "the nile"):
        truth = naive_scores(index, small_corpus, text, margin)
        hits = index.search(text, k=len(small_corpus))
        assert {hit.doc_id: pytest.approx(hit.score, abs=HALF["rtol"]) for hit in hits} == truth


def test_the_reason_is_the_earlier_query(small_corpus):
    index = make("memory", SCRATCH).fit(small_corpus)
    queries, judgements = small_corpus.split("train")
    qid, query = next(iter(queries.items()))
    hit = index.search(query, k=1, explain=True)[0]
    assert hit.doc_id in judgements[qid]
    assert hit.why["earlier_query"] == query.text and hit.why["earlier_similarity"] == pytest.approx(1, abs=1e-5)
    far = index.adjust({"margin": 5.0}).search(query, k=1, explain=True)[0]
    assert set(far.why) == {"similarity"} and far.score == pytest.approx(far.why["similarity"])


def test_without_train_queries_it_is_dense(small_corpus):
    corpus = Corpus(small_corpus.documents)
    memory, dense = make("memory", SCRATCH).fit(corpus), make("dense", SCRATCH).fit(corpus)
    assert memory.search("violin", k=9).doc_ids == dense.search("violin", k=9).doc_ids


def test_what_a_deleted_document_answered_is_forgotten(small_corpus, tmp_path):
    index = make("memory", SCRATCH).fit(small_corpus)
    index.save(tmp_path / "index")
    queries, judgements = small_corpus.split("train")
    qid = next(iter(queries))
    answers = [d for d, grade in judgements[qid].items() if grade > 0]
    index.delete(answers)
    index.add([Document("new/1", "The gong is a music, marked gong77.")])
    before = index.search(queries[qid], k=20)
    index.compact()
    assert queries[qid].text not in index.asked_texts
    assert len(index.asked_texts) == len(index.asked) == len(np.unique(index.answers[:, 0]))
    again = api.load(tmp_path / "index")
    for same in (index, again):
        after = same.search(queries[qid], k=20)
        assert after.doc_ids == before.doc_ids and after.scores == pytest.approx(before.scores, abs=1e-5)


def test_a_margin_is_a_number():
    with pytest.raises(BadSetting, match="margin"):
        make("memory", {"margin": "inf"})
