"""What training the reader is worth: each paper's method on frozen vectors, and on an encoder or a T5 trained with it.

    OMP_NUM_THREADS=1 nice python benchmarks/readers.py wikiqa [--systems "glen, tuned;dense"] [--splits dev,test]
    python benchmarks/readers.py scifact --length 64 --set training_texts= --set epochs=6 --systems "tied-atomic, tuned"

All readers of a method train on the same texts for the same number of epochs: by default judged train queries, titles
and the documents themselves, cut to `--length` word pieces where the reader is trained. Frozen vectors are of 256, and
in the systems named *short* of `--length`. Figures are by codes alone (expected: ties inside a code count as their
average), beside a dual encoder that is trained on the same data, dense retrieval and BM25. `--set` holds for every
system that trains and has the setting; the split `dev` holds a third of the train queries out where a set has none, for
all splits. Each fit is written to `results/readers-SET.json` as soon as it is done, with the paired tests of `COMPARED`
between the fits that are there, and its report to `results/readers-SET/reports`, where `twins.py` finds it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

from two_stage import held_out

import callslip
from callslip.corpus.documents import Corpus
from callslip.evaluation.significance import paired_test
from callslip.methods import find
from callslip.runtime.process import versions
from callslip.settings import parse_assignments

DATA = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
RESULTS = Path(__file__).parent / "results"
MEASURES = ["nDCG@10", "R@10", "Success@1"]
TEXTS = {"training_texts": ["document", "title"], "backend": "torch", "seed": 0}
TUNED = {"train_encoder": "top", "encoder_learning_rate": 5e-5, "noise": 0.0}
T5 = {"seq2seq": "flan-t5-small", "learning_rate": 5e-4, "noise": 0.0}
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
DUAL: tuple[str, dict[str, Any]] = ("dense-trained", {"epochs": 3, "batch_size": 64})
COMPARED = [
    ("dense, short", "dual encoder, tuned"),
    ("tied-atomic, short", "tied-atomic, tuned"),
    ("dual encoder, tuned", "tied-atomic, tuned"),
    ("dual encoder, T5", "tied-atomic, T5"),
    ("tied-atomic, frozen", "tied-atomic, tuned"),
]
"""Pairs of systems that are tested query by query on the first measure."""


def systems(length: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every fit by its name in the table."""
    short, tuned = {"encoder": f"minilm:max_length={length}"}, TUNED | {"seq2seq_length": length}
    t5 = T5 | {"seq2seq_length": length}
    rows: dict[str, tuple[str, dict[str, Any]]] = {
        "bm25": ("bm25", {}),
        "dense": ("dense", {"backend": "torch"}),
        "dense, short": ("dense", {"backend": "torch"} | short),
        "dual encoder, tuned": (DUAL[0], TEXTS | DUAL[1] | tuned),
        "dual encoder, T5": (DUAL[0], TEXTS | DUAL[1] | t5),
    }
    for name, (method, own) in METHODS.items():
        rows[f"{name}, frozen"] = (method, TEXTS | own)
        rows[f"{name}, short"] = (method, TEXTS | own | short)
        rows[f"{name}, tuned"] = (method, TEXTS | own | tuned)
        rows[f"{name}, T5"] = (method, TEXTS | own | t5)
    return rows


def given(method: str, settings: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The settings of a system with those of the command that its method has; a control trains on nothing."""
    known = {field.name for field in dataclasses.fields(find(method).load().Settings)}
    return settings | {name: value for name, value in more.items() if name in known and "epochs" in settings}


def measured(
    corpus: Corpus, method: str, settings: dict[str, Any], splits: list[str], report_path: Path
) -> dict[str, Any]:
    """Fit one system; its figures, codes alone before anything else ranks, and what it cost."""
    wall, cpu = time.perf_counter(), time.process_time()
    index = callslip.fit(corpus, method, settings=settings)
    row: dict[str, Any] = {
        "method": method,
        "settings": {key: getattr(index.settings, key) for key in settings if key != "backend"},
        "fit_seconds": round(time.perf_counter() - wall, 1),
        "fit_cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    if method in ("glen", "genret", "asi++"):
        row["codes"] = index.identifiers.unique
    for split in splits:
        report = callslip.evaluate(index, corpus, split=split, measures=MEASURES)
        report.save(report_path)  # of the last split
        by_codes = report.codes_alone or report.measures  # unique codes that rank alone are the ranking
        row[split] = {
            measure: {
                "codes_alone": round(by_codes[measure].mean, 4),
                "ranked": round(report.measures[measure].mean, 4),
            }
            for measure in report.measures
        }
    return row


def differences(folder: Path) -> dict[str, Any]:
    """Paired tests between the systems whose reports are there."""
    found = {}
    for pair in COMPARED:
        paths = [folder / file_name(name) for name in pair]
        if all(path.exists() for path in paths):
            a, b = (json.loads(path.read_text(encoding="utf-8"))["per_query"][MEASURES[0]] for path in paths)
            if a.keys() == b.keys():  # or one of them is of another split
                test = paired_test(list(a.values()), [b[query_id] for query_id in a])
                found[" → ".join(pair)] = {name: round(value, 4) for name, value in test._asdict().items()}
    return found


def file_name(system: str) -> str:
    """The file of a system's report, as `twins.py` reads it."""
    return f"0-{system.replace(', ', '-').replace(' ', '-')}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--systems", required=True, help="names, separated by semicolons")
    parser.add_argument("--splits", default="dev,test")
    parser.add_argument("--length", type=int, default=32, help="word pieces that a trained reader reads of each text")
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    parser.add_argument("--tag", default="")
    asked = parser.parse_args()
    splits, more = asked.splits.split(","), parse_assignments(asked.assignments)
    corpus = callslip.load_corpus(DATA / asked.corpus)
    if "dev" in splits and "dev" not in corpus.judgements:
        corpus = dataclasses.replace(corpus, judgements=corpus.judgements | held_out(corpus).judgements)
    path, known = RESULTS / f"readers-{asked.corpus}{asked.tag}.json", systems(asked.length)
    reports = path.with_suffix("") / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    for name in asked.systems.split(";"):
        method, settings = known[name]
        row = measured(corpus, method, given(method, settings, more), splits, reports / file_name(name))
        held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"systems": {}}
        held["versions"] = versions()
        held["systems"][name] = row
        held["differences"] = differences(reports)
        path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
        print(name, row, flush=True)


if __name__ == "__main__":
    main()
