"""Do recipes give the figures that they promise? Fits each, evaluates it, and compares with its `[expected]` table.

    python benchmarks/recipes.py                      every recipe with figures, shortest first
    python benchmarks/recipes.py tied-atomic-scifact-cpu glen-scifact-cpu

A recipe's table names the data set (a folder in CALLSLIP_DATA), the split, the minutes that a fit takes, the
measures, and the `tolerance` by which a run may differ: sums of one and of two threads differ in the last bit, and
from there trainings drift apart. Exits with 1 if a figure is out of tolerance. Results go to `results/recipes.json`,
a run at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import callslip
from callslip.recipes import Recipe, names, read_recipe
from callslip.runtime.process import versions

DATA = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
RESULTS = Path(__file__).parent / "results" / "recipes.json"
FACTS = {"data", "split", "tolerance", "minutes", "exclude_history"}


def measures_of(recipe: Recipe) -> dict[str, float]:
    return {name: value for name, value in recipe.expected.items() if name not in FACTS}


def run(name: str, recipe: Recipe) -> dict[str, Any]:
    """Fit and evaluate a recipe; its figures beside the expected ones."""
    expected = recipe.expected
    began, corpus = time.perf_counter(), callslip.load_corpus(DATA / expected["data"])
    index = callslip.fit(corpus, recipe.method, settings=recipe.settings)
    options = {"exclude_history": True} if expected.get("exclude_history") else {}
    report = callslip.evaluate(index, corpus, split=expected["split"], measures=list(measures_of(recipe)), **options)
    figures = {measure: round(report.measures[measure].mean, 4) for measure in measures_of(recipe)}
    off = {m: round(figures[m] - value, 4) for m, value in measures_of(recipe).items()}
    within = all(abs(difference) <= expected["tolerance"] for difference in off.values())
    return {
        "figures": figures,
        "expected": measures_of(recipe),
        "difference": off,
        "within": within,
        "fit_seconds": round(index.fit_seconds, 1),
        "seconds": round(time.perf_counter() - began, 1),
        "versions": versions(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="recipes; all that have figures if none is named")
    asked = parser.parse_args().names
    recipes = {name: read_recipe(name) for name in asked or names()}
    without = [name for name in asked if not recipes[name].expected]
    if without:
        parser.error(f"{without[0]} has no [expected] table")
    chosen = sorted((n for n, r in recipes.items() if r.expected), key=lambda n: recipes[n].expected.get("minutes", 0))
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    wrong = 0
    for name in chosen:
        kept[name] = run(name, recipes[name])
        wrong += not kept[name]["within"]
        print(f"{name}: {kept[name]['figures']}, expected {kept[name]['expected']}", flush=True)
        RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(chosen) - wrong} of {len(chosen)} recipes gave what they promise")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
