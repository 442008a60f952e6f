"""PyTerrier's transformer and indexer, without Java."""

import pytest

import callslip

pt = pytest.importorskip("pyterrier", reason="the extra 'pyterrier' is not installed")
pd = pytest.importorskip("pandas")


def test_indexer_transformer_and_pipelines(small_corpus, tmp_path):
    from callslip.adapters.pyterrier import CallslipIndexer, CallslipRetriever

    rows = [{"docno": d.doc_id, "title": d.title, "text": d.text, "topic": d.metadata["topic"]} for d in small_corpus]
    index = CallslipIndexer(tmp_path / "index", "bm25", {"k1": 1.2}).index(iter(rows))
    assert index.settings.k1 == 1.2 and index.documents.rows([0])[0].metadata["topic"] == "fruit"
    retriever = CallslipRetriever(tmp_path / "index", k=5, text=True)
    topics = pd.DataFrame({"qid": ["1", "2"], "query": ["violin music0", "danube river0"], "other": [7, 8]})
    found = retriever(topics)
    assert list(found.columns) == ["qid", "query", "other", "docno", "score", "rank", "title", "text"]
    one = found[found.qid == "1"]
    assert one["rank"].tolist() == list(range(len(one))) and one["docno"].tolist()[0] == "music/0"
    assert one["docno"].tolist() == index.search("violin music0", 5).doc_ids and set(one["other"]) == {7}
    assert (retriever % 2)(topics).groupby("qid").size().tolist() == [2, 2]
    assert retriever.search("nothing of that").empty or len(retriever.search("nothing of that")) <= 5
    assert retriever(topics[:0]).empty


def test_an_experiment_agrees_with_our_evaluation(small_corpus):
    from callslip.adapters.pyterrier import CallslipRetriever

    index = callslip.fit(small_corpus, "bm25")
    queries, judged = small_corpus.split("test")
    topics = pd.DataFrame([{"qid": q.query_id, "query": q.text} for q in queries.values()])
    qrels = pd.DataFrame(
        [{"qid": q, "docno": d, "label": g} for q, grades in judged.items() for d, g in grades.items()]
    )
    table = pt.Experiment([CallslipRetriever(index, 100)], topics, qrels, ["ndcg_cut_10"])
    ours = callslip.evaluate(index, small_corpus, measures="nDCG@10").measures["nDCG@10"].mean
    assert table["ndcg_cut_10"][0] == pytest.approx(ours, abs=1e-9)
