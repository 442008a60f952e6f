"""callslip methods: list the methods and their settings."""

from __future__ import annotations

from typing import Annotated

import typer

from callslip.cli import app, terminal


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Method whose settings to show.")] = None,
) -> None:
    """List the methods, or the settings of one."""
    from callslip.methods import DEFAULT, find
    from callslip.methods import known as all_methods
    from callslip.settings import describe

    if name is None:
        for known, method in all_methods().items():
            terminal.echo(f"{known:<14}", bold=True, nl=False)
            terminal.echo(f" {method.about}{' (the default)' if known == DEFAULT else ''}")
        terminal.echo("\na+b fuses a and b. Show a method's settings: callslip methods NAME.")
        return
    method = find(name)
    terminal.echo(name, bold=True, nl=False)
    terminal.echo(f": {method.about}\n")
    heading = ""
    for field in describe(method.load().Settings):
        if field.group != heading:
            heading = field.group
            terminal.echo(f"\n{heading}", underline=True)
        default = method.settings.get(field.name, field.default)
        terminal.echo(f"  {field.name}", bold=True, nl=False)
        terminal.echo(f" = {_shown(default)}  ({field.kind})\n      {field.help}")
    presets = method.presets()
    if presets:
        terminal.echo("\nPresets:")
        for preset, values in presets.items():
            terminal.echo(f"  {preset}: " + ", ".join(f"{key}={_shown(value)}" for key, value in values.items()))


def _shown(value: object) -> str:
    """A value as it would be typed after --set."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)
