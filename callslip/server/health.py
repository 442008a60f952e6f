"""The state of an index as metrics and plots: codes, training, and changes since. For the page and the report."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from callslip.identifiers import doctor, quality
from callslip.identifiers.table import Identifiers
from callslip.index.retriever import Retriever
from callslip.server import plots
from callslip.server.explorer import coded, tree_levels, vocabulary_of

BINS = 256
"""Maximum number of bars in a plot of token use; with more tokens, neighbours in order of use are averaged."""


def facts(name: str, retriever: Retriever) -> dict[str, Any]:
    """Summary of an index, cheap enough for frequent requests. Only search settings are included: the others may
    contain paths and names of the owner's machine."""
    part = coded(retriever)
    identifiers: Identifiers | None = None if part is None else part.identifiers  # type: ignore[attr-defined]
    described = retriever.describe()
    return {
        "name": name,
        "method": retriever.method,
        "documents": len(retriever),
        "corpus": str(described["corpus"].get("name", "")),
        "trained_on": int(described["corpus"].get("documents", 0)),
        "fit_seconds": described["fit_seconds"],
        "settings": {k: v for k, v in described["settings"].items() if k in retriever.search_settings},
        "generation": retriever.living.generation,
        "version": retriever.living.version,
        "has_codes": identifiers is not None,
        "words": vocabulary_of(retriever) is not None,
        "length": None if identifiers is None else identifiers.length,
        "tree": tree_levels(retriever),
        "beam": getattr(retriever.settings, "beam", None) if "beam" in retriever.search_settings else None,
        "reads_histories": bool(retriever.reads_histories),
    }


def health(name: str, retriever: Retriever) -> dict[str, Any]:
    """The summary, the diagnosis of the codes of living documents, and plots."""
    overview: dict[str, Any] = {"facts": facts(name, retriever), "verdict": None, "findings": [], "figures": None}
    training = records(retriever)
    overview["plots"] = [
        {"name": f"training-{n}", "title": t, "svg": s} for n, (t, s) in enumerate(plots.training(training))
    ]
    drawn = plots.probe(training)
    if drawn is not None:
        title = "Level 1: tokens of a query and of its items"
        overview["plots"].append({"name": "probe", "title": title, "svg": drawn})
    overview["epochs"] = len(training)
    part = coded(retriever)
    if part is None or not len(retriever):
        return overview
    with retriever.living.gate.searching():
        identifiers: Identifiers = part.identifiers  # type: ignore[attr-defined]
        codes = np.asarray(identifiers.codes[retriever.rows.alive[identifiers.rows]])
    figures = quality.measure(codes)
    words = vocabulary_of(retriever) is not None
    findings = doctor.diagnose(figures, words=words, levels=tree_levels(retriever))
    overview["verdict"], overview["figures"] = doctor.verdict(findings), figures.to_dict()
    overview["figures"]["bucket_histogram"] = {str(k): v for k, v in figures.bucket_histogram.items()}
    overview["findings"] = [vars(finding) for finding in findings]
    overview["plots"][:0] = [
        {"name": "buckets", "title": "Documents that share a code", "svg": plots.buckets(figures.bucket_histogram)},
        *(
            {
                "name": f"usage-{level.level + 1}",
                "title": f"Level {level.level + 1}: use of tokens",
                "svg": plots.usage(binned(level.usage), level.width),
            }
            for level in figures.levels[: tree_levels(retriever)]  # the rest of a long code has no tree
        ),
    ]
    return overview


def records(retriever: Retriever) -> list[dict[str, Any]]:
    """The training log, one record per epoch; for a hybrid, those of all its parts."""
    log = getattr(retriever, "log", None)
    own = [] if log is None else [dict(record) for record in log.records]
    for part in getattr(retriever, "parts", ()):
        own += [record | {"phase": f"{part.method}: {record.get('phase', '')}"} for record in records(part)]
    return own


def binned(counts: np.ndarray, bins: int = BINS) -> list[float]:
    """Use counts of a level's tokens in descending order; with more than `bins` tokens, means of neighbours."""
    ordered = np.sort(counts)[::-1].astype(float)
    if len(ordered) <= bins:
        return ordered.tolist()
    edges = np.linspace(0, len(ordered), bins + 1).astype(int)
    return [float(ordered[a:b].mean()) for a, b in itertools.pairwise(edges)]
