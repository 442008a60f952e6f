"""URI on a log or on texts: figures, entropy of the codes, the codes in other methods, and what the parts are worth.

    python benchmarks/uri.py amazon-beauty --parts sequential,general,ape --index /tmp/uri-index
    python benchmarks/uri.py amazon-beauty --parts given,renaming,without --index /tmp/uri-index
    python benchmarks/uri.py amazon-beauty --parts candidates --rankings union --beams 1,2,5,10,20,50 --split dev
    python benchmarks/uri.py amazon-beauty --parts head-start --split dev
    python benchmarks/uri.py scifact --parts text --set backend=torch [--split dev]

`sequential` and `general` fit URI and search under each ranking; `sequential` leaves its index in the folder `--index`,
and `given` (other methods with URI's codes), `renaming` and `without` (its parts left out) take the codes from there;
codes of plain weights are learned beside them, in `INDEX-plain`, and every row is then trained alike. `ape` learns
codes of two levels at `--widths` tokens and nothing else; `head-start` does so with and without the head start, and
with a random beginning. `candidates` is the paper's Figure 4: R@10 against the number of items that a beam reaches, for
the numbers of tokens and levels in `--shapes`. `--users` draws so many of the split, and `--split dev,test`
asks an index about both. `text` is for sets of texts: every ranking and beam, and questions with and without a twin
among the training queries.
"""

from __future__ import annotations

import argparse
import os
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from recommendation import GENERAL, RESULTS, SYSTEMS, WRITER, figures, reached, write
from twins import groups as twins
from two_stage import held_out

import callslip
from callslip.corpus.documents import Corpus
from callslip.identifiers import average_partition_entropy
from callslip.methods import make
from callslip.settings import describe, parse_assignments

URI: dict[str, Any] = WRITER | {
    "width": 32, "length": 2, "batch_size": 512, "learning_rate": 2e-3, "epochs": 10, "warmup_epochs": 12,
    "level_epochs": 2, "level_learning_rate": 2e-3, "head_start": 0.9, "ranker_softmax": "full",
    "history_dropout": 0.5, "start": "none",
}  # fmt: skip
TEXT: dict[str, Any] = {
    "width": 32, "length": 2, "decoder_width": 64, "decoder_layers": 1, "level_epochs": 8,
    "training_texts": ("document", "title"),
    "level_learning_rate": 2e-3, "epochs": 12, "learning_rate": 2e-3, "ranker_epochs": 3,
}  # fmt: skip
BEAM = 20
"""The paper's."""
CODES_ONLY = ("ape", "head-start")
"""Parts that learn codes and search nothing."""
OTHERS = ("dsi-semantic", "tiger", "deep-retrieval")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", help="a folder in CALLSLIP_DATA")
    parser.add_argument("--parts", default="sequential,general,ape,given,renaming,without")
    parser.add_argument("--index", type=Path, default=Path("uri-index"), help="the folder of the sequential index")
    parser.add_argument("--split", default="test")
    parser.add_argument("--users", type=int)
    parser.add_argument("--tag", default="", help="for the name of the file of results")
    parser.add_argument("--rankings", default="union,sum,bucket")
    parser.add_argument("--others", default=";".join(OTHERS), help="methods that `given` gives URI's codes")
    parser.add_argument("--widths", default="16,32,64", help="tokens a level, for `ape`")
    parser.add_argument("--shapes", default="16x2,32x2,64x2,16x3", help="tokens x levels, for `candidates`")
    parser.add_argument("--beams", default=str(BEAM), help="of logs; texts have two")
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    arguments = parser.parse_args()
    corpus = callslip.load_corpus(Path(os.environ.get("CALLSLIP_DATA", "../shared/data")) / arguments.log)
    values = parse_assignments(arguments.assignments)
    if arguments.parts == "text":
        texts(corpus, arguments.log, arguments.split, values)
        return
    for part in arguments.parts.split(","):
        if part == "without":
            learn_plain_codes(corpus, plain_codes(arguments.index), values)
        for name, (method, settings) in systems(part, arguments).items():
            row, index = fitted(corpus, method, settings | values)
            if part == "sequential":
                index.save(arguments.index)
            for split in arguments.split.split(","):
                found = dict(row) if part in CODES_ONLY else row | measured(index, corpus, split, arguments)
                print(part, name, split, {key: value for key, value in found.items() if key != "settings"}, flush=True)
                path = RESULTS / f"uri-{arguments.log}-{part}{arguments.tag}-{split}.json"
                write(path, corpus, "systems", {name: found})


