"""What codes alone give, and what the default gives, beside every control, on the test questions of four collections.

    OMP_NUM_THREADS=1 python benchmarks/codes.py [scifact nfcorpus wikiqa fiqa] [--seeds 0,1,2]

Parts, each a row of `results/codes.json`:

- controls: BM25, dense, their convex fusion in equal parts, and the memory of training queries;
- frontier: tied residual codes alone (no words, no memory, every code read) at 32 to 128 bytes a document, without
  segments, and at 48 and 96 bytes with them;
- tree: what reading only the best prefixes loses, by number of codes read;
- default: `tied-residual` without and with the judged train queries; SciFact also without questions that have a twin
  among the training claims (see twins.py); significance against the convex fusion by paired sign-flip tests;
- cost: CPU time of a search against its encoder, and of a fit of 1,000 documents against that of `dense`;
- later: a fifth of the documents is added after the fit; figures of the questions they answer, beside a fit with them.

Nothing is chosen here: lengths, weights and defaults were chosen on dev splits and held-out training queries.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from twins import groups

import callslip
from callslip.corpus.documents import Corpus
from callslip.evaluation.significance import paired_test
from callslip.methods import make
from callslip.search.fusion import scaled

DATA = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
RESULTS = Path(__file__).parent / "results" / "codes.json"
MEASURE = "nDCG@10"
DEPTH = 100
CODES = {"words": False, "memory": False, "held_out": 0}
LENGTHS = (32, 48, 64, 96, 128)
READ = (256, 512, 1024, 2048, 4096)


def figures(index: Any, corpus: Corpus, split: str = "test") -> dict[str, float]:
    return callslip.evaluate(index, corpus, split=split, measures=[MEASURE]).per_query[MEASURE]


def mean(values: dict[str, float]) -> float:
    return round(float(np.mean(list(values.values()))), 4)


def convex(lists: list[dict[str, dict[str, float]]], asked: list[str]) -> dict[str, list[tuple[str, float]]]:
    """The equal-parts convex fusion of runs, query -> document -> score."""
    run = {}
    for qid in asked:
        total: dict[str, float] = {}
        for one in lists:
            scores = np.asarray(list(one[qid].values()))
            for doc_id, value in zip(one[qid], scaled(scores, scores), strict=True):
                total[doc_id] = total.get(doc_id, 0.0) + float(value) / len(lists)
        run[qid] = sorted(total.items(), key=lambda pair: -pair[1])[:DEPTH]
    return run


def run_of(index: Any, corpus: Corpus, asked: list[str]) -> dict[str, dict[str, float]]:
    found = index.search_batch([corpus.queries[qid] for qid in asked], DEPTH, texts=False)
    return {qid: {hit.doc_id: hit.score for hit in hits} for qid, hits in zip(asked, found, strict=True)}


def memory_run(dense: Any, corpus: Corpus, asked: list[str]) -> dict[str, list[tuple[str, float]]]:
    """Each document scored by the nearest of its own text and of the training queries that were judged for it."""
    queries, judged = corpus.split("train")
    rows = corpus.rows()
    theirs = dense.texts.cached([query.text for query in queries.values()], "encoding queries", "query")
    vectors = dense.texts.encode([corpus.queries[qid].text for qid in asked])
    run, names = {}, corpus.doc_ids
    for qid, vector in zip(asked, vectors, strict=True):
        scores, near = dense.vectors @ vector, theirs @ vector
        for value, grades in zip(near, judged.values(), strict=True):
            for doc_id, grade in grades.items():
                if grade > 0 and doc_id in rows:
                    scores[rows[doc_id]] = max(scores[rows[doc_id]], value)
        best = np.argsort(-scores, kind="stable")[:DEPTH]
        run[qid] = [(names[row], float(scores[row])) for row in best]
    return run


def of_run(run: dict[str, list[tuple[str, float]]], corpus: Corpus) -> dict[str, float]:
    from callslip.evaluation.measures import parse_measures, per_query

    return per_query(run, corpus.judgements["test"], parse_measures([MEASURE]))[MEASURE]


def folder_bytes(index: Any, folder: Path) -> dict[str, float]:
    """Bytes a document of the method's files, words apart."""
    index.save(folder)
    files = [path for path in (folder / "generation-000001").rglob("*") if path.is_file()]
    count = len(index)
    words = sum(path.stat().st_size for path in files if "words" in path.parts)
    segments = sum(path.stat().st_size for path in files if path.name.startswith("segment"))
    own = sum(path.stat().st_size for path in files) - words
    return {
        "codes_and_codebooks": round(own / count, 1),
        "of_which_segments": round(segments / count, 1),
        "words": round(words / count, 1),
    }


