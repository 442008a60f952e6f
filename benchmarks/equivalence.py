"""Does a change of the code change results? Fits every method on a small corpus and a small log.

    PYTHONPATH=/path/to/the/commit/before python benchmarks/equivalence.py record before.json
    python benchmarks/equivalence.py record after.json
    python benchmarks/equivalence.py compare before.json after.json

A record holds, for each case, the codes, the hits of all test queries (before and after documents are added and
deleted, and after the index is loaded again), and a hash of every saved array. Arrays are compared as a multiset: a
renamed parameter is no difference, a changed bit is one. Only the public API is used, so that it runs at both commits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums of two threads differ in the last bit
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np

TINY = {"encoder": "scratch", "epochs": 2, "decoder_width": 32, "batch_size": 64, "width": 4, "leaf": 3}
TINY |= {"rounds": 1, "round_epochs": 2, "rqvae_epochs": 2, "level_epochs": 1, "level_steps": 10, "ranker_epochs": 1}
TINY |= {"warmup_epochs": 1, "writing_epochs": 2, "keyword_epochs": 1, "history_width": 32, "trees": 2}
PAPERS = ("asi++", "genret", "glen", "uri")
TEXTS = (
    "bm25", "bm25-classic", "dense", "hybrid", "dsi-semantic", "dsi-random", "dsi-atomic", "dsi-naive", "dsi-qg", "nci",
    "ultron-pq", "tied-atomic", "genret", "asi", "asi++", "uri", "glen", "tiger", "deep-retrieval", "recforest",
    "bm25+dsi-semantic",
)  # fmt: skip
LOGS = ("popularity", "item-knn", "sasrec", "tiger", "deep-retrieval", "recforest", "uri", "dsi-semantic", "nci")
SPARED = {"quick", "paper"}  # presets that say how long to train; the others leave a part of a paper out


def cases() -> dict[str, tuple[str, str, dict]]:
    """Name of the case -> method, kind of corpus, settings."""
    known: dict[str, tuple[str, str, dict]] = {f"text {name}": (name, "text", {}) for name in TEXTS}
    known |= {f"log {name}": (name, "log", {}) for name in LOGS}
    known |= {f"set {name}": (name, "log", {"queries": "set"}) for name in ("sasrec", "dsi-semantic", "uri")}
    for name in PAPERS:
        for preset, values in presets_of(name).items():
            known[f"text {name}:{preset}"] = (name, "text", dict(values))
    for name in ("dsi-semantic", "genret", "asi++", "uri", "nci"):
        known[f"tuned {name}"] = (name, "text", {"encoder": "minilm", "train_encoder": "top", "epochs": 1})
    for name in ("dsi-semantic", "genret", "uri"):
        known[f"t5 {name}"] = (name, "text", {"seq2seq": "t5", "epochs": 1, "stop_collapsed": False})
    for teacher in ("dense", "bm25"):
        known[f"text tied-atomic, {teacher} as teacher"] = ("tied-atomic", "text", {"teacher": teacher})
    for ranking in ("bucket", "share", "union"):
        known[f"text dsi-semantic, {ranking}"] = ("dsi-semantic", "text", {"ranking": ranking})
    known["text asi++, free decoding"] = ("asi++", "text", {"decoding": "free"})
    known["text dsi-semantic, exact decoding"] = ("dsi-semantic", "text", {"decoding": "exact"})
    return known


def presets_of(name: str) -> dict[str, dict]:
    """A method's presets, but for those that say how long to train."""
    from callslip.methods import find

    return {preset: values for preset, values in find(name).load().presets.items() if preset not in SPARED}


def text_corpus():
    """Sixty documents on four topics, with train and test queries."""
    from callslip import Corpus, Document, Query

    topics = {"fruit": "apple banana cherry orange melon", "metal": "iron copper silver nickel cobalt",
              "music": "violin trumpet piano cello flute", "river": "danube nile rhine volga congo"}  # fmt: skip
    documents, queries, judged = [], {}, {"train": {}, "test": {}}
    for topic, some in topics.items():
        words = some.split()
        for n in range(15):
            word, other, own = words[n % 5], words[(n + 2) % 5], f"{topic}{n}"
            text = f"The {word} is a {topic}. Unlike the {other}, it bears the mark {own}. Nobody knows why."
            documents.append(Document(f"{topic}/{n}", text, f"About {word} {own}", {"topic": topic}))
            for split, phrase in (("train", "which {0} has the mark {1}"), ("test", "where is the {0} with {1}")):
                name = f"{split}-{topic}-{n}"
                queries[name] = Query(name, phrase.format(word, own))
                judged[split][name] = {f"{topic}/{n}": 1}
    return Corpus(documents, queries, judged, name="small")