def measured(index: Any, corpus: Corpus, split: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Figures of a split under each ranking and beam."""
    asked, judged = questions(corpus, split, arguments.users)
    row: dict[str, Any] = {"users": len(asked)}
    for ranking, beam in product(arguments.rankings.split(","), map(int, arguments.beams.split(","))):
        found = figures(index.adjust({"ranking": ranking, "beam": beam}), asked, judged)
        found["items_reached"] = reached(index, asked)
        row[ranking if beam == BEAM else f"{ranking}, beam {beam}"] = found
    return row


def texts(corpus: Corpus, name: str, split: str, values: dict[str, Any]) -> None:
    """Fit once, and search under each ranking with several beams."""
    if split == "dev" and "dev" not in corpus.judgements:
        corpus = held_out(corpus)
    row, index = fitted(corpus, "uri", TEXT | values)
    asked = list(corpus.judgements[split])
    twin = twins(corpus, asked)[0] if split == "test" else np.zeros(len(asked), bool)
    for ranking, beam in ((ranking, beam) for ranking in ("union", "sum", "bucket") for beam in (20, 100)):
        index.adjust({"ranking": ranking, "beam": beam})
        report = callslip.evaluate(index, corpus, split=split, measures=["nDCG@10", "R@100"])
        each = np.array([report.per_query["nDCG@10"][query] for query in asked])
        found = {measure: round(interval.mean, 4) for measure, interval in report.measures.items()}
        interval = report.measures["nDCG@10"]
        found |= {"low": round(interval.low, 4), "high": round(interval.high, 4)}
        if twin.any():
            found |= {"with a twin": round(each[twin].mean(), 4), "without": round(each[~twin].mean(), 4)}
        row[f"{ranking}, beam {beam}"] = found
        print(ranking, beam, found, flush=True)
    write(RESULTS / f"uri-{name}-{split}.json", corpus, "systems", {"uri": row})


def systems(part: str, arguments: argparse.Namespace) -> dict[str, tuple[str, dict[str, Any]]]:
    """name -> method and settings of the systems that a part compares."""
    given = {"codes_from": str(arguments.index)}
    own = URI | given | {"ranker_softmax": "sampled"}
    shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes.split(",")]
    codes = URI | {"epochs": 0}
    return {
        "sequential": {"uri": ("uri", URI)},
        "general": {"uri": ("uri", URI | GENERAL)},
        "ape": {f"uri, {k}": ("uri", URI | {"width": int(k), "epochs": 0}) for k in arguments.widths.split(",")},
        "head-start": {
            "head start": ("uri", codes),
            "no head start": ("uri", codes | {"head_start": 0.0}),
            "no head start, random beginning": ("uri", codes | {"head_start": 0.0, "begin": "chance"}),
        },
        "candidates": {f"uri, k={k}, L={n}": ("uri", URI | {"width": k, "length": n}) for k, n in shapes},
        "given": {f"{name}, codes of uri": (name, SYSTEMS[name][1] | given) for name in arguments.others.split(";")},
        "renaming": {how: ("uri", own | {"renaming": how}) for how in ("none", "uniform", "by-prefix")},
        "without": {
            "adaptive weight, hard negatives": ("uri", own),
            "adaptive weight, random negatives": ("uri", own | {"hard_negatives": 0, "random_negatives": 10}),
            "plain weight, hard negatives": ("uri", own | {"codes_from": str(plain_codes(arguments.index))}),
        },
    }[part]


def plain_codes(index: Path) -> Path:
    return index.with_name(f"{index.name}-plain")


def learn_plain_codes(corpus: Corpus, folder: Path, values: dict[str, Any]) -> None:
    """Codes whose balance weighs every token alike; the decoder and the ranker are trained on them afterwards."""
    if not folder.exists():
        fitted(corpus, "uri", URI | values | {"adaptive": False, "epochs": 0})[1].save(folder)


def fitted(corpus: Corpus, method: str, values: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The index, and what is to be said of it before anybody searches."""
    known = {field.name for field in describe(make(method).Settings)}
    index = make(method, {key: value for key, value in values.items() if key in known})
    began, cpu = time.perf_counter(), time.process_time()
    index.fit(corpus)
    codes = index.identifiers.in_row_order()[1]
    sizes = np.unique(codes, axis=0, return_counts=True)[1]
    settings = index.describe()["settings"]
    if settings.get("codes_from"):
        settings["codes_from"] = Path(settings["codes_from"]).name  # results say nothing of this machine
    row = {
        "settings": settings,
        "fit_seconds": round(time.perf_counter() - began, 1),
        "fit_cpu_seconds": round(time.process_time() - cpu, 1),
        "log": [record for record in index.log.records if "ape" in record] + index.log.records[-1:],
        "codes": len(sizes),
        "largest_bucket": int(sizes.max()),
    }
    if index.reads_histories:
        row["ape"] = round(average_partition_entropy(codes, corpus.sequences().each()), 4)
        row["ape_whole_log"] = round(average_partition_entropy(codes, corpus.sequences("test").each()), 4)
    return row, index


def questions(corpus: Corpus, split: str, users: int | None) -> tuple[list[Any], dict[str, dict[str, int]]]:
    queries, judgements = corpus.split(split)
    asked = list(queries.values())
    if users is not None:
        asked = [asked[n] for n in np.random.default_rng(0).permutation(len(asked))[:users]]
    return asked, {query.query_id: judgements[query.query_id] for query in asked}


if __name__ == "__main__":
    main()
