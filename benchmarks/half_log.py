"""A log made from another one: the second half of its users, with all items, as a folder that `callslip fit` reads.

    python benchmarks/half_log.py amazon-beauty OUT
    python benchmarks/half_log.py amazon-beauty OUT --repeat 6      a larger log: all users six times, with new names

Recipes that were tuned on one log are fitted on it unchanged (`recommendation.py`, with CALLSLIP_DATA pointing to the
folder above OUT). Users of the first half of the file are left out; items that only they had stay, as items that no
user has had.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

LOG, ITEMS = "interactions.txt", "items.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeat", type=int, help="instead of half the users, all of them so many times")
    arguments = parser.parse_args()
    source = Path(os.environ.get("CALLSLIP_DATA", "../shared/data")) / arguments.log
    lines = (source / LOG).read_text(encoding="utf-8").splitlines(keepends=True)
    arguments.out.mkdir(parents=True)
    chosen = lines[len(lines) // 2 :]
    if arguments.repeat:
        chosen = [f"{turn}-{line}" for turn in range(arguments.repeat) for line in lines]
    (arguments.out / LOG).write_text("".join(chosen), encoding="utf-8")
    shutil.copyfile(source / ITEMS, arguments.out / ITEMS)
    print(f"{len(chosen):,} users, {sum(line.count(' ') for line in chosen):,} interactions")


if __name__ == "__main__":
    main()
