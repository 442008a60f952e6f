"""Recommenders on a log: leave-one-out, every item ranked, with the items of the history kept and left out.

    python benchmarks/recommendation.py amazon-beauty --task sequential --systems "item-knn;sasrec" --split dev
    python benchmarks/recommendation.py amazon-beauty --systems "recipe dsi-semantic-beauty-cpu" --rankings own
    python benchmarks/recommendation.py amazon-beauty --systems "tied-log;recipe tiger-beauty-cpu" --seeds 0,1,2
    python benchmarks/recommendation.py amazon-beauty --task general
    python benchmarks/recommendation.py amazon-beauty --ape        # average partition entropy of codes

Each system is fitted once and its figures are written at once, beside those that the file holds already. `--set` values
go to every system that has such a setting, `--split dev,test` asks an index about both. Names are folders in
CALLSLIP_DATA.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import callslip
from callslip.corpus.documents import Corpus, Query
from callslip.evaluation.report import evaluate_run
from callslip.identifiers import RQVAE, VQVAE, HierarchicalKMeans, PartitionEM, average_partition_entropy, random_codes
from callslip.identifiers.partition_em import relations_of
from callslip.index.retriever import Retriever
from callslip.methods import make
from callslip.recipes import read_recipe
from callslip.runtime.process import versions
from callslip.runtime.progress import track
from callslip.search.candidates import candidates
from callslip.settings import parse_assignments

RESULTS = Path(__file__).parent / "results"
DEPTH, BATCH = 20, 256
MEASURES = ("R@10", "R@20", "nDCG@10", "nDCG@20")
# What a CPU can train in minutes; chosen on the dev split. The same for every generative method.
WRITER: dict[str, Any] = {
    "decoder_width": 64, "decoder_layers": 1, "batch_size": 1024, "epochs": 6, "learning_rate": 3e-3,
    "history_width": 64, "ranker_negatives": 512, "start": "none",
}  # fmt: skip
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "popularity": ("popularity", {}),
    "item-knn": ("item-knn", {}),
    "item-knn, dev counted": ("item-knn", {}),
    "seqrules": ("seqrules", {}),
    "transitions": ("transitions", {}),
    "tied-log": ("tied-log", {}),
    "tied-log, codes alone": ("tied-log", {"memory_weight": 0.0}),
    "sasrec": (
        "sasrec",
        {"epochs": 8, "learning_rate": 3e-3, "history_width": 64, "ranker_negatives": 1024} | {"start": "none"},
    ),
    "dsi-semantic": ("dsi-semantic", WRITER | {"width": 32, "length": 2}),
    "dsi-random": ("dsi-random", WRITER | {"width": 32, "length": 2}),
    "tiger": ("tiger", WRITER),
    "deep-retrieval": ("deep-retrieval", WRITER | {"width": 32, "length": 2, "rounds": 2, "round_epochs": 2}),
    "recforest": ("recforest", WRITER | {"width": 32, "trees": 2}),
    "recforest, long": ("recforest", WRITER | {"width": 32, "trees": 2, "epochs": 30}),
    "nci": ("nci", WRITER | {"width": 32, "length": 2}),
}
GENERAL = {"queries": "set", "decay": 1.0, "history_layers": 0, "history_width": 128}
"""What makes a task general: the history is a set. One vector stands for all of its items: 64 numbers are too few."""
RANKINGS, BEAM = "bucket,union", 50
RECIPE = "recipe "
"""Before the name of a recipe, which is then fitted with its own settings."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("--task", choices=("sequential", "general"), default="sequential")
    parser.add_argument("--systems", default=";".join(SYSTEMS), help="names, separated by semicolons")
    parser.add_argument("--split", default="test")
    parser.add_argument("--users", help="so many users of the split, drawn at random; or a number for each split: 9,9")
    parser.add_argument("--beams", default="50", help="of systems that write codes, separated by commas")
    parser.add_argument("--rankings", default=RANKINGS, help="separated by commas; `own` is that of the settings")
    parser.add_argument("--seeds", help="separated by commas; without them, the seed of the settings")
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    parser.add_argument("--tag", default="")
    parser.add_argument("--ape", action="store_true", help="measure codes instead of systems")
    arguments = parser.parse_args()
    corpus = callslip.load_corpus(Path(os.environ.get("CALLSLIP_DATA", "../shared/data")) / arguments.log)
    if arguments.ape:
        write(RESULTS / f"recommendation-{arguments.log}-ape.json", corpus, "codes", partition_entropies(corpus))
        return
    splits, counts = arguments.split.split(","), (arguments.users or "0").split(",")
    sizes = dict(zip(splits, (int(n) or None for n in (counts * len(splits))[: len(splits)]), strict=True))
    searches = [
        (ranking, BEAM if ranking == "own" else int(beam))
        for ranking, beam in product(arguments.rankings.split(","), arguments.beams.split(","))
    ]
    values = parse_assignments(arguments.assignments)
    for system in arguments.systems.split(";"):
        for seed in seeds(system, arguments.seeds):
            seeded = values if seed is None else values | {"seed": seed}
            index, row = fitted(corpus, system, arguments.task, seeded)
            for split, users in sizes.items():
                print(system, arguments.task, split, "" if seed is None else f"seed {seed}", flush=True)
                found = row | measured(index, corpus, split, users, searches)
                path = RESULTS / f"recommendation-{arguments.log}-{arguments.task}{arguments.tag}-{split}.json"
                if arguments.seeds:
                    found = with_seed(rows(path, "systems").get(system, {}), seed, found)
                write(path, corpus, "systems", {system: found})


