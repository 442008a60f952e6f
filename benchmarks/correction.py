"""Whether a trained correction of the query gains anything that the memory of judged queries does not have already.

    OMP_NUM_THREADS=1 python benchmarks/correction.py scifact nfcorpus

For each set, `tied-residual` with `correction=true`, with words and memory, without memory, and with codes alone.
Held-out training queries decide how much of the correction is used; the test questions are asked of the index with what
they decided, and of the same index without the correction. Figures go to `results/correction.json`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import callslip
from callslip.evaluation.significance import paired_test

DATA = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
RESULTS = Path(__file__).parent / "results" / "correction.json"
MEASURE = "nDCG@10"
KINDS: dict[str, dict[str, Any]] = {
    "words and memory": {},
    "without memory": {"memory": False},
    "codes alone": {"memory": False, "words": False},
}


def main() -> None:
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in sys.argv[1:] or ["scifact", "nfcorpus"]:
        corpus = callslip.load_corpus(DATA / name)
        asked = list(corpus.judgements["test"])
        for kind, settings in KINDS.items():
            index: Any = callslip.fit(corpus, "tied-residual", settings=settings | {"correction": True})
            found = {}
            for label, correction in (("with", index.correction), ("without", None)):
                index.correction = correction
                report = callslip.evaluate(index, corpus, measures=[MEASURE], codes_alone=False)
                found[label] = np.array([report.per_query[MEASURE][qid] for qid in asked])
            test = paired_test(found["without"], found["with"])
            row = {label: round(float(values.mean()), 4) for label, values in found.items()}
            row |= {"held_out": index.correction_record, "difference": round(test.difference, 4), "p": round(test.p, 4)}
            kept.setdefault(name, {})[kind] = row
            print(name, kind, json.dumps(row), flush=True)
            RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
