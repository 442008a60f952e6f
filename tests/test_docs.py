"""The docs run: README blocks are executed, and a command, method or page that is not documented fails."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from callslip.cli import app, register
from callslip.methods import METHODS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    register()
    return [command.callback.__name__ for command in app.registered_commands]


@pytest.mark.parametrize("command", commands())
def test_every_command_is_in_the_readme(command):
    assert f"callslip {command}" in README


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page(name):
    """A method's page is named after it, or after its file, which variants share."""
    page = ROOT / "docs" / "methods" / f"{name}.md"
    if not page.exists():
        page = page.with_name(f"{METHODS[name].where.partition(':')[0].replace('_', '-')}.md")
    assert page.exists(), page
    text = page.read_text(encoding="utf-8")
    assert f"`{name}`" in text
    for heading in ("## Settings", "## Departures", "## Figures"):
        assert heading in text, f"{page.name} has no section {heading!r}"


def test_every_folder_of_the_package_is_in_the_readmes_map():
    for folder in sorted(p for p in (ROOT / "callslip").iterdir() if p.is_dir() and not p.name.startswith("__")):
        assert f"`{folder.name}/`" in README or f"`callslip/{folder.name}/`" in README, folder.name


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.slow
def test_the_readmes_python_runs(tmp_path):
    (tmp_path / "my-documents").mkdir()
    for name, text in {"a.txt": "Orders can be cancelled within a day.", "b.md": "# Returns\n\nSend it back."}.items():
        (tmp_path / "my-documents" / name).write_text(text)
    for block in blocks("python"):
        done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run_and_stay_short(path, tmp_path):
    text = path.read_text(encoding="utf-8")
    needed = re.search(r"Needs callslip\[(\w+)\]", text)
    if needed and find_spec(needed[1] if needed[1] != "langchain" else "langchain_core") is None:
        pytest.skip(f"the extra {needed[1]!r} is not installed")
    assert text.count("\n") <= (60 if needed else 40)
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("path", sorted((ROOT / "callslip" / "recipes").glob("*.toml")), ids=lambda p: p.name)
def test_recipes_are_valid(path):
    from callslip.methods import make
    from callslip.recipes import read_recipe

    recipe = read_recipe(path)
    assert recipe.method is not None and recipe.about
    make(recipe.method, recipe.settings)
