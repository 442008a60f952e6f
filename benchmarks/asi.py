"""ASI and ASI++ on BEIR sets: codes and figures over seeds, indexers, criteria left out, new documents.

    python benchmarks/asi.py scifact nfcorpus --parts main,variants,new --set decoder_width=128 --set epochs=3
    python benchmarks/asi.py scifact --parts density --seeds 0,1,2      # both readings of Eq. 5

`main` fits asi and asi++ with each seed; `variants` fits asi++ with the other indexers, without each criterion, and
with the density criterion as printed; `new` leaves a fifth of the documents out, adds them after training, and
evaluates queries by what their documents are to the model; `density` fits asi++ with both readings of Eq. 5 and each
seed, and prints their means and extremes by the paper's own measures. `--split dev` holds train claims out where a set
has no dev split. `--workers 2` fits two at a time, with a thread each. Results go to results/asi-SET.json after every
fit.
"""

from __future__ import annotations

import argparse
import json
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from two_stage import held_out

import callslip
from callslip.corpus.documents import Corpus
from callslip.evaluation.evaluate import codes_of_answers
from callslip.evaluation.shared_codes import bucket_figures, code_figures, group_by_code
from callslip.identifiers import quality
from callslip.index.readers import ReadQuery
from callslip.methods import make
from callslip.search.candidates import candidates
from callslip.settings import parse_assignments, to_dict

RESULTS = Path(__file__).parent / "results"
MEASURES = ["nDCG@10", "R@1", "R@10", "R@100"]
KINDS = ("ranked", "optimistic", "expected", "code")
ALWAYS: dict[str, dict[str, Any]] = {"asi": {"criteria_weight": 0.0}, "asi++": {}}
"""Whatever the command says of λ, asi has none."""
VARIANTS = ("pq", "rq", "no-density", "no-bottleneck", "no-information", "density-as-printed", "random")


READINGS: dict[str, str | None] = {"dense": None, "printed": "density-as-printed"}
"""Readings of Eq. 5: those in dense regions weigh more, or, as printed, those far from the others."""


class Fit(NamedTuple):
    """One of the fits that a run is made of, and under which names its figures stand."""

    part: str
    label: str
    method: str
    preset: str | None
    seed: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--parts", default="main,variants,new")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--split", default="test")
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    parser.add_argument("--tag", default="")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    settings = parse_assignments(arguments.assignments)
    for name in arguments.sets:
        path = RESULTS / f"asi-{name}{arguments.tag}.json"
        result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        whole = to_dict(make("asi++", settings).settings)  # defaults may change, and a result should not with them
        corpus = load(name, arguments.split)
        result |= {"corpus": corpus.fingerprint(), "settings": arguments.assignments, "split": arguments.split}
        result["all settings of asi++"] = whole
        for fit, row in measured(list(fits(arguments)), name, settings, arguments.split, arguments.workers):
            result.setdefault(fit.part, {})[fit.label] = row
            write(path, result, fit.label)
        if "density" in arguments.parts.split(","):
            result["readings of Eq. 5"] = readings(result["systems"])
            write(path, result, json.dumps(result["readings of Eq. 5"], indent=1))


def fits(arguments: argparse.Namespace) -> Iterator[Fit]:
    parts = arguments.parts.split(",")
    if "main" in parts:
        for seed in map(int, arguments.seeds.split(",")):
            yield from (Fit("systems", f"{method}, seed {seed}", method, None, seed) for method in ALWAYS)
    if "density" in parts:
        for seed, (reading, preset) in product(map(int, arguments.seeds.split(",")), READINGS.items()):
            yield Fit("systems", f"asi++, Eq. 5 {reading}, seed {seed}", "asi++", preset, seed)
    if "variants" in parts:
        yield from (Fit("systems", f"asi++, {one}", "asi++", one, 0) for one in arguments.variants.split(","))
    if "new" in parts:
        yield from (Fit("new", method, method, None, 0) for method in ALWAYS)


def measured(
    todo: list[Fit], name: str, settings: dict[str, Any], split: str, workers: int
) -> Iterator[tuple[Fit, dict[str, Any]]]:
    """The figures of each fit, as they come."""
    if workers == 1:
        yield from ((fit, measure(fit, name, settings, split)) for fit in todo)
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # processes with several threads each would be slower than one after the other
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        running = {pool.submit(measure, fit, name, settings, split): fit for fit in todo}
        for done in as_completed(running):
            yield running[done], done.result()


def measure(fit: Fit, name: str, settings: dict[str, Any], split: str) -> dict[str, Any]:
    corpus, values = load(name, split), settings | {"seed": fit.seed} | ALWAYS[fit.method]
    if fit.part == "new":
        return new_documents(corpus, fit.method, values, split)
    return figures(make(fit.method, values, preset=fit.preset).fit(corpus), corpus, split)


def load(name: str, split: str) -> Corpus:
    corpus = callslip.load_corpus(Path(os.environ.get("CALLSLIP_DATA", "../shared/data")) / name)
    return held_out(corpus) if split == "dev" and "dev" not in corpus.judgements else corpus


def write(path: Path, result: dict[str, Any], label: str) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(path.name, label, flush=True)


