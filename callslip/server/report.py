"""The state of an index as a self-contained HTML page, with the plots and styles of the web page, and no scripts."""

from __future__ import annotations

from html import escape
from typing import Any

from callslip import __version__
from callslip.index.retriever import Retriever
from callslip.server import health, plots
from callslip.server.explorer import Explorer, coded
from callslip.server.page import PAGE


def page_of(retriever: Retriever, name: str) -> bytes:
    """The complete page, in UTF-8."""
    overview = health.health(name, retriever)
    facts, verdict = overview["facts"], overview["verdict"]
    badge = f'<span class="badge {verdict}">{verdict}</span>' if verdict else ""
    body = [
        f'<div class="explorer-head"><h1>{escape(name)}{badge}</h1>'
        f'<p class="took">{escape(facts["method"])}, fitted on {facts["trained_on"]:,} documents of '
        f"{escape(facts['corpus'] or 'a corpus without a name')}</p></div>",
        _tiles(overview),
        _findings(overview),
        '<div class="plots">',
        *(f"<figure><figcaption>{escape(one['title'])}</figcaption>{one['svg']}</figure>" for one in overview["plots"]),
        "</div>",
        _levels(overview["figures"], facts["tree"]),
        _tree(retriever),
        _settings(retriever.describe()["settings"]),
    ]
    style = PAGE["/style.css"][1].decode("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(name)}: report</title><style>{style}</style></head>\n"
        f"<body><main>\n{chr(10).join(part for part in body if part)}\n"
        f'<p class="hint">callslip {__version__}</p></main></body></html>\n'
    ).encode("utf-8", "replace")


def _tiles(overview: dict[str, Any]) -> str:
    facts, figures = overview["facts"], overview["figures"]
    tiles = {"documents": f"{facts['documents']:,}", "trained in": f"{facts['fit_seconds']:,.0f} s"}
    if figures:
        tiles |= {
            "codes": f"{figures['unique']:,}",
            "share a code": f"{figures['collision_rate']:.1%}",
            "largest bucket": f"{figures['bucket_max']:,}",
            "length": str(figures["length"]),
        }
    tiles["generation"] = f"{facts['generation']}, version {facts['version']}"
    return f'<dl class="tiles">{"".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in tiles.items())}</dl>'


def _findings(overview: dict[str, Any]) -> str:
    if overview["figures"] is None:
        codeless = f"{escape(overview['facts']['method'])} does not use codes."
        return f'<p class="hint">{"The index has no documents." if overview["facts"]["has_codes"] else codeless}</p>'
    if not overview["findings"]:
        return '<p class="verdict good">No problems found.</p>'
    items = "".join(
        f'<li class="{one["severity"]}"><strong>{escape(one["problem"])}</strong><p>{escape(one["remedy"])}</p></li>'
        for one in overview["findings"]
    )
    return f'<ul class="findings">{items}</ul>'


def _levels(figures: dict[str, Any] | None, tree: int | None) -> str:
    """The levels that form the tree, as in `callslip inspect`; on a phone, each row becomes a card."""
    if figures is None:
        return ""
    names = ("level", "tokens", "used", "dead", "perplexity", "Gini", "diversity")
    rows = ""
    for x in figures["levels"][:tree]:
        values = (
            *(f"{value:,}" for value in (x["level"] + 1, x["width"], x["used"], x["dead"])),
            f"{x['perplexity']:.1f}",
            *(f"{value:.3f}" for value in (x["gini"], x["diversity"])),
        )
        cells = (f'<td data-name="{name}">{value}</td>' for name, value in zip(names, values, strict=True))
        rows += f"<tr>{''.join(cells)}</tr>"
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    rest = 0 if tree is None else len(figures["levels"]) - tree
    note = f'<p class="hint">The other {rest} levels of the codes rank inside.</p>' if rest > 0 else ""
    table = f'<table class="stacked"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="table">{table}</div>{note}'


def _tree(retriever: Retriever) -> str:
    if coded(retriever) is None or not len(retriever):
        return ""
    tree = Explorer().children(retriever, (), 2, 48)
    left = tree["left_out"]
    rest = f'<p class="hint">{left["nodes"]:,} smaller nodes are not drawn.</p>' if left["nodes"] else ""
    return f'<div class="bucket"><h2>The first levels of the prefix tree</h2>{plots.icicle(tree)}{rest}</div>'


def _settings(settings: dict[str, Any]) -> str:
    rows = "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in settings.items())
    return f'<details class="bucket"><summary>Settings</summary><table class="words">{rows}</table></details>'
