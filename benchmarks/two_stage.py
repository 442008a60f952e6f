"""The two-stage family on BEIR sets: each method and its random-code control, as many epochs for all.

    python benchmarks/two_stage.py scifact --split dev      # a third of the train queries, held out of training
    python benchmarks/two_stage.py scifact nfcorpus --set epochs=5 --set batch_size=128 --set decoder_width=128

With --steps each system has as many epochs as come nearest to that number of steps. Every index is evaluated under
`ranking=sum` and `ranking=bucket`. `demo` is the embedded corpus; other names are folders in CALLSLIP_DATA.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import zlib
from pathlib import Path
from typing import Any

import callslip
from callslip.corpus.documents import Corpus
from callslip.evaluation.significance import paired_test
from callslip.methods import make
from callslip.settings import parse_assignments

RESULTS = Path(__file__).parent / "results"
RANKINGS = ("sum", "bucket")
MEASURES = ["nDCG@10", "R@100"]
NCI_TEXTS = ("document", "title", "sentences", "spans")
# name -> method, preset, settings. A control has the same texts and the same shape of codes as what it controls.
SYSTEMS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "dsi-text": ("dsi-semantic", "text", {}),
    "dsi-lead": ("dsi-semantic", "text", {"training_texts": ("document", "lead")}),
    "dsi-text, random": ("dsi-random", "text", {}),
    "dsi-qg": ("dsi-qg", None, {}),
    "dsi-qg, random": ("dsi-qg", None, {"codes": "random"}),
    "dsi-semantic": ("dsi-semantic", None, {}),
    "dsi-semantic, random": ("dsi-random", None, {}),
    "nci": ("nci", None, {}),
    "nci, plain heads": ("dsi-semantic", None, {"training_texts": NCI_TEXTS}),
    "nci, random": ("dsi-random", None, {"training_texts": NCI_TEXTS}),
    "ultron-pq": ("ultron-pq", None, {}),
    "ultron-pq, random": ("dsi-random", None, {"length": 3}),
}
CLAIMS = [
    ("dsi-text", "dsi-qg"),
    ("dsi-lead", "dsi-qg"),
    ("dsi-text", "nci"),
    ("dsi-semantic", "nci"),
    ("nci, plain heads", "nci"),
]
CLAIMS += [(name, name.removesuffix(", random")) for name in SYSTEMS if name.endswith("random")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--systems", default=";".join(SYSTEMS), help="names, separated by semicolons")
    parser.add_argument("--split", default="test")
    parser.add_argument("--steps", type=int, help="of training, for every system, instead of epochs")
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    parser.add_argument("--tag", default="")
    arguments = parser.parse_args()
    data = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
    for name in arguments.sets:
        corpus = callslip.load_corpus(name if name == "demo" else data / name)
        if arguments.split == "dev" and "dev" not in corpus.judgements:
            corpus = held_out(corpus)
        rows: dict[str, dict[str, Any]] = {}
        values: dict[str, dict[str, list[float]]] = {}
        for system in arguments.systems.split(";"):
            settings = parse_assignments(arguments.assignments)
            rows[system], values[system] = measure(corpus, system, arguments.split, arguments.steps, settings)
            result = {"corpus": corpus.fingerprint(), "systems": rows, "differences": differences(values)}
            path = RESULTS / f"two-stage-{name}{arguments.tag}-{arguments.split}.json"
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def held_out(corpus: Corpus) -> Corpus:
    """A third of the train queries, by the hash of their id, as a dev split that is not trained on."""
    train, dev = {}, {}
    for query_id, grades in corpus.judgements["train"].items():
        (dev if zlib.crc32(query_id.encode()) % 3 == 0 else train)[query_id] = grades
    return dataclasses.replace(corpus, judgements={"train": train, "dev": dev})


def measure(
    corpus: Corpus, system: str, split: str, steps: int | None, values: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Fit one system and evaluate it under each ranking: what to report, and nDCG@10 of each query."""
    method, preset, own = SYSTEMS[system]
    unfitted = make(method, own | values, preset=preset)
    examples = len(unfitted.training_pairs(corpus)) + ("document" in unfitted.settings.training_texts) * len(corpus)
    epochs = unfitted.settings.epochs
    if steps is not None:
        epochs = max(1, round(steps * unfitted.settings.batch_size / examples))
    index = make(method, own | values | {"epochs": epochs}, preset=preset).fit(corpus)
    row: dict[str, Any] = {
        "settings": index.describe()["settings"],
        "examples": examples,
        "epochs": epochs,
        "training_seconds": round(sum(record["seconds"] for record in index.log.records), 1),
        "codes": index.identifiers.unique,
        "loss": index.log.records[-1]["generation"],
    }
    per_query = {}
    for ranking in RANKINGS:
        report = callslip.evaluate(index.adjust({"ranking": ranking}), corpus, split=split, measures=MEASURES)
        row[ranking] = {name: round(interval.mean, 4) for name, interval in report.measures.items()}
        per_query[ranking] = list(report.per_query[MEASURES[0]].values())
    figures = "  ".join(f"{ranking} {row[ranking]}" for ranking in RANKINGS)
    print(f"{corpus.name} {split} {system}: {figures}  {epochs} epochs, {row['training_seconds']} s", flush=True)
    return row, per_query


def differences(values: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """What each claim says, tested query by query on nDCG@10."""
    found = []
    for before, after in CLAIMS:
        for ranking in RANKINGS if before in values and after in values else ():
            test = paired_test(values[before][ranking], values[after][ranking])
            found.append({"from": before, "to": after, "ranking": ranking, **test._asdict()})
    return found


if __name__ == "__main__":
    main()
