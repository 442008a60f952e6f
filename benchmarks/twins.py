"""How much of a figure is the memory of training queries: questions with and without a twin among them.

    python benchmarks/twins.py scifact results/quality-scifact-tied-atomic --methods dense,tied-atomic

A twin is a training query with an answer in common and a cosine above 0.8 to the question, by the embedded encoder; in
SciFact mostly the same claim negated. The folder is one that `quality.py` wrote. Prints a table: the first method's
figure, the other's, and the interval of the difference, for each kind of question.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path

import numpy as np
from two_stage import held_out

import callslip
from callslip.corpus.documents import Corpus
from callslip.encoders.encoder import load_encoder
from callslip.evaluation.significance import bootstrap_intervals

ALIKE = 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", default="dense,tied-atomic")
    parser.add_argument("--measure", default="nDCG@10")
    parser.add_argument("--held-out", action="store_true", help="a third of the train queries was not trained on")
    arguments = parser.parse_args()
    corpus = callslip.load_corpus(Path(os.environ.get("CALLSLIP_DATA", "../shared/data")) / arguments.set)
    if arguments.held_out:
        corpus = dataclasses.replace(corpus, judgements=corpus.judgements | held_out(corpus).judgements)
    values = {}
    for path in sorted((arguments.folder / "reports").glob("*.json")):
        values[path.stem.partition("-")[2]] = json.loads(path.read_text(encoding="utf-8"))["per_query"]
    first, second = (values[name][arguments.measure] for name in arguments.methods.split(","))
    asked = list(corpus.judgements["test"])
    a, b = (np.array([one[qid] for qid in asked]) for one in (first, second))
    twin, seen = groups(corpus, asked)
    print(f"questions | number | {arguments.methods.replace(',', ' | ')} | difference")
    for name, some in (("all", seen | ~seen), ("twin", twin), ("no twin", ~twin), ("seen", seen), ("unseen", ~seen)):
        gain = bootstrap_intervals((b - a)[some][:, None])[0]
        means = f"{a[some].mean():.3f} | {b[some].mean():.3f}"
        print(f"{name} | {some.sum()} | {means} | {gain.mean:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})")


def groups(corpus: Corpus, asked: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Which questions have a twin, and which an answer that some training query has too."""
    right = [{d for d, grade in corpus.judgements["test"][qid].items() if grade > 0} for qid in asked]
    trained = [{d for d, grade in grades.items() if grade > 0} for grades in corpus.judgements["train"].values()]
    encoder = load_encoder("minilm", backend="torch")
    theirs = encoder.encode([query.text for query in corpus.split("train")[0].values()])
    alike = encoder.encode([corpus.queries[qid].text for qid in asked]) @ theirs.T > ALIKE
    twin = [any(right[i] & trained[j] for j in np.flatnonzero(alike[i])) for i in range(len(asked))]
    seen = [any(answers & one for one in trained) for answers in right]
    return np.array(twin), np.array(seen)


if __name__ == "__main__":
    main()
