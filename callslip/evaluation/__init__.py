"""Evaluation: measures by their ir_measures names, reports, and comparisons. Does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callslip.evaluation.comparison import Comparison
    from callslip.evaluation.measures import DEFAULT_MEASURES, parse_measures, per_query
    from callslip.evaluation.report import Report, evaluate_run
    from callslip.evaluation.runs import read_run, write_run
    from callslip.evaluation.shared_codes import bucket_figures, group_by_code
    from callslip.evaluation.typos import typo_queries, with_typos

_HOMES = {
    "Comparison": "comparison",
    "DEFAULT_MEASURES": "measures",
    "Report": "report",
    "bucket_figures": "shared_codes",
    "evaluate_run": "report",
    "group_by_code": "shared_codes",
    "parse_measures": "measures",
    "per_query": "measures",
    "read_run": "runs",
    "typo_queries": "typos",
    "with_typos": "typos",
    "write_run": "runs",
}

__all__ = [
    "DEFAULT_MEASURES",
    "Comparison",
    "Report",
    "bucket_figures",
    "evaluate_run",
    "group_by_code",
    "parse_measures",
    "per_query",
    "read_run",
    "typo_queries",
    "with_typos",
    "write_run",
]


def __getattr__(name: str) -> Any:
    """Import modules lazily, so that `--help` stays fast."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
