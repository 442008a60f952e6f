"""Several reports side by side: one table as text, Markdown, JSON and a page with a plot."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callslip.errors import BadSetting, UnknownName
from callslip.evaluation.plain import plain, write_json
from callslip.evaluation.report import Report
from callslip.evaluation.significance import PERMUTATIONS, Interval, holm, paired_test
from callslip.evaluation.unfinished import FOLDER as UNFINISHED
from callslip.runtime.progress import duration

LEVEL = 0.05
BETTER, WORSE = "▲", "▼"
CONTROL, CODES_ALONE = "control", "codes alone"
CACHED = "*"
"""Marks the time of a fit that took vectors from the cache."""


@dataclass(frozen=True)
class Cell:
    """One system's result for one measure, and its comparison with the baseline, unless it is the baseline."""

    mean: float
    low: float
    high: float
    best: bool
    difference: float | None = None
    p: float | None = None
    """Two-sided p-value of the sign-flip test."""
    p_corrected: float | None = None
    """Holm-corrected p-value, over all systems compared with the baseline on this measure."""

    @property
    def mark(self) -> str:
        """▲ or ▼ if the result differs significantly from the baseline's."""
        if self.p_corrected is None or self.p_corrected >= LEVEL:
            return ""
        return BETTER if (self.difference or 0) > 0 else WORSE


