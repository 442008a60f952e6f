"""PyTerrier: fit an index with an indexer, and compare pipelines. Needs callslip[pyterrier], but no Java."""

import tempfile

import pandas as pd
import pyterrier as pt

import callslip
from callslip.adapters.pyterrier import CallslipIndexer, CallslipRetriever

demo = callslip.load_corpus("demo")
queries, judged = demo.split("test")
topics = pd.DataFrame([{"qid": q.query_id, "query": q.text} for q in list(queries.values())[:40]])
qrels = pd.DataFrame([{"qid": q, "docno": d, "label": g} for q, grades in judged.items() for d, g in grades.items()])

with tempfile.TemporaryDirectory() as folder:
    rows = ({"docno": d.doc_id, "title": d.title, "text": d.text} for d in demo)
    index = CallslipIndexer(f"{folder}/index", method="bm25").index(rows)
    bm25 = CallslipRetriever(index, k=20)
    classic = CallslipRetriever(callslip.fit(demo, "bm25-classic"), k=20)
    table = pt.Experiment([bm25 % 10, bm25 + classic], topics, qrels, ["ndcg_cut_10"], names=["bm25", "sum of both"])
    print(table.to_string(index=False))
    first = bm25.search("read a file line by line").iloc[0]
    print(f"rank {first['rank']}: {first['docno']} ({first['score']:.2f})")
