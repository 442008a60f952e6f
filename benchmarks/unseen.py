"""Documents that came after training: hold some out, fit on the rest, `add` them, and ask for them.

    python benchmarks/unseen.py scifact --methods dense,tied-atomic [--parts 1] [--set key=value]

A fifth of the documents is held out, with every judgement of theirs. The questions are those of the split all of whose
answers were held out; they are asked of the index that was given the documents later, and of one that was trained on
everything. `--parts 5` holds out each fifth in turn, so that every question is asked once (and costs five trainings).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import callslip
from callslip import settings as settings_of
from callslip.corpus.documents import Corpus, Judgements
from callslip.errors import Unsupported
from callslip.evaluation.significance import bootstrap_intervals
from callslip.methods import make
from callslip.settings import parse_assignments

RESULTS = Path(__file__).parent / "results"
PARTS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", help="demo, or a folder in CALLSLIP_DATA")
    parser.add_argument("--methods", default="dense,tied-atomic")
    parser.add_argument("--parts", type=int, default=1, choices=range(1, PARTS + 1))
    parser.add_argument("--split", default="test")
    parser.add_argument("--measures", default="nDCG@10,R@1")
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    arguments = parser.parse_args()
    data = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
    corpus = callslip.load_corpus(arguments.set if arguments.set == "demo" else data / arguments.set)
    given = parse_assignments(arguments.assignments)
    parts = held_out(corpus, arguments.split)[: arguments.parts]
    figures: dict[str, Any] = {}
    for name in arguments.methods.split(","):
        known = settings_of.to_dict(make(name).settings)
        values = {key: value for key, value in given.items() if key in known}
        figures[name] = one_method(name, values, corpus, parts, arguments.split, arguments.measures.split(","))
        figures[name] |= {"parts": arguments.parts, "settings": values}
        print(name, json.dumps(figures[name]), flush=True)
        keep(RESULTS / f"unseen-{arguments.set}.json", corpus, figures)


def keep(path: Path, corpus: Corpus, figures: dict[str, Any]) -> None:
    """Write the figures beside those of other methods on the same corpus."""
    report = {"corpus": corpus.fingerprint(), "methods": {}}
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        report = before if before["corpus"] == report["corpus"] else report
    report["methods"] |= figures
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def held_out(corpus: Corpus, split: str) -> list[tuple[set[str], Judgements]]:
    """Fifths of the documents, each with the questions that it alone answers."""
    order = np.random.default_rng(0).permutation(len(corpus))
    found = []
    for part in range(PARTS):
        ids = {corpus.documents[row].doc_id for row in order[part::PARTS]}
        asked = {
            qid: grades
            for qid, grades in corpus.judgements[split].items()
            if (right := {doc_id for doc_id, grade in grades.items() if grade > 0}) and right <= ids
        }
        found.append((ids, asked))
    return found


def one_method(
    name: str,
    values: dict[str, str],
    corpus: Corpus,
    parts: list[tuple[set[str], Judgements]],
    split: str,
    measures: list[str],
) -> dict[str, Any]:
    """Each measure over all parts' questions: documents added after training, documents trained on, the difference."""
    whole = make(name, values).fit(corpus)
    added: dict[str, dict[str, float]] = {measure: {} for measure in measures}
    trained: dict[str, dict[str, float]] = {measure: {} for measure in measures}
    for ids, asked in parts:
        rest = Corpus([d for d in corpus if d.doc_id not in ids], corpus.queries, without(corpus.judgements, ids))
        index = make(name, values).fit(rest)
        try:
            index.add([document for document in corpus if document.doc_id in ids])
        except Unsupported as refusal:
            return {"refused": refusal.problem}
        questions = Corpus(corpus.documents, corpus.queries, {split: asked})
        for retriever, values_of in ((index, added), (whole, trained)):
            report = callslip.evaluate(retriever, questions, split=split, measures=measures)
            for measure in measures:
                values_of[measure] |= report.per_query[measure]
    found: dict[str, Any] = {"questions": len(added[measures[0]])}
    for measure in measures:
        pairs = [(added[measure][qid], trained[measure][qid]) for qid in added[measure]]
        columns = np.array([[after, before, after - before] for after, before in pairs])
        found[measure] = {
            label: {"mean": round(i.mean, 4), "low": round(i.low, 4), "high": round(i.high, 4)}
            for label, i in zip(("added", "trained", "difference"), bootstrap_intervals(columns), strict=True)
        }
    return found


def without(judgements: dict[str, Judgements], ids: set[str]) -> dict[str, Judgements]:
    """The training judgements that speak of none of these documents; other splits are not for training."""
    kept = {
        qid: {doc_id: grade for doc_id, grade in grades.items() if doc_id not in ids}
        for qid, grades in judgements.get("train", {}).items()
    }
    return {"train": {qid: grades for qid, grades in kept.items() if grades}}


if __name__ == "__main__":
    main()
