"""Training on two Gloo processes under torchrun against one process, and a rank that is killed.

    OMP_NUM_THREADS=1 python benchmarks/ranks.py

Documents and questions of the standard library, the scratch encoder. Without dropout and noise, the losses of every
phase are compared with those of one process with the same settings, so with twice the batch of each of the two. With
dropout and noise, a rank gets SIGKILL after the first checkpoint; torchrun starts both again, and the weights must be
those of a training that nobody killed, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from timing import machine, save, show

from callslip import api
from callslip.corpus.demo import demo_corpus
from callslip.runtime import durable

SMALL = {"encoder": "scratch:dim=64", "epochs": 3, "batch_size": 64, "decoder_width": 64, "decoder_heads": 4}
STILL = {"dropout": 0.0, "noise": 0.0}
LEVELS = {"length": 1, "width": 8, "level_epochs": 2, "level_steps": 20}
METHODS: dict[str, dict[str, Any]] = {
    "dsi-semantic": SMALL | STILL,
    "nci": SMALL | STILL,
    "tied-atomic": {"encoder": "scratch:dim=64", "epochs": 3, "batch_size": 64} | STILL,
    "glen": SMALL | STILL | {"keyword_epochs": 2, "length": 2},
    "genret": SMALL | STILL | LEVELS | {"warmup_epochs": 1, "stop_collapsed": False},
}


def written(folder: Path) -> Path:
    """The corpus as a BEIR folder."""
    corpus = demo_corpus(400)
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": d.doc_id, "title": d.title, "text": d.text} for d in corpus]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [{"_id": q.query_id, "text": q.text} for q in corpus.queries.values()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    for split, judged in corpus.judgements.items():
        lines = [f"{query}\t{doc}\t{grade}\n" for query, grades in judged.items() for doc, grade in grades.items()]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


def torchrun(job: Path, *options: str, restarts: int = 0) -> subprocess.Popen[bytes]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    launch += ["--standalone", "-m", "callslip", "train", str(job), *options]
    return subprocess.Popen(launch)


def children(pid: int) -> list[int]:
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(part) for part in file.read_text().split()]
    return found


def log_of(job: Path) -> list[dict[str, Any]]:
    lines = (job / "trained" / "generation-000001" / "training.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def compared(folder: Path, corpus: Path, method: str) -> dict[str, float]:
    """The largest difference of each loss term between one process and two."""
    one, two = folder / f"{method}-one", folder / f"{method}-two"
    for job in (one, two):
        api.plan(corpus, job, method, settings=METHODS[method], shard_rows=100)
    api.train(one)
    assert torchrun(two).wait() == 0
    worst: dict[str, float] = {}
    for a, b in zip(log_of(one), log_of(two), strict=True):
        for name in a.keys() - {"phase", "epoch", "seconds", "learning_rate"}:
            if isinstance(a[name], float) and name in b:
                key = f"{a['phase']}: {name}"
                worst[key] = max(worst.get(key, 0.0), abs(a[name] - b[name]))
    return {name: float(f"{value:.1e}") for name, value in worst.items()}


def killed(folder: Path, corpus: Path) -> dict[str, Any]:
    """A training with dropout whose second process is killed, against one that is left alone."""
    jobs = {name: folder / name for name in ("alone", "killed")}
    for job in jobs.values():
        api.plan(corpus, job, "dsi-semantic", settings=SMALL | {"epochs": 8}, shard_rows=100)
    assert torchrun(jobs["alone"]).wait() == 0
    process = torchrun(jobs["killed"], "--every", "0.2", restarts=1)
    training = jobs["killed"] / "training"
    while not list(training.glob("phase-*")):
        time.sleep(0.05)
        assert process.poll() is None, "the training ended before it was killed"
    ranks = children(process.pid)
    last = [pid for pid in ranks if "RANK=1" in Path(f"/proc/{pid}/environ").read_text().split("\0")]
    os.kill(last[0], signal.SIGKILL)
    steps = max(int(path.name.split("-")[-1]) for path in training.glob("phase-*[0-9]"))
    assert process.wait() == 0
    model = "trained/generation-000001/model.safetensors"
    return {
        "checkpoint at the kill, step": steps,
        "processes when one was killed": len(ranks),
        "weights equal to those of the training that was not killed": durable.sha256_of(jobs["killed"] / model)
        == durable.sha256_of(jobs["alone"] / model),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--kill", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="callslip-ranks-"))
    try:
        corpus = written(place / "beir")
        save("ranks", {"machine": machine(), "settings": METHODS})
        for method in filter(None, options.methods.split(",")):
            differences = compared(place, corpus, method)
            show(method, differences)
            save("ranks", {f"{method}: largest difference of a loss, two processes against one": differences})
        if options.kill:
            found = killed(place, corpus)
            show("a rank killed and resumed", found)
            save("ranks", {"a rank killed and resumed": found})
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