class Comparison:
    """Reports of several systems on the same queries.

    The other systems are tested against the baseline: the given one, else "bm25" if present, else the first. Reports
    on different data, splits, queries or measures are rejected, since their results are not comparable. `controls` are
    the names of those that come first, marked as controls.
    """

    def __init__(
        self, reports: Mapping[str, Report], baseline: str | None = None, controls: Collection[str] = ()
    ) -> None:
        if not reports:
            raise BadSetting("there is no report to compare", "Give at least one.")
        if baseline is not None and baseline not in reports:
            raise UnknownName("baseline", baseline, reports)
        self.controls = [name for name in reports if name in controls]
        self.reports = {name: reports[name] for name in (*self.controls, *(n for n in reports if n not in controls))}
        self.baseline = baseline or ("bm25" if "bm25" in reports else next(iter(reports)))
        self._check_same()
        self.measures = list(self.reports[self.baseline].measures)
        self.table = self._table()

    @property
    def first(self) -> Report:
        """The baseline's report, also used for everything that all reports share."""
        return self.reports[self.baseline]

    def _check_same(self) -> None:
        def essence(report: Report) -> tuple[Any, ...]:
            ids = next(iter(report.per_query.values()), {})
            return report.dataset.get("sha256"), report.split, set(ids), set(report.measures)

        parts = ("data set", "split", "queries", "measures")
        wanted = essence(self.first)
        for name, report in self.reports.items():
            for part, mine, theirs in zip(parts, essence(report), wanted):
                if mine != theirs:
                    raise BadSetting(
                        f"{name!r} and {self.baseline!r} were evaluated on different {part}",
                        "Compare reports of one data set and split, evaluated with the same measures.",
                    )

    def _table(self) -> dict[str, dict[str, Cell]]:
        """system -> measure -> cell."""
        table: dict[str, dict[str, Cell]] = {name: {} for name in self.reports}
        others = [name for name in self.reports if name != self.baseline]
        for measure in self.measures:
            top = max(round(report.measures[measure].mean, 4) for report in self.reports.values())
            base = self.first.per_query[measure]
            tests = []
            for name in others:
                theirs = self.reports[name].per_query[measure]
                tests.append(paired_test([base[q] for q in base], [theirs[q] for q in base], seed=self.first.seed))
            corrected = holm([test.p for test in tests])
            for name, report in self.reports.items():
                figure: Interval = report.measures[measure]
                cell: dict[str, Any] = {"best": round(figure.mean, 4) == top > 0}
                if name != self.baseline:
                    place = others.index(name)
                    cell |= {
                        "difference": tests[place].difference,
                        "p": tests[place].p,
                        "p_corrected": corrected[place],
                    }
                table[name][measure] = Cell(*figure, **cell)
        return table

    def label(self, name: str) -> str:
        """The name of a system in the table, with a mark on controls."""
        return f"{name} ({CONTROL})" if name in self.controls else name

    def changed(self) -> dict[str, str]:
        """system -> the settings that differ from its defaults, as key=value."""
        found = {name: report.changed_settings for name, report in self.reports.items() if report.changed_settings}
        return {name: ", ".join(f"{key}={_value(value)}" for key, value in own.items()) for name, own in found.items()}

    @property
    def code_measure(self) -> str:
        """The measure of the column `codes alone`."""
        return "nDCG@10" if "nDCG@10" in self.measures else self.measures[0]

    def codes_alone(self) -> dict[str, dict[str, str]]:
        """column -> system -> text: the expected result of codes alone; no column if no system has codes."""
        cells = {
            name: f"{report.codes_alone[self.code_measure].mean:.4f}"
            for name, report in self.reports.items()
            if report.codes_alone
        }
        return {CODES_ALONE: cells} if cells else {}

    def extras(self) -> dict[str, dict[str, str]]:
        """column -> system -> text: times, unique codes, diversity of the first level, and the first measure as
        expected and by code where documents share codes; columns without values are left out."""
        columns: dict[str, dict[str, str]] = {"fit": {}, "search per query": {}, "unique codes": {}, "diversity": {}}
        first = self.measures[0]
        columns |= {f"{first} expected": {}, f"{first} by code": {}}
        for name, report in self.reports.items():
            shared = (report.shared_codes or {}).get(first, {})
            for kind, column in (("expected", f"{first} expected"), ("code", f"{first} by code")):
                if kind in shared:
                    columns[column][name] = f"{shared[kind]:.4f}"
            fit, search = report.timings.get("fit_seconds"), report.timings.get("search_seconds")
            if fit is not None:
                columns["fit"][name] = duration(fit) + CACHED * bool(report.timings.get("cached_texts"))
            if search is not None and report.queries:
                columns["search per query"][name] = duration(search / report.queries)
            unique = report.identifiers.get("unique_codes", report.identifiers.get("unique"))
            if unique is not None:
                columns["unique codes"][name] = f"{unique:,}"
            if report.identifiers.get("levels"):
                columns["diversity"][name] = f"{report.identifiers['levels'][0]['diversity']:.2f}"
        return {column: cells for column, cells in columns.items() if cells}

    @property
    def title(self) -> str:
        report = self.first
        return f"{report.dataset.get('name', 'data')}, split {report.split}, {report.queries:,} queries"

    def notes(self, intervals: bool = True) -> Iterator[str]:
        """Notes on how to read the table, with or without the note on intervals."""
        if intervals:
            percent = f"{self.first.confidence * 100:g} %"
            yield f"Means with {percent} bootstrap intervals over queries; the best of a column is in bold."
        if self.codes_alone():
            yield (
                f"{CODES_ALONE}: expected {self.code_measure} of the order by codes, before any ranking by vectors "
                "(mean over all orders of documents with the same code); – for systems without such an order."
            )
        if len(self.reports) > 1:
            yield (
                f"{BETTER} and {WORSE}: better and worse than {self.baseline} at p < {LEVEL} (paired "
                f"sign-flip test, two-sided, up to {PERMUTATIONS:,} permutations, Holm-corrected over the "
                "systems within a measure)."
            )
        cached = {n: int(r.timings["cached_texts"]) for n, r in self.reports.items() if r.timings.get("cached_texts")}
        if cached:
            most = f"{max(cached.values()):,}"
            yield f"{CACHED}: vectors of up to {most} texts came from the cache; without it, the fit takes longer."
        alike: dict[str, list[str]] = {}
        for name, values in self.changed().items():
            alike.setdefault(values, []).append(name)
        yield from (f"settings of {', '.join(names)}: {values}" for values, names in alike.items())
        noted: dict[str, list[str]] = {}
        for name, report in self.reports.items():
            for note in report.notes:
                noted.setdefault(note, []).append(name)
        yield from (f"{', '.join(names)}: {note}" for note, names in noted.items())

    def to_dict(self) -> dict[str, Any]:
        """Data for JSON: results, settings and versions of every system, without values per query."""
        systems = {}
        for name, cells in self.table.items():
            report = self.reports[name].to_dict()
            kept = (
                "timings",
                "identifiers",
                "shared_codes",
                "codes_alone",
                "seen",
                "pruning",
                "settings",
                "changed_settings",
                "versions",
                "seed",
                "notes",
                "created",
            )
            systems[name] = {"measures": {m: {**vars(c), "mark": c.mark} for m, c in cells.items()}}
            systems[name] |= {"control": name in self.controls} | {key: report[key] for key in kept}
        return plain(
            {
                "format": "callslip-comparison",
                "format_version": 1,
                "dataset": self.first.dataset,
                "split": self.first.split,
                "queries": self.first.queries,
                "baseline": self.baseline,
                "level": LEVEL,
                "notes": list(self.notes()),
                "systems": systems,
            }
        )

    def to_markdown(self) -> str:
        """The table in Markdown, with notes on how to read it."""
        extras, codes = self.extras(), self.codes_alone()
        head = ["system", *codes, *self.measures, *extras]
        lines = [
            f"**{_markdown(self.title)}**",
            "",
            _row(map(_markdown, head)),
            _row(["---"] + ["---:"] * (len(head) - 1)),
        ]
        for name, cells in self.table.items():
            figures = []
            for cell in cells.values():
                mean = f"**{cell.mean:.4f}**" if cell.best else f"{cell.mean:.4f}"
                figures.append(f"{mean}{cell.mark} ({cell.low:.3f}–{cell.high:.3f})")
            before, after = ([column.get(name, "–") for column in columns.values()] for columns in (codes, extras))
            lines.append(_row([_markdown(self.label(name)), *before, *figures, *after]))
        lines += ["", *(f"- {_markdown(note)}" for note in self.notes())]
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """One row per system and measure: mean, interval, difference from the baseline and p-values."""
        import csv
        import io

        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        head = ["system", "control", "measure", "mean", "low", "high", "codes_alone", "difference", "p", "p_corrected"]
        writer.writerow([*head, "fit_seconds", "search_ms_per_query", "settings"])
        changed = self.changed()
        for name, cells in self.table.items():
            report = self.reports[name]
            times = [report.timings.get(key, "") for key in ("fit_seconds", "search_ms_per_query")]
            for measure, cell in cells.items():
                alone = (report.codes_alone or {}).get(measure)
                tests = ["" if value is None else value for value in (cell.difference, cell.p, cell.p_corrected)]
                row = [name, int(name in self.controls), measure, cell.mean, cell.low, cell.high]
                writer.writerow([*row, "" if alone is None else alone.mean, *tests, *times, changed.get(name, "")])
        return file.getvalue()

    def to_latex(self) -> str:
        """A tabular for LaTeX (package booktabs), with the notes as comments."""
        extras, codes = self.extras(), self.codes_alone()
        head = ["system", *codes, *self.measures, *extras]
        lines = [f"% {line}" for line in (self.title, *self.notes(intervals=False))]
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", "\\toprule"]
        lines += [" & ".join(map(_latex, head)) + r" \\", "\\midrule"]
        for name, cells in self.table.items():
            figures = []
            for cell in cells.values():
                mean = f"\\textbf{{{cell.mean:.4f}}}" if cell.best else f"{cell.mean:.4f}"
                figures.append(mean + LATEX_MARKS.get(cell.mark, ""))
            before, after = ([column.get(name, "–") for column in columns.values()] for columns in (codes, extras))
            row = [_latex(self.label(name)), *map(_latex, before), *figures, *map(_latex, after)]
            lines.append(" & ".join(row) + r" \\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"

    def to_html(self) -> str:
        """A self-contained page: plot, table, notes. No scripts, no external resources."""
        from callslip.evaluation.page import comparison_page

        return comparison_page(self)

    def text(self, width: int = 120) -> str:
        """The table for a terminal, without colours."""
        from callslip.evaluation.terminal import render

        return render(self, width)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from callslip.evaluation.terminal import comparison_view

        yield from comparison_view(self, console, options)

    def save(self, folder: str | Path) -> list[Path]:
        """Write comparison.md, .json and .html, and each system's report; return their paths."""
        target = Path(folder)
        reports = target / "reports"
        reports.mkdir(parents=True, exist_ok=True)
        paths = [target / f"comparison.{ending}" for ending in ("md", "json", "html")]
        paths[0].write_text(self.to_markdown(), encoding="utf-8")
        write_json(self.to_dict(), paths[1])
        paths[2].write_text(self.to_html(), encoding="utf-8")
        for place, (name, report) in enumerate(self.reports.items(), start=1):
            paths.append(reports / f"{place:02d}-{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:60]}.json")
            report.save(paths[-1])
        shutil.rmtree(target / UNFINISHED, ignore_errors=True)
        return paths


LATEX_MARKS = {BETTER: r"$^{\blacktriangle}$", WORSE: r"$^{\blacktriangledown}$"}
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "\n": " "}
)


def _latex(text: str) -> str:
    return text.translate(_LATEX)


def _value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    """Text escaped for Markdown, on one line."""
    return re.sub(r"([\\`*_\[\]<>|~&])", r"\\\1", " ".join(text.split()))
