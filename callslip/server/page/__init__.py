"""The files of the web page, read once. No path is ever built from client input."""

from __future__ import annotations

from importlib.resources import files

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
SCRIPTS = ("app", "api", "dom", "search", "recommend", "desk", "hits", "explorer", "health", "document", "facets")
FILES = ("style.css", "icon.svg", *(f"{name}.js" for name in SCRIPTS))


def _read(name: str) -> tuple[str, bytes]:
    kind = KINDS[name.rpartition(".")[2]]
    return f"{kind}; charset=utf-8", files("callslip.server.page").joinpath(name).read_bytes()


PAGE: dict[str, tuple[str, bytes]] = {"/": _read("index.html"), **{f"/{name}": _read(name) for name in FILES}}
"""Path -> content type and contents."""
