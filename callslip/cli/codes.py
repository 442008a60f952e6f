"""callslip codes: make the codes of a corpus without training a model, judge them, and export them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callslip.cli import app, options, terminal

if TYPE_CHECKING:
    from callslip.identifiers.table import Identifiers
    from callslip.index.code_table import CodeTable


@app.command()
def codes(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS|DIR", help="A corpus, or a saved index.")],
    method: Annotated[str | None, typer.Option("--method", "-m", help="Method whose codes to make.")] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option("--out", "-o", help="File for the codes: .csv, .tsv, .parquet, .json or .npy; repeatable."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="An index or file of codes to compare with.")
    ] = None,
    vectors: options.VectorsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict and all figures as JSON.")] = False,
    queries: options.QueriesOption = None,
    qrels: options.QrelsOption = None,
    items: options.ItemsOption = None,
    preset: options.PresetOption = None,
    set_: options.SetOption = None,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
) -> None:
    """Make the codes of a corpus without training a model; judge and export them."""
    from callslip import api
    from callslip.errors import BadSetting
    from callslip.identifiers.files import check_written, write_codes
    from callslip.index.code_table import CodeTable
    from callslip.methods import DEFAULT_CODES
    from callslip.storage.folder import MANIFEST

    for path in out or []:
        check_written(path)  # before minutes of work
    other = None if against is None else options.read_table(against)
    if (Path(corpus) / MANIFEST).is_file():
        if method or set_ or vectors or preset:
            raise BadSetting(f"{corpus} is an index, which has its codes", "Leave method, settings and vectors out.")
        table = CodeTable(options.read_table(Path(corpus)))
    else:
        _, values = options.chosen_settings(None, set_)
        data = options.read_corpus(corpus, format, queries, qrels, items, column, skip_bad)
        table = api.codes(data, method or DEFAULT_CODES, preset=preset, settings=values, vectors=vectors)
    _report(table, other, as_json)
    for path in out or []:
        write_codes(path, table.identifiers)
        options.say(f"wrote {path}")


def _report(table: CodeTable, other: Identifiers | None, as_json: bool) -> None:
    from callslip.cli.inspect import show_quality
    from callslip.identifiers import quality
    from callslip.identifiers.doctor import Finding

    report = table.report(other)
    if as_json:
        terminal.echo(terminal.to_json(report, indent=2))
        return
    findings = [Finding(**finding) for finding in report["findings"]]
    show_quality(quality.measure(table.identifiers), findings, report["verdict"], table.identifiers.length)
    show_audit(report)


def show_audit(report: dict[str, Any]) -> None:
    """Print the figures that need more than the table."""
    if near := report.get("neighbours"):
        levels = zip(near["shared"], near["by_chance"], strict=True)
        shown = ", ".join(f"{n} {s:.1%} ({c:.1%} by chance)" for n, (s, c) in enumerate(levels, start=1))
        terminal.echo(f"of the {near['nearest']} nearest neighbours, share with the same first tokens: {shown}")
    if both := report.get("head_and_tail"):
        for name in ("head", "tail"):
            one = both[name]
            terminal.echo(
                f"{name}: {options.counted(one['documents'], 'document')}, {one['collision_rate']:.1%} share a code, "
                f"mean bucket {one['bucket_mean']:.1f}"
            )
    if churn := report.get("churn"):
        others = ", ".join(f"{n} {share:.1%}" for n, share in enumerate(churn["changed"], start=1))
        terminal.echo(
            f"against the other table: {options.counted(churn['common'], 'document')} in both, {churn['added']:,} "
            f"added, {churn['removed']:,} removed; other first tokens: {others}; regrouped {churn['regrouped']:.1%}"
        )