def measure(name: str, seeds: list[int]) -> dict[str, Any]:
    corpus = callslip.load_corpus(DATA / name)
    asked = list(corpus.judgements["test"])
    blind = replace(corpus, judgements={s: j for s, j in corpus.judgements.items() if s != "train"})
    result: dict[str, Any] = {"documents": len(corpus), "questions": len(asked)}
    began = time.process_time()
    dense = callslip.fit(corpus, "dense")
    bm25 = callslip.fit(corpus, "bm25", settings={"k1": 1.2, "b": 0.75})
    runs = [run_of(index, corpus, asked) for index in (dense, bm25)]
    per = {"dense": figures(dense, corpus), "bm25": figures(bm25, corpus)}
    per["convex"] = of_run(convex(runs, asked), corpus)
    if "train" in corpus.judgements:
        per["memory"] = of_run(memory_run(dense, corpus, asked), corpus)
    result["controls"] = {key: mean(values) for key, values in per.items()}
    print(name, result["controls"], flush=True)
    frontier: dict[str, list[float]] = {}
    tree: dict[str, float] = {}
    against_dense: list[dict[str, float]] = []
    default: dict[str, list[Any]] = {"without judged": [], "with judged": [], "weights": []}
    twin = groups(corpus, asked)[0] if name == "scifact" else None
    for seed in seeds:
        for length in LENGTHS if seed == seeds[0] else (48, 128):
            alone = CODES | {"seed": seed, "length": length, "segments": 0}
            index = callslip.fit(blind, "tied-residual", settings=alone)
            index.adjust({"candidates": "none"})
            frontier.setdefault(str(length), []).append(mean(figures(index, corpus)))
            if seed == seeds[0] and length == 96:
                for read in READ:
                    index.adjust({"candidates": read, "depth": 10})
                    tree[str(read)] = mean(figures(index, corpus))
        for length in (48, 96):
            index = callslip.fit(blind, "tied-residual", settings=CODES | {"seed": seed, "length": length})
            index.adjust({"candidates": "none"})
            values = figures(index, corpus)
            frontier.setdefault(f"{length} and segments", []).append(mean(values))
            if length == 96:
                test = paired_test([per["dense"][q] for q in asked], [values[q] for q in asked])
                against_dense.append({"difference": round(test.difference, 4), "p": round(test.p, 4)})
        print(name, seed, frontier, tree, against_dense, flush=True)
        for kind, data in (("without judged", blind), ("with judged", corpus)):
            index = callslip.fit(data, "tied-residual", settings={"seed": seed})
            values = figures(index, corpus)
            row: dict[str, Any] = {MEASURE: mean(values)}
            test = paired_test([per["convex"][q] for q in asked], [values[q] for q in asked])
            row["against_convex"] = {"difference": round(test.difference, 4), "p": round(test.p, 4)}
            if twin is not None:
                row["without_twins"] = mean({q: values[q] for q, has in zip(asked, twin, strict=True) if not has})
            default[kind].append(row)
            default["weights"].append({kind: {k: round(v, 3) for k, v in index.weights.shares().items()}})
            if seed == seeds[0] and kind == "with judged":
                with tempfile.TemporaryDirectory() as folder:
                    result["bytes_per_document"] = folder_bytes(index, Path(folder) / "index")
        print(name, seed, default, flush=True)
    result |= {"frontier": frontier, "segments_against_dense": against_dense, "tree": tree, "default": default}
    result |= {"later": later(corpus, blind), "cost": cost(corpus, blind)}
    if twin is not None:
        rest = [qid for qid, has in zip(asked, twin, strict=True) if not has]
        result["controls_without_twins"] = {key: mean({q: values[q] for q in rest}) for key, values in per.items()}
    result["cpu_seconds"] = round(time.process_time() - began)
    return result


def later(corpus: Corpus, blind: Corpus) -> dict[str, float]:
    """Questions that documents answer which were added after the fit, beside the same questions after a whole fit."""
    rng = np.random.default_rng(0)
    late = {corpus.doc_ids[row] for row in rng.choice(len(corpus), len(corpus) // 5, replace=False).tolist()}
    early = replace(blind, documents=[d for d in corpus if d.doc_id not in late])
    asked = {q: g for q, g in corpus.judgements["test"].items() if any(d in late and v > 0 for d, v in g.items())}
    subset = replace(corpus, judgements={"test": asked})
    index = callslip.fit(early, "tied-residual")
    index.add([d for d in corpus if d.doc_id in late])
    whole = callslip.fit(blind, "tied-residual")
    return {"questions": len(asked), "added": mean(figures(index, subset)), "fitted": mean(figures(whole, subset))}


def cost(corpus: Corpus, blind: Corpus) -> dict[str, float]:
    """CPU time of a search against encoding its query, in turns, and of a fit against that of dense, nothing cached."""
    index = callslip.fit(corpus, "tied-residual")
    asked = [corpus.queries[qid] for qid in list(corpus.judgements["test"])[:100]]
    took: dict[str, list[float]] = {"encode": [], "search": []}
    for query in asked:
        began = time.process_time()
        index.texts.encode([query.text])
        between = time.process_time()
        index.search(query)
        took["encode"].append(between - began)
        took["search"].append(time.process_time() - between)
    some = replace(blind, documents=blind.documents[:1000])
    fits = {}
    for method in ("dense", "tied-residual"):
        retriever: Any = make(method)
        retriever.texts.use_cache = False
        began = time.process_time()
        retriever.fit(some)
        fits[method] = time.process_time() - began
    return {
        "search_to_encoder": round(float(np.median(took["search"]) / np.median(took["encode"])), 2),
        "encoder_ms": round(1000 * float(np.median(took["encode"])), 2),
        "fit_to_dense": round(fits["tied-residual"] / fits["dense"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=["scifact", "nfcorpus", "wikiqa", "fiqa"])
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in arguments.sets or ["scifact", "nfcorpus", "wikiqa", "fiqa"]:
        kept[name] = measure(name, [int(seed) for seed in arguments.seeds.split(",")])
        RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
