"""SVG plots for the page and the report, coloured by the style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from callslip.evaluation.plot import axis

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 34
NOT_TERMS = frozenset({"phase", "epoch", "seconds", "learning_rate", "skipped_steps"})
LINES = 6
"""Maximum number of curves in a plot."""


def buckets(histogram: Mapping[int, int]) -> str:
    """Histogram of bucket sizes, with doubling bins: one document, two, three or four, five to eight, and so on."""
    bars: dict[str, int] = {}
    for size, count in sorted(histogram.items()):
        power = 0 if size == 1 else math.ceil(math.log2(size))
        first, last = (1, 1) if power == 0 else (2 ** (power - 1) + 1, 2**power)
        name = str(last) if first == last else f"{first}–{last}"
        bars[name] = bars.get(name, 0) + count
    step, top = axis(max(bars.values(), default=1))
    width = (WIDTH - LEFT - RIGHT) / max(len(bars), 1)
    parts = _frame("Documents per bucket: " + ", ".join(f"{k}: {v}" for k, v in bars.items()), step, top)
    for place, (name, count) in enumerate(bars.items()):
        x, y = LEFT + width * (place + 0.14), _y(count, top)
        parts.append(
            f'<g><title>{escape(name)} documents: {count:,} codes</title><rect class="bar" x="{x:.1f}" y="{y:.1f}" '
            f'width="{width * 0.72:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" rx="2"/></g>'
            f'<text class="tick" x="{x + width * 0.36:.1f}" y="{HEIGHT - BOTTOM + 15}">{escape(name)}</text>'
        )
    return _finish(parts, "documents per bucket", "codes")


def usage(counts: Sequence[float], width: int) -> str:
    """Use counts of a level's tokens in descending order, with a line at uniform use."""
    step, top = axis(max(counts, default=1) or 1)
    even = sum(counts) / len(counts) if counts else 0.0
    spoken = f"The most used of {width} tokens has {max(counts, default=0):.0f} documents; uniform use is {even:.1f}"
    parts = _frame(spoken, step, top)
    each = (WIDTH - LEFT - RIGHT) / max(len(counts), 1)
    path = f"M{LEFT},{HEIGHT - BOTTOM}"
    for place, count in enumerate(counts):
        path += f"V{_y(count, top):.1f}H{LEFT + each * (place + 1):.1f}"
    parts.append(f'<path class="area" d="{path}V{HEIGHT - BOTTOM}Z"><title>{escape(spoken)}</title></path>')
    y = _y(even, top)
    parts.append(f'<line class="reference" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return _finish(parts, f"{width:,} tokens, most used first", "documents")


def training(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(title, plot) of the loss curves of every phase; the terms of a phase share a plot."""
    phases: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        phases.setdefault(str(record.get("phase", "training")), []).append(record)
    found = []
    for phase, own in phases.items():
        names = [name for name in own[0] if name not in NOT_TERMS and _finite(own[0][name])]
        curves = {name: [float(r[name]) if _finite(r.get(name)) else math.nan for r in own] for name in names[:LINES]}
        if curves:
            found.append((phase[:1].upper() + phase[1:], lines(curves)))
    return found


def lines(curves: Mapping[str, Sequence[float]]) -> str:
    """Curves over epochs, with a legend at the top."""
    values = [value for curve in curves.values() for value in curve if math.isfinite(value)]
    epochs = max((len(curve) for curve in curves.values()), default=1)
    step, top = axis(max(values, default=1.0))
    spoken = ", ".join(f"{name} from {curve[0]:.3g} to {curve[-1]:.3g}" for name, curve in curves.items())
    parts = _frame(spoken, step, top)
    across = (WIDTH - LEFT - RIGHT) / max(epochs - 1, 1)
    for number, (name, curve) in enumerate(curves.items()):
        points = [
            (LEFT + across * at if epochs > 1 else LEFT + (WIDTH - LEFT - RIGHT) / 2, _y(value, top), value)
            for at, value in enumerate(curve)
            if math.isfinite(value)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline class="line line-{number + 1}" points="{path}"/>')
        for at, (x, y, value) in enumerate(points):
            tooltip = escape(f"{name}, epoch {at + 1}: {value:.4g}")
            parts.append(
                f'<circle class="dot line-{number + 1}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
                f"<title>{tooltip}</title></circle>"
            )
        x = WIDTH - RIGHT - 4
        parts.append(f'<text class="name line-{number + 1}" x="{x}" y="{TOP + 12 + 15 * number}">{escape(name)}</text>')
    for at in {0, epochs - 1}:
        parts.append(f'<text class="tick" x="{LEFT + across * at:.1f}" y="{HEIGHT - BOTTOM + 15}">{at + 1}</text>')
    return _finish(parts, "epoch", "")


def probe(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The distributions of one query and its items over the tokens of a level, epoch by epoch, as stacked bars; None if
    a training did not record them."""
    epochs = [record["probe"] for record in records if isinstance(record.get("probe"), Mapping)]
    if not epochs:
        return None
    rows = [(kind, name) for kind in ("query", "items") for name in epochs[-1][kind]]
    tall, across = 26, min(36.0, (WIDTH - 120) / len(epochs))
    height = TOP + tall * len(rows) + 22
    spoken = f"Distributions of a query and {len(rows) - 1} of its items over tokens, in {len(epochs)} epochs"
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(spoken)}">']
    for number, (kind, name) in enumerate(rows):
        top = TOP + tall * number
        shown = ("query " if kind == "query" else "") + name
        parts.append(f'<text class="tick left" x="112" y="{top + 15}">{escape(shown[:18])}</text>')
        for at, epoch in enumerate(epochs):
            y, values = float(top), epoch[kind].get(name, [])
            for token, value in enumerate(values):
                part = (tall - 4) * value
                if part >= 0.4:
                    told = escape(f"{shown}, epoch {at + 1}: token {token}, {value:.1%}")
                    parts.append(
                        f'<g class="node hue-{token % 8}"><title>{told}</title><rect x="{118 + across * at:.1f}" '
                        f'y="{y:.1f}" width="{across - 3:.1f}" height="{part:.1f}"/></g>'
                    )
                y += part
    for at in {0, len(epochs) - 1}:
        x = 118 + across * at + (across - 3) / 2
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 10}">{at + 1}</text>')
    parts.append(f'<text class="axis" x="{WIDTH // 2}" y="{height - 1}">epoch</text>')
    return "".join(parts) + "</svg>"


