"""MTEB's nDCG@10 of our BM25 beside our own, on a BEIR folder: they must agree to four digits. Needs callslip[mteb].

CALLSLIP_DATA=../shared/data python benchmarks/mteb_agrees.py scifact
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from mteb_task import ndcg

import callslip

DATA = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))

for name in sys.argv[1:] or ["scifact"]:
    corpus = callslip.load_corpus(DATA / name)
    ours = callslip.evaluate(callslip.fit(corpus, "bm25"), corpus, measures="nDCG@10").measures["nDCG@10"].mean
    theirs = ndcg("bm25", corpus)
    print(json.dumps({"corpus": name, "callslip": round(ours, 6), "mteb": round(theirs, 6)}))
    assert round(ours, 4) == round(theirs, 4)
