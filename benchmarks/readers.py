"""What training the reader is worth: each paper's method on frozen vectors and on an encoder that is trained with it.

    OMP_NUM_THREADS=1 nice python benchmarks/readers.py wikiqa [--systems "glen, tuned;dense"] [--splits dev,test]

Both readers of a method train on the same texts for the same number of epochs: judged train queries, titles and the
documents themselves, cut to LENGTH word pieces where the encoder is trained. Figures are by codes alone (expected: ties
inside a code count as their average), beside a dual encoder that is trained on the same data, dense retrieval and BM25.
Nothing is chosen here: epochs and texts were set in advance, by what an hour of two cores allows. Each fit is written
to `results/readers-SET.json` as soon as it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import callslip
from callslip.corpus.documents import Corpus
from callslip.runtime.process import versions

DATA = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
RESULTS = Path(__file__).parent / "results"
MEASURES = ["nDCG@10", "R@10", "Success@1"]
LENGTH = 32
TEXTS = {"training_texts": ["document", "title"], "backend": "torch", "seed": 0}
TUNED = {"train_encoder": "top", "encoder_learning_rate": 5e-5, "seq2seq_length": LENGTH, "noise": 0.0}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied-atomic": ("tied-atomic", {"epochs": 3, "batch_size": 64}),
    "glen": ("glen", {"length": 8, "keyword_epochs": 1, "epochs": 2, "epoch_pairs": None, "batch_size": 64}),
    "genret": (
        "genret",
        {"width": 64, "length": 2, "level_epochs": 1, "level_steps": 50, "epochs": 4, "batch_size": 64,
         "learning_rate": 1e-3},
    ),
    "asi++": (
        "asi++",
        {"width": 32, "length": 3, "epochs": 2, "writing_epochs": 4, "batch_size": 128, "learning_rate": 1e-3},
    ),
}  # fmt: skip
CONTROLS: dict[str, tuple[str, dict[str, Any]]] = {
    "bm25": ("bm25", {}),
    "dense": ("dense", {"backend": "torch"}),
    "dual encoder, tuned": ("dense-trained", TEXTS | TUNED | {"epochs": 3, "batch_size": 64}),
}


def systems() -> dict[str, tuple[str, dict[str, Any]]]:
    """Every fit by its name in the table."""
    rows = dict(CONTROLS)
    for name, (method, own) in METHODS.items():
        rows[f"{name}, frozen"] = (method, TEXTS | own)
        rows[f"{name}, tuned"] = (method, TEXTS | own | TUNED)
    return rows


def measured(corpus: Corpus, method: str, settings: dict[str, Any], splits: list[str]) -> dict[str, Any]:
    """Fit one system; its figures, codes alone before anything else ranks, and what it cost."""
    wall, cpu = time.perf_counter(), time.process_time()
    index = callslip.fit(corpus, method, settings=settings)
    row: dict[str, Any] = {
        "method": method,
        "settings": {key: value for key, value in settings.items() if key != "backend"},
        "fit_seconds": round(time.perf_counter() - wall, 1),
        "fit_cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    if method in ("glen", "genret", "asi++"):
        row["codes"] = index.identifiers.unique
    for split in splits:
        report = callslip.evaluate(index, corpus, split=split, measures=MEASURES)
        by_codes = report.codes_alone or report.measures  # unique codes that rank alone are the ranking
        row[split] = {
            measure: {
                "codes_alone": round(by_codes[measure].mean, 4),
                "ranked": round(report.measures[measure].mean, 4),
            }
            for measure in report.measures
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--systems", default=";".join(systems()), help="names, separated by semicolons")
    parser.add_argument("--splits", default="dev,test")
    asked = parser.parse_args()
    corpus = callslip.load_corpus(DATA / asked.corpus)
    path = RESULTS / f"readers-{asked.corpus}.json"
    for name in asked.systems.split(";"):
        row = measured(corpus, *systems()[name], asked.splits.split(","))
        held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"systems": {}}
        held["versions"] = versions()
        held["systems"][name] = row
        path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
        print(name, row, flush=True)


if __name__ == "__main__":
    main()