def icicle(tree: Mapping[str, Any]) -> str:
    """The first two levels of the prefix tree, sized by documents, for the report."""
    total, height = max(tree["documents"], 1), 520.0
    parts = [f'<svg class="icicle" viewBox="0 0 {WIDTH * 2} {height:.0f}" role="img" aria-label="The prefix tree">']
    y = 0.0
    for number, child in enumerate(tree["children"]):
        tall = height * child["documents"] / total
        words = " ".join(child["words"])
        tooltip = escape(f"{child['name']}: {child['documents']:,} documents. {words}")
        parts.append(
            f'<g class="node hue-{number % 8}"><title>{tooltip}</title>'
            f'<rect x="0" y="{y:.1f}" width="{WIDTH * 1.2:.0f}" height="{max(tall - 1, 0.5):.1f}"/>'
        )
        if tall > 13:
            parts.append(f'<text x="10" y="{y + tall / 2 + 4:.1f}">{escape(child["name"])} · {escape(words)}</text>')
        below = y
        for grandchild in child.get("children", ()):
            part = height * grandchild["documents"] / total
            parts.append(
                f'<rect class="deep" x="{WIDTH * 1.2 + 2:.0f}" y="{below:.1f}" width="{WIDTH * 0.8 - 2:.0f}" '
                f'height="{max(part - 0.6, 0.3):.1f}"/>'
            )
            below += part
        parts.append("</g>")
        y += tall
    return "".join(parts) + "</svg>"


def _frame(spoken: str, step: float, top: float) -> list[str]:
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(spoken)}">']
    for number in range(round(top / step) + 1):
        y = _y(number * step, top)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick left" x="{LEFT - 6}" y="{y + 4:.1f}">{number * step:,.6g}</text>')
    return parts


def _finish(parts: list[str], across: str, up: str) -> str:
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 4}">{escape(across)}</text>')
    if up:
        parts.append(f'<text class="axis up" x="{WIDTH - RIGHT - 2}" y="{TOP + 10}">{escape(up)}</text>')
    return "".join(parts) + "</svg>"


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(value / top, 0.0), 1.0))


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