def seeds(system: str, asked: str | None) -> list[int | None]:
    """The seeds to fit a system with; None, its own, if none are asked or nothing in it is random."""
    random = hasattr(make(settings_of(system)[0]).settings, "seed")
    return [int(seed) for seed in asked.split(",")] if asked and random else [None]


def with_seed(held: dict[str, Any], seed: int | None, row: dict[str, Any]) -> dict[str, Any]:
    """The rows of a system's seeds with one more, and their means and extremes."""
    each = held.get("seeds", {}) | {"any" if seed is None else str(seed): row}
    return {"seeds": each, "over_seeds": over_seeds(list(each.values()))}


def over_seeds(rows: list[Any]) -> Any:
    """The mean, the lowest and the highest of every figure; nothing of settings and of what is no number."""
    if all(isinstance(row, dict) and "mean" in row for row in rows):  # a measure with its interval
        return over_seeds([row["mean"] for row in rows])
    if all(isinstance(row, dict) for row in rows):
        names = [name for name in rows[0] if name != "settings" and all(name in row for row in rows)]
        found = {name: over_seeds([row[name] for row in rows]) for name in names}
        return {name: figure for name, figure in found.items() if figure is not None}
    if all(isinstance(row, (int, float)) for row in rows):
        return {"mean": round(mean(rows), 5), "lowest": min(rows), "highest": max(rows)}
    return None


def rows(path: Path, key: str) -> dict[str, Any]:
    """The rows that a file holds."""
    return json.loads(path.read_text(encoding="utf-8"))[key] if path.exists() else {}


