"""Fuse generative retrieval with BM25: they find different documents, and `a+b` is the name of their fusion."""

import callslip
from callslip.corpus.demo import demo_corpus

corpus = demo_corpus(limit=150)
fused = callslip.fit(corpus, method="bm25+dsi-semantic", settings={"dsi-semantic.epochs": 2})
for hit in fused.search("absolute value of a number", k=3, explain=True):
    print(hit.doc_id, hit.why["ranks"])