def new_documents(kind: str):
    from callslip import Document

    if kind == "log":
        return [Document("soap-new", "A soap of kind 9, made for soap lovers.", "soap 9")]
    return [Document("new", "The apple is a fruit. It bears the mark fruit99.", "About apple fruit99")]


def record_case(method: str, kind: str, values: dict, corpus, t5: str) -> dict:
    import callslip
    from callslip.methods import find
    from callslip.settings import describe

    parts = method.split("+") if "+" in method and method != "asi++" else [method]
    settings = {}
    for part in parts:
        names = {field.name for field in describe(find(part).load().Settings)}
        prefix = f"{part}." if len(parts) > 1 else ""
        settings |= {f"{prefix}{key}": value for key, value in (TINY | values).items() if key in names}
    if settings.get("seq2seq"):
        settings["seq2seq"] = t5
    index = callslip.fit(corpus, method, settings=settings)
    asked = list(corpus.split("test")[0].values())
    found = {"codes": codes_of(index), "hits": hits_of(index, asked)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index.save(path)
        found["arrays"] = arrays_of(path)
        again = callslip.load(path)
        found["loaded"] = hits_of(again, asked)
        again.delete([corpus.doc_ids[3]])
        try:
            again.add(new_documents(kind))
        except callslip.CallslipError as error:
            found["add"] = error.problem
        found["changed"] = hits_of(again, asked)
        again.compact()
        found["compacted"] = hits_of(again, asked)
        again.close()
        index.close()
    return found


def codes_of(index) -> list | None:
    table = getattr(index, "identifiers", None)
    return None if table is None else np.asarray(table.in_row_order()[1]).tolist()


def hits_of(index, asked) -> list:
    return [[(hit.doc_id, round(hit.score, 5)) for hit in hits] for hits in index.search_batch(asked, k=5)]


def arrays_of(path: Path) -> list[str]:
    """A line for each array of the saved folder: shape, type and hash."""
    from safetensors.numpy import load_file

    arrays = []
    for file in sorted(path.rglob("*")):
        if file.suffix == ".safetensors":
            arrays += load_file(file).values()
        elif file.suffix == ".npy":
            arrays.append(np.load(file, allow_pickle=False))
    return sorted(f"{a.shape} {a.dtype} {hashlib.sha256(np.ascontiguousarray(a)).hexdigest()[:16]}" for a in arrays)


def record(out: Path, only: str | None) -> None:
    from small_log import small_log
    from small_t5 import save_small_t5

    data = {"text": text_corpus(), "log": small_log()}
    words = sorted({word for document in data["text"] for word in document.content.lower().split()})
    records = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CALLSLIP_CACHE"] = f"{folder}/cache"
        t5 = str(save_small_t5(Path(folder) / "t5", words))
        for name, (method, kind, values) in cases().items():
            if only and only not in name:
                continue
            print(name, file=sys.stderr, flush=True)
            try:
                records[name] = record_case(method, kind, values, data[kind], t5)
            except Exception as error:  # a case that fails is a difference, unless it failed before
                records[name] = {"failed": f"{type(error).__name__}: {error}".replace(folder, "")}
    out.write_text(json.dumps(records), encoding="utf-8")


def compare(before: Path, after: Path) -> int:
    one, two = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    differing = 0
    for name in sorted(one.keys() | two.keys()):
        if name not in one or name not in two:
            differences = [f"only in {(before if name in one else after).name}"]
        else:
            keys = sorted(one[name].keys() | two[name].keys())
            differences = [key for key in keys if one[name].get(key) != two[name].get(key)]
        if differences:
            differing += 1
            print(f"{name}: {', '.join(differences)}")
            for side in (one, two):
                if "failed" in side.get(name, {}):
                    print(f"    {side[name]['failed'][:200]}")
    print(f"{differing} of {len(one.keys() | two.keys())} cases differ")
    return int(differing > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--only", help="cases whose name holds this")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after)
    record(given.out, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
