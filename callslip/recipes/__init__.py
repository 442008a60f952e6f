"""Recipes: a method with the settings that reproduce a figure, as TOML files.

    about = "…"                  what the recipe is for
    extends = "glen-paper"       another recipe whose settings come first
    method = "glen"
    [settings]                   settings of the method
    [expected]                   what it gives: data, split, measures, and by how much a run may differ

A recipe is named by its file or, if it comes with callslip, by its name. `METHOD-paper` is the preset `paper`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callslip.errors import BadInput, UnknownName

FOLDER = Path(__file__).parent
KEYS = {"about", "extends", "method", "settings", "expected"}


@dataclass(frozen=True)
class Recipe:
    """A method, its settings, and the figures that they are expected to give."""

    method: str | None
    settings: dict[str, Any]
    about: str = ""
    expected: dict[str, Any] = field(default_factory=dict)


def names() -> list[str]:
    """The recipes that come with callslip."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe, given its path or its name."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    own = FOLDER / f"{name}.toml"
    if not own.is_file():
        raise UnknownName("recipe", str(name), names())
    return own


def read_recipe(name: str | Path) -> Recipe:
    """Read a recipe, with the settings of those that it extends."""
    path = find_recipe(name)
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(path, "no such recipe file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(path, f"not a TOML file: {error}") from None
    unknown = set(recipe) - KEYS
    if unknown:
        remedy = f"A recipe has: {', '.join(sorted(KEYS))}."
        raise BadInput(path, f"unknown key {sorted(unknown)[0]!r}", remedy=remedy)
    base = Recipe(None, {})
    if "extends" in recipe:
        base = read_recipe(recipe["extends"])
    settings = base.settings | dict(recipe.get("settings", {}))
    return Recipe(recipe.get("method", base.method), settings, recipe.get("about", ""), recipe.get("expected", {}))
