"""Dot plots with intervals as inline SVG, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callslip.evaluation.comparison import Cell

WIDTH = 480
LEFT, RIGHT = 160, 62  # space for the names, and for the means
TOP, ROW, BOTTOM = 10, 30, 30
LABEL_LENGTH = 18


def dot_plot(measure: str, cells: Mapping[str, Cell], baseline: str) -> str:
    """Plot of one measure: a row per system, with dot and bar for mean and interval, and a line at the baseline's
    mean."""
    step, top = axis(max(cell.high for cell in cells.values()))
    scale = (WIDTH - LEFT - RIGHT) / top
    bottom = TOP + ROW * len(cells)

    def x(value: float) -> str:
        return f"{LEFT + scale * min(max(value, 0.0), top):.1f}"

    spoken = escape(f"{measure}: " + ", ".join(f"{name} {cell.mean:.3f}" for name, cell in cells.items()))
    parts = [f'<svg viewBox="0 0 {WIDTH} {bottom + BOTTOM}" role="img" aria-label="{spoken}">']
    for i in range(round(top / step) + 1):
        parts.append(f'<line class="grid" x1="{x(i * step)}" x2="{x(i * step)}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x(i * step)}" y="{bottom + 18}">{i * step:.3g}</text>')
    mean = x(cells[baseline].mean)
    parts.append(f'<line class="reference" x1="{mean}" x2="{mean}" y1="{TOP}" y2="{bottom}"/>')
    for place, (name, cell) in enumerate(cells.items()):
        y = TOP + ROW * place + ROW / 2
        kind = "system baseline" if name == baseline else "system"
        value = "value best" if cell.best else "value"
        caption = f"{name}: {cell.mean:.4f} ({cell.low:.4f} – {cell.high:.4f})"
        parts.append(
            f'<g class="{kind}"><title>{escape(caption)}</title>'
            f'<text class="name" x="{LEFT - 12}" y="{y + 4}">{escape(shortened(name))}</text>'
            f'<line class="interval" x1="{x(cell.low)}" x2="{x(cell.high)}" y1="{y}" y2="{y}"/>'
            f'<circle cx="{x(cell.mean)}" cy="{y}" r="5"/>'
            f'<text class="{value}" x="{WIDTH - RIGHT + 50}" y="{y + 4}">{cell.mean:.3f}</text></g>'
        )
    return "".join(parts) + "</svg>"


def axis(highest: float) -> tuple[float, float]:
    """Step (1, 2 or 5 times a power of ten) and end of an axis from 0 that includes `highest`."""
    highest = max(highest, 1e-6)
    power = 10.0 ** math.floor(math.log10(highest))
    steps = [factor * scale for scale in (power / 10, power) for factor in (1, 2, 5)]
    step = next(step for step in steps if highest / step <= 6 + 1e-9)
    return step, step * math.ceil(highest / step - 1e-9)


def shortened(name: str) -> str:
    """A name truncated to fit beside the plot; tooltip and table show it in full."""
    return name if len(name) <= LABEL_LENGTH else name[: LABEL_LENGTH - 1] + "…"
