"""Reports and comparisons as rich tables, for the terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callslip.evaluation.comparison import Comparison
    from callslip.evaluation.pruning import Pruning
    from callslip.evaluation.report import Report


def report_view(report: Report) -> Any:
    """A report as a rich renderable."""
    from rich.console import Group
    from rich.text import Text

    title = f"{report.name or 'run'} on {report.dataset.get('name', 'data')}, split {report.split}"
    parts: list[Any] = [Text(f"{title}: {report.queries:,} queries", style="bold"), _figures_table(report)]
    if report.shared_codes:
        parts += [Text("\nDocuments that share a code"), _shared_table(report)]
    if report.seen:
        parts += [Text("\nBy whether the answers had training queries"), _seen_table(report)]
    if report.pruning:
        parts += [Text(f"\nLoss by pruning with a beam of {report.pruning.beam:,}"), _pruning_table(report.pruning)]
        parts += [Text(sentence) for sentence in report.pruning.sentences()]
    for heading, values in (
        ("Times", report.timings),
        ("Codes", {k: v for k, v in report.identifiers.items() if k != "capacity"}),
    ):
        shown = [f"{key.replace('_', ' ')} {_number(v)}" for key, v in values.items() if _is_number(v)]
        if shown:
            parts.append(Text(f"{heading}: {', '.join(shown)}"))
    parts += [Text(f"Note: {note}", style="yellow") for note in report.notes]
    digest = str(report.dataset.get("sha256", ""))[:12]
    parts.append(Text(f"seed {report.seed}" + (f", data set {digest}" if digest else ""), style="dim"))
    return Group(*parts)


def report_text(report: Report, width: int) -> str:
    """A report as plain text."""
    return render(report_view(report), width)


def render(view: Any, width: int) -> str:
    """The output of rich, without colours and trailing spaces."""
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=width, color_system=None, force_terminal=False, highlight=False).print(view)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def new_table(*columns: str) -> Any:
    """An empty table: names left-aligned, numbers right-aligned."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    return table


def _figures_table(report: Report) -> Any:
    codes = report.codes_alone
    columns = ["codes alone", "ranked"] if codes else ["mean"]
    table = new_table("measure", *columns, f"{report.confidence * 100:g} % interval")
    for name, (mean, low, high) in report.measures.items():
        alone = [f"{codes[name].mean:.4f}"] if codes else []
        table.add_row(name, *alone, f"{mean:.4f}", f"{low:.4f}–{high:.4f}")
    return table


def _shared_table(report: Report) -> Any:
    kinds = {"ranked": "ranked", "expected": "expected", "code": "by code", "optimistic": "optimistic"}
    table = new_table("measure", *kinds.values())
    for name, figures in (report.shared_codes or {}).items():
        table.add_row(name, *(f"{figures[kind]:.4f}" if kind in figures else "–" for kind in kinds))
    return table


def _seen_table(report: Report) -> Any:
    from callslip.evaluation.report import SEEN_GROUPS

    names = list(report.measures)
    table = new_table("queries where …", "queries", *names)
    for key, group in (report.seen or {}).items():
        figures = (f"{group.measures[name].mean:.4f}" if group.measures else "–" for name in names)
        table.add_row(SEEN_GROUPS[key], f"{group.queries:,}", *figures)
    return table


def _pruning_table(pruning: Pruning) -> Any:
    table = new_table("measure", "beam", "exact", "exact − beam", "interval")
    for name, loss in pruning.measures.items():
        difference, low, high = loss.difference
        table.add_row(name, f"{loss.beam:.4f}", f"{loss.exact:.4f}", f"{difference:+.4f}", f"{low:+.4f} to {high:+.4f}")
    return table


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def comparison_view(comparison: Comparison, console: Any, options: Any) -> Iterator[Any]:
    """A comparison as rich renderables: one table, or two if the terminal is too narrow.

    The best results are in bold; marks show significant differences from the baseline.
    """
    from rich.measure import Measurement
    from rich.text import Text

    yield Text(comparison.title, style="bold")
    whole = _comparison_table(comparison, figures=True, extras=True)
    if Measurement.get(console, options.update(width=10_000), whole).maximum <= options.max_width:
        yield whole
    else:
        yield _comparison_table(comparison, figures=True, extras=False)
        if comparison.extras():
            yield _comparison_table(comparison, figures=False, extras=True)
    yield from (Text(note, style="dim") for note in comparison.notes(intervals=False))


def _comparison_table(comparison: Comparison, *, figures: bool, extras: bool) -> Any:
    from rich.text import Text

    measures = comparison.measures if figures else []
    columns = comparison.extras() if extras else {}
    codes = comparison.codes_alone() if figures else {}
    table = new_table("system", *codes, *measures, *columns)
    for name, cells in comparison.table.items():
        row = [Text(comparison.label(name)), *(Text(column.get(name, "–")) for column in codes.values())]
        for measure in measures:
            cell = cells[measure]
            figure = Text(f"{cell.mean:.4f}", style="bold" if cell.best else "")
            row.append(figure.append(cell.mark or " ", style="dim"))
        table.add_row(*row, *(Text(column.get(name, "–")) for column in columns.values()))
    return table
