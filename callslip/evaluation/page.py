"""The comparison as one HTML page: plots, table, notes. Self-contained, no script, names escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from callslip.evaluation.plain import to_json
from callslip.evaluation.plot import dot_plot
from callslip.evaluation.report import SEEN_GROUPS

if TYPE_CHECKING:
    from callslip.evaluation.comparison import Cell, Comparison

STYLE = """
:root { color-scheme: light dark; --page: #fbfbf9; --card: #ffffff; --ink: #1d2126; --soft: #626a73;
  --line: #e3e4e0; --accent: #1f6f8b; --base: #8a8f96; --good: #2c7a4b; --bad: #b3432f; }
@media (prefers-color-scheme: dark) { :root { --page: #15181b; --card: #1d2125; --ink: #e8eaec;
  --soft: #a0a8b0; --line: #333a40; --accent: #6cc0dc; --base: #8d949b; --good: #74c796; --bad: #ec8f7c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 40px 0 12px; }
h3 { font-size: 1rem; margin: 0 0 6px; }
p.lead { color: var(--soft); margin: 0 0 28px; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); gap: 16px; }
.plots section, .table { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.plots section { padding: 16px 18px 8px; }
svg { display: block; width: 100%; height: auto; font-family: inherit; font-size: 13px; }
svg text { fill: var(--ink); }
svg .grid { stroke: var(--line); }
svg .tick { fill: var(--soft); font-size: 11px; text-anchor: middle; }
svg .name, svg .value { text-anchor: end; }
svg .value { font-variant-numeric: tabular-nums; }
svg .best { font-weight: 700; }
svg .reference { stroke: var(--base); stroke-dasharray: 3 4; }
svg .interval { stroke: var(--accent); stroke-width: 4; stroke-linecap: round; opacity: .38; }
svg circle { fill: var(--accent); }
svg .baseline .interval { stroke: var(--base); }
svg .baseline circle { fill: var(--base); }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; font-variant-numeric: tabular-nums; }
th, td { padding: 10px 12px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
thead th { color: var(--soft); font-size: .85rem; white-space: normal; vertical-align: bottom; }
tr > :first-child { text-align: left; white-space: normal; min-width: 11em; padding-left: 18px;
  overflow-wrap: break-word; }
tr > :last-child { padding-right: 18px; }
td { min-width: 5em; }
tbody tr:last-child > * { border-bottom: 0; }
td small { display: block; color: var(--soft); font-size: .78rem; }
.mark { display: inline-block; width: 1.1em; text-align: right; font-size: .75em; }
.up { color: var(--good); } .down { color: var(--bad); }
.tag { display: block; color: var(--soft); font-weight: 400; font-size: .8rem; }
.notes, .hint, footer { color: var(--soft); font-size: .9rem; }
.notes { padding-left: 1.2em; } .notes li { margin: 4px 0; overflow-wrap: anywhere; }
details { margin: 8px 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px;
  overflow-x: auto; font-size: .82rem; line-height: 1.45; }
footer { margin-top: 40px; overflow-wrap: anywhere; }
"""


def comparison_page(comparison: Comparison) -> str:
    """The complete page."""
    title = escape(comparison.title)
    digest = escape(str(comparison.first.dataset.get("sha256", "without fingerprint")))
    body = [
        "<h1>Comparison of retrieval systems</h1>",
        f'<p class="lead">{title}</p>',
        '<div class="plots">',
        *(_plot(comparison, measure) for measure in comparison.measures),
        "</div>",
        "<h2>Figures</h2>",
        _figures(comparison),
        f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in comparison.notes())}</ul>',
        _shared(comparison),
        _seen(comparison),
        _pruning(comparison),
        "<h2>Settings and versions</h2>",
        *(_details(comparison, name) for name in comparison.reports),
        f"<footer>Data set {digest}</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Comparison: {title}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{chr(10).join(part for part in body if part)}\n</main></body></html>\n"
    )


def _plot(comparison: Comparison, measure: str) -> str:
    cells = {name: row[measure] for name, row in comparison.table.items()}
    return f"<section><h3>{escape(measure)}</h3>{dot_plot(measure, cells, comparison.baseline)}</section>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of HTML cells; the first cell of each row is its heading."""
    titles = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = []
    for first, *rest in rows:
        lines.append(f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>')
    body = "".join(lines)
    return f'<div class="table"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _figures(comparison: Comparison) -> str:
    extras, codes = comparison.extras(), comparison.codes_alone()
    rows = []
    for name, cells in comparison.table.items():
        roles = ["baseline"] if name == comparison.baseline and len(comparison.reports) > 1 else []
        roles += ["control"] if name in comparison.controls else []
        tag = f' <span class="tag">{", ".join(roles)}</span>' if roles else ""
        before, after = ([escape(column.get(name, "–")) for column in more.values()] for more in (codes, extras))
        rows.append([escape(name) + tag, *before, *map(_figure, cells.values()), *after])
    return _table(map(escape, ["System", *codes, *comparison.measures, *extras]), rows)


def _figure(cell: Cell) -> str:
    mean = f"<b>{cell.mean:.4f}</b>" if cell.best else f"{cell.mean:.4f}"
    tooltip = f' title="p = {cell.p_corrected:.4f}, corrected"' if cell.p_corrected is not None else ""
    direction = "up" if (cell.difference or 0) > 0 else "down"
    mark = f'<span class="mark {direction}"{tooltip}>{cell.mark}</span>'
    return f"{mean}{mark}<small>{cell.low:.3f}–{cell.high:.3f}</small>"


KINDS = {"ranked": "ranked", "expected": "expected", "code": "by code", "optimistic": "optimistic"}
"""Kinds of results of documents that share a code, and how they are shown."""


def _shared(comparison: Comparison) -> str:
    """Results of the systems whose documents can share a code: ranked, expected, by code and optimistic."""
    rows = []
    for name, report in comparison.reports.items():
        shared = report.shared_codes or {}
        for kind, shown in KINDS.items():
            if all(kind in shared.get(measure, {}) for measure in comparison.measures):
                figures = [f"{shared[measure][kind]:.4f}" for measure in comparison.measures]
                rows.append([f"{escape(name)}, {shown}", *figures])
    if not rows:
        return ""
    return (
        "<h2>Documents that share a code</h2>"
        + _table(map(escape, ["System, order inside a bucket", *comparison.measures]), rows)
        + '<p class="hint">Ranked: the order shown to users. Expected: the mean over all orders inside the buckets. '
        "By code: every code takes one rank, and is right if one of its documents is. "
        "Optimistic: relevant documents first in each bucket.</p>"
    )


def _seen(comparison: Comparison) -> str:
    """Results by whether the answers of a query had training queries."""
    rows = []
    for name, report in comparison.reports.items():
        for key, group in (report.seen or {}).items():
            if group.queries:
                figures = [f"{group.measures[measure].mean:.4f}" for measure in comparison.measures]
                rows.append([f"{escape(name)}, {SEEN_GROUPS[key]}", f"{group.queries:,}", *figures])
    if not rows:
        return ""
    head = ["System, queries where …", "queries", *comparison.measures]
    return "<h2>Seen and unseen answers</h2>" + _table(map(escape, head), rows)


def _pruning(comparison: Comparison) -> str:
    """Loss of beam search against exact search, for the systems where it was measured."""
    rows, notes = [], []
    for name, report in comparison.reports.items():
        if (pruning := report.pruning) is None:
            continue
        losses = [pruning.measures[measure] for measure in comparison.measures]
        rows.append([f"{escape(name)}, beam of {pruning.beam:,}", *(f"{loss.beam:.4f}" for loss in losses)])
        rows.append([f"{escape(name)}, exact", *(f"{loss.exact:.4f}" for loss in losses)])
        differences = (
            f"{mean:+.4f}<small>{low:+.3f} to {high:+.3f}</small>" for mean, low, high in (x.difference for x in losses)
        )
        rows.append([f"{escape(name)}, exact − beam", *differences])
        notes.append(f'<p class="hint">{escape(name)}: {escape(" ".join(pruning.sentences()))}</p>')
    if not rows:
        return ""
    head = map(escape, ["System, search", *comparison.measures])
    return "<h2>Loss by beam pruning</h2>" + _table(head, rows) + "".join(notes)


def _details(comparison: Comparison, name: str) -> str:
    report = comparison.reports[name]
    kept: dict[str, Any] = {
        "settings": report.settings,
        "identifiers": report.identifiers,
        "timings": report.timings,
        "seed": report.seed,
        "versions": report.versions,
        "created": report.created,
    }
    text = to_json({key: value for key, value in kept.items() if value not in ({}, "")})
    return f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