def figures(index: Any, corpus: Corpus, split: str) -> dict[str, Any]:
    """Codes and how evenly they are used, and what is found by code, by code and similarity, and freely."""
    found = quality.measure(index.identifiers, index.settings.width)
    _, sizes = np.unique(index.identifiers.codes, axis=0, return_counts=True)
    row: dict[str, Any] = {
        "fit_seconds": round(index.fit_seconds, 1),
        "unique_codes": found.unique,
        "largest_bucket": found.bucket_max,
        "gini_of_buckets": round(quality.gini(sizes), 4),
        "gini_of_codes": round(found.gini, 4),
        "gini_of_tokens": [round(level.gini, 4) for level in found.levels],
        "tokens_used": [level.used for level in found.levels],
    }
    for ranking in ("bucket", "share", "sum"):
        index.adjust({"ranking": ranking})
        report = callslip.evaluate(index, corpus, split=split, measures=MEASURES)
        row[ranking] = {measure: round(value.mean, 4) for measure, value in report.measures.items()}
        named = {"bucket": "by code", "share": "by share"}.get(ranking, "")
        for measure, kinds in (report.shared_codes or {}).items():
            row.setdefault(named, {})[measure] = {kind: round(kinds[kind], 4) for kind in KINDS if kind in kinds}
    row["free"] = free_search(index, corpus, split)
    return row


def readings(systems: dict[str, Any]) -> dict[str, Any]:
    """Mean, least and most over the seeds of each reading of Eq. 5, by the measures of the paper: unique codes, Gini,
    and what is found by code, expected and by code."""
    table: dict[str, Any] = {}
    for reading in READINGS:
        rows = [row for label, row in systems.items() if label.startswith(f"asi++, Eq. 5 {reading}, seed")]
        found: dict[str, list[float]] = {}
        for row in rows:
            values = {"unique_codes": row["unique_codes"], "gini_of_buckets": row["gini_of_buckets"]}
            for measure, kind in product(("R@1", "R@10"), ("expected", "code")):
                values[f"{measure}, {kind}"] = row["by code"][measure][kind]
            for name, value in values.items():
                found.setdefault(name, []).append(value)
        table[reading] = {
            name: {"mean": round(float(np.mean(some)), 4), "least": min(some), "most": max(some)}
            for name, some in found.items()
        } | {"seeds": len(rows)}
    return table


def free_search(index: Any, corpus: Corpus, split: str, beam: int = 10) -> dict[str, Any]:
    """The paper's search: a beam of ten that may write any code, what no document has is dropped, and nothing is put in
    its place."""
    queries, judgements = corpus.split(split)
    inputs = index.texts.encode([query.text for query in queries.values()])
    index.adjust({"decoding": "free", "beam": beam})
    runs, codes, known = {}, {}, []
    for query, vector, beams in zip(queries, inputs, index.write(inputs, beam), strict=True):
        rows, number = candidates(beams, index.identifiers, None)
        order = np.lexsort((-index.rank(ReadQuery(vector), rows), number))
        held = [(index.documents.rows([row])[0].doc_id, int(n)) for row, n in zip(rows[order], number[order])]
        runs[query] = group_by_code(held)
        codes[query] = [tuple(code) for code in beams.codes.tolist()]
        known.append(len(beams.nodes) / beam)
    index.adjust({"decoding": "beam"})
    by_code = code_figures(codes, codes_of_answers(index, judgements), judgements, MEASURES)
    means = bucket_figures(runs, judgements, MEASURES, code=by_code).means()
    rounded = {m: {kind: round(kinds[kind], 4) for kind in KINDS} for m, kinds in means.items()}
    return {"codes that exist": round(float(np.mean(known)), 4), **rounded}


def new_documents(corpus: Corpus, method: str, settings: dict[str, Any], split: str) -> dict[str, Any]:
    """A fifth of the documents, by the hash of their id, come after training. Queries by what their document is."""
    late = {d.doc_id for d in corpus if zlib.crc32(d.doc_id.encode()) % 5 == 0}
    judged = {
        name: {q: {d: g for d, g in grades.items() if d not in late} for q, grades in of.items()}
        for name, of in corpus.judgements.items()
    }
    early = Corpus([d for d in corpus if d.doc_id not in late], corpus.queries, judged, name=f"{corpus.name} before")
    index = make(method, settings).fit(early)
    index.add([d for d in corpus if d.doc_id in late])
    kinds = index.novelty()
    groups: dict[str, dict[str, dict[str, int]]] = {"all": {}}
    for query, grades in corpus.judgements[split].items():
        groups["all"][query] = grades
        for kind in ("existing", "new content", "new semantic"):
            some = {d: g for d, g in grades.items() if kinds[d] == kind}
            if any(grade > 0 for grade in some.values()):
                groups.setdefault(kind, {})[query] = some
    counted = {kind: sum(value == kind for value in kinds.values()) for kind in sorted(set(kinds.values()))}
    row: dict[str, Any] = {"documents": counted}
    for kind, judgements in groups.items():
        part = Corpus(corpus.documents, corpus.queries, {split: judgements}, name=corpus.name)
        row[kind] = {"queries": len(judgements)}
        for ranking in ("bucket", "sum"):
            index.adjust({"ranking": ranking})
            report = callslip.evaluate(index, part, split=split, measures=["R@1", "R@10"])
            row[kind][ranking] = {measure: round(value.mean, 4) for measure, value in report.measures.items()}
    return row


if __name__ == "__main__":
    main()