def write(path: Path, corpus: Corpus, key: str, more: dict[str, Any]) -> None:
    """Put rows beside those that the file holds already."""
    result = {"corpus": corpus.fingerprint(), "versions": versions(), key: rows(path, key) | more}
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def fitted(corpus: Corpus, system: str, task: str, values: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The system's index, and what is to be said of it before anybody searches."""
    method, own = settings_of(system)
    known = {field.name for field in dataclasses.fields(make(method).settings)}
    given = own | (GENERAL if task == "general" else {}) | values
    index = make(method, {key: value for key, value in given.items() if key in known})
    began, cpu = time.perf_counter(), time.process_time()
    index.fit(corpus)
    if system == "item-knn, dev counted":  # as programs do that count all but the test's items; not our protocol
        index.learn(corpus, corpus.sequences("dev"))
    row: dict[str, Any] = {
        "settings": index.describe()["settings"],
        "fit_seconds": round(time.perf_counter() - began, 1),
        "fit_cpu_seconds": round(time.process_time() - cpu, 1),
    }
    log = getattr(index, "log", None)
    if log is not None:
        row["last_epoch"] = log.records[-1]
    return index, row


def settings_of(system: str) -> tuple[str, dict[str, Any]]:
    """Method and settings of a system of this file, or of a recipe."""
    if system in SYSTEMS:
        return SYSTEMS[system]
    found = read_recipe(system.removeprefix(RECIPE))
    return found.method, dict(found.settings)


def measured(
    index: Any, corpus: Corpus, split: str, users: int | None, searches: list[tuple[str, int]]
) -> dict[str, Any]:
    """Figures with and without the items of the history, under each ranking and beam that the system has."""
    row: dict[str, Any] = {}
    queries, judgements = corpus.split(split)
    asked = list(queries.values())
    if users is not None:
        asked = [asked[n] for n in np.random.default_rng(0).permutation(len(asked))[:users]]
    judged = {query.query_id: judgements[query.query_id] for query in asked}
    if "ranking" in index.search_settings:
        trees, had = getattr(index, "parts", [index]), corpus.sequences().each()  # of a forest, means over its trees
        row["codes"] = mean(tree.identifiers.unique for tree in trees)
        row["ape"] = mean(average_partition_entropy(tree.identifiers.in_row_order()[1], had) for tree in trees)
        for ranking, beam in searches:
            name = ranking if beam == BEAM else f"{ranking}, beam {beam}"
            values = {} if ranking == "own" else {"ranking": ranking, "beam": beam}
            each: dict[str, dict[str, float]] = {}
            row[name] = figures(index.adjust(values), asked, judged, each)
            row[name]["items_reached"] = mean(reached(tree, asked) for tree in trees)
            row[name] |= beyond_counts(index, asked, judged, each) if split == "dev" else {}
            print(name, row[name], flush=True)
        return row
    each: dict[str, dict[str, float]] = {}
    row |= figures(index, asked, judged, each)
    row |= beyond_counts(index, asked, judged, each) if split == "dev" else {}
    print(row, flush=True)
    return row


def beyond_counts(
    index: Any, asked: list[Query], judged: dict[str, dict[str, int]], whole: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """What is trained, the reranker and the model as far as it is trusted, adds to the counts that an index begins at:
    the figures of each user less those by counts alone, with 95 % intervals. Nothing where nothing is used."""
    alone: dict[str, dict[str, float]] = {}
    with by_counts(index) as trained:
        if not trained:
            return {}
        found = figures(index, asked, judged, alone)
    gains: dict[str, Any] = dict(trained) | {"counts_alone": found["exclude"]}
    for measure, values in whole.items():
        gain = np.array([value - alone[measure][query] for query, value in values.items()])
        half = 1.96 * gain.std() / np.sqrt(len(gain))
        gains[measure] = {"gain": round(gain.mean(), 5), "low": round(gain.mean() - half, 5)}
        gains[measure] |= {"high": round(gain.mean() + half, 5), "users": len(gain)}
    return {"beyond_counts": gains}


@contextmanager
def by_counts(index: Any) -> Iterator[dict[str, Any]]:
    """Leave out what was trained; gives what that was, if anything."""
    holder = getattr(index, "reader", index)
    start = getattr(holder, "start", None)
    if start is not None:
        holder.start = dataclasses.replace(start, trust=0.0, reranker=None)
        used = start.trust or start.reranker is not None
        yield {"trust": start.trust, "reranker": start.reranker is not None} if used else {}
        holder.start = start
    elif getattr(index, "reranker", None) is not None:
        depth = index.settings.rerank
        index.adjust({"rerank": 0})
        yield {"reranker": True}
        index.adjust({"rerank": depth})
    else:
        yield {}


def figures(
    index: Retriever,
    asked: list[Query],
    judged: dict[str, dict[str, int]],
    each: dict[str, dict[str, float]] | None = None,
) -> dict[str, Any]:
    """Both ways to treat the history, from one search: the hits without it are among as many more as it holds."""
    keep: dict[str, list[tuple[str, float]]] = {}
    exclude: dict[str, list[tuple[str, float]]] = {}
    asked = sorted(asked, key=lambda query: len(query.history))  # so that few are searched deeper than they need
    began = time.perf_counter()
    for start in track(range(0, len(asked), BATCH), "searching"):
        some = asked[start : start + BATCH]
        depth = DEPTH + max(len(set(query.history)) for query in some)
        for query, hits in zip(some, index.search_batch(some, depth, keep_history=True, texts=False), strict=True):
            ranked, had = [(hit.doc_id, hit.score) for hit in hits], set(query.history)
            keep[query.query_id] = ranked[:DEPTH]
            exclude[query.query_id] = [one for one in ranked if one[0] not in had][:DEPTH]
    seconds = time.perf_counter() - began
    found: dict[str, Any] = {"search_ms_per_query": round(1000 * seconds / len(asked), 2)}
    for name, run in (("keep", keep), ("exclude", exclude)):
        report = evaluate_run(run, judged, measures=MEASURES)
        if each is not None and name == "exclude":
            each |= report.per_query
        found[name] = {
            measure: {"mean": round(one.mean, 4), "low": round(one.low, 4), "high": round(one.high, 4)}
            for measure, one in report.measures.items()
        }
    return found


def reached(index: Any, asked: list[Query], some: int = 512) -> float:
    """Items on the codes of one beam, on average: so many are ranked, and whoever ranks more finds more."""
    chosen = [asked[n] for n in np.random.default_rng(0).permutation(len(asked))[:some]]
    beams = index.write(index.reader.inputs(chosen, index.reader.query_vectors(chosen)), index.settings.beam)
    return round(float(np.mean([len(candidates(one, index.identifiers, None)[0]) for one in beams])), 1)


def partition_entropies(corpus: Corpus) -> dict[str, Any]:
    """APE of codes of two levels, over what each user had in training; lower is better."""
    vectors = make("dense").texts.cached([document.content for document in corpus], "encoding items")
    positives, found = corpus.sequences().each(), {}
    relations = relations_of(positives, len(corpus))
    for width in (16, 32, 64):
        makers = {
            "random": random_codes(len(corpus), 2, width, seed=0),
            "k-means": HierarchicalKMeans(width=width, length=2, seed=0).fit(vectors),
            "RQ-VAE": RQVAE(2, width, vectors.shape[1], seed=0).fit(vectors),
            "VQ-VAE": VQVAE(2, width, vectors.shape[1], seed=0).fit(vectors),
            "EM": PartitionEM(2, width, seed=0).fit(relations),
            "EM, leave one out": PartitionEM(2, width, seed=0, leave_one_out=True).fit(relations),
        }
        for name, codes in makers.items():
            entropy = average_partition_entropy(codes, positives)
            found[f"{name}, {width}"] = {"ape": round(entropy, 4), "codes": len(np.unique(codes, axis=0))}
            print(name, width, found[f"{name}, {width}"], flush=True)
    return found


if __name__ == "__main__":
    main()
