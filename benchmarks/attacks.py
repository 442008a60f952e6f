"""The attacks of `tests/storage` and `tests/server` in their long form: nothing lost, nothing silent, no traceback.

    python benchmarks/attacks.py --out benchmarks/results/attacks.json

kills     500 rounds of SIGKILL for a server and for a second process that changes and compacts the same index
wal       200 logs of killed writers, each damaged: the loss is named, or nothing is lost
folders   strange index folders, opened by the commands: exit code 2 or 3, and no traceback
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "server"), str(TESTS / "storage")]

import served_kills  # noqa: E402
import strange_folders  # noqa: E402
import wal_trials  # noqa: E402
import word_codes  # noqa: E402

from callslip.corpus.documents import Corpus, Document  # noqa: E402
from callslip.methods import make  # noqa: E402
from callslip.runtime.process import versions  # noqa: E402

COMMANDS = (
    ["search", "DIR", "text"],
    ["check", "DIR"],
    ["inspect", "DIR"],
    ["compact", "DIR"],
    ["delete", "DIR", "d1"],
)
TINY = {"encoder": "scratch", "epochs": 1, "decoder_width": 32, "width": 4}


def kills(place: Path, rounds: int, seed: int) -> dict[str, Any]:
    try:
        return {**served_kills.kills(place / "index", rounds, seed), "lost": 0}
    except AssertionError as error:
        return {"lost": 1, "problem": str(error)}


def logs(place: Path, trials: int, seed: int) -> dict[str, Any]:
    """What became of the damaged logs, by opening and by `check`; by kind of damage."""
    found: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {}
    for number in range(trials):
        kind, outcomes = wal_trials.trial(place, seed * 100_000 + number)
        worst = "silent" if "silent" in outcomes else outcomes[0]
        found[worst] += 1
        kinds.setdefault(kind, Counter())[worst] += 1
    return {"trials": trials, "silent": found["silent"], **found, "by damage": {k: dict(v) for k, v in kinds.items()}}


def strange(place: Path) -> dict[str, Any]:
    """Every strange folder of two methods, given to commands in processes of their own."""
    documents = [Document(f"d{n}", f"the text number {n} of words", "t", {"year": 2000 + n}) for n in range(30)]
    codes: Counter[str] = Counter()
    tracebacks, passed = [], []
    folders = 0
    for method, settings in (("bm25", {}), ("dsi-semantic", TINY)):
        make(method, settings).fit(Corpus(documents)).save(place / method)
        for name, change in strange_folders.changes():
            folders += 1
            ended = []
            for command in COMMANDS if folders % 4 == 0 else COMMANDS[:2]:
                shutil.copytree(place / method, place / "strange", symlinks=True)
                change(place / "strange")
                given = [str(place / "strange") if part == "DIR" else part for part in command]
                environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
                done = subprocess.run(
                    [sys.executable, "-m", "callslip", *given],
                    capture_output=True,
                    text=True,
                    env=environment,
                    check=False,
                )
                shutil.rmtree(place / "strange", ignore_errors=True)
                ended.append(done.returncode)
                codes[f"{given[0]} {done.returncode}"] += 1
                if "Traceback" in done.stderr or done.returncode not in (0, 2, 3):
                    tracebacks.append(f"{method}, {name}: {given[0]}: {done.stderr.strip().splitlines()[-1:]}")
            if ended[0] != 0 and ended[1] == 0:
                passed.append(f"{method}, {name}")
    return {
        "folders": folders,
        "tracebacks": tracebacks,
        "check passes what cannot be opened": passed,
        "exit codes": dict(sorted(codes.items())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", default="kills,wal,folders")
    options = parser.parse_args()
    word_codes.register()
    place = Path(tempfile.mkdtemp(prefix="callslip-attacks-"))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    found: dict[str, Any] = {"commit": commit, "seed": options.seed, "versions": versions()}
    runs = {
        "kills": lambda: kills(place, options.rounds, options.seed),
        "wal": lambda: logs(place / "wal", options.trials, options.seed),
        "folders": lambda: strange(place),
    }
    (place / "wal").mkdir()
    try:
        for part in options.parts.split(","):
            began = time.monotonic()
            found[part] = {**runs[part](), "seconds": round(time.monotonic() - began)}
            print(part, json.dumps(found[part], ensure_ascii=False)[:600], flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    lost = found.get("kills", {}).get("lost", 0) + found.get("wal", {}).get("silent", 0)
    sys.exit(bool(lost or found.get("folders", {}).get("tracebacks")))


if __name__ == "__main__":
    main()
