"""Quality of methods on BEIR sets: fit, evaluate, write one table a set.

    python benchmarks/quality.py scifact nfcorpus --methods bm25,dense,dsi-semantic,dsi-random [--set key=value]

Controls are included unless --no-controls is given.

`demo` is the embedded corpus; other names are folders in CALLSLIP_DATA.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import callslip
from callslip.evaluation.report import Report
from callslip.settings import parse_assignments

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--methods", default="bm25,bm25-classic,dense,dsi-semantic,dsi-random")
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    parser.add_argument("--tag", default="", help="added to the names of the files")
    parser.add_argument("--no-controls", action="store_false", dest="controls", help="only the methods named")
    arguments = parser.parse_args()
    data = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
    for name in arguments.sets:
        corpus = callslip.load_corpus(name if name == "demo" else data / name)
        comparison = callslip.compare(
            corpus,
            arguments.methods.split(","),
            settings=parse_assignments(arguments.assignments),
            controls=arguments.controls,
            on_report=tell,
        )
        stem = f"quality-{name}{arguments.tag}"
        comparison.save(RESULTS / stem)
        print(comparison.to_markdown(), flush=True)


def tell(name: str, report: Report) -> None:
    """One line as soon as a method is done."""
    figures = ", ".join(f"{measure} {interval.mean:.4f}" for measure, interval in report.measures.items())
    print(f"{name}: {figures}; {report.timings}; shared codes: {report.shared_codes}", flush=True)


if __name__ == "__main__":
    main()
