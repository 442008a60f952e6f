"""callslip compare: compare several methods on one corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callslip.cli import app, options
from callslip.errors import BadSetting

if TYPE_CHECKING:
    from callslip.evaluation.report import Report


@app.command()
def compare(
    corpus: options.CorpusArgument,
    methods: Annotated[
        str,
        typer.Option(
            "--methods", "-m", help="Comma-separated methods, as NAME or NAME:PRESET; the first named is the baseline."
        ),
    ],
    split: Annotated[str, typer.Option("--split", help="The split of the judgements: train, dev or test.")] = "test",
    measures: options.MeasuresOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the comparison as Markdown, JSON and HTML.")
    ] = None,
    table: options.TableOption = None,
    preset: options.PresetOption = None,
    set_: options.SetOption = None,
    controls: options.ControlsOption = True,
    codes_alone: options.CodesAloneOption = True,
    exclude_history: options.ExcludeHistoryOption = False,
    typos: Annotated[int, typer.Option("--typos", min=0, help="Number of typos to add to each query.")] = 0,
    queries: options.QueriesOption = None,
    qrels: options.QrelsOption = None,
    items: options.ItemsOption = None,
    format: options.FormatOption = None,
    column: options.ColumnOption = None,
    skip_bad: options.SkipBadOption = False,
) -> None:
    """Fit several methods on one corpus, evaluate them, and print one table."""
    from callslip import api
    from callslip.evaluation.measures import default_measures

    options.check_table(table)
    if format in ("text", "markdown", "latex"):
        raise BadSetting(f"--format {format}: --format is that of the corpus", f"Write --table {format}.")
    _, values = options.chosen_settings(None, set_)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    data = options.read_corpus(corpus, format, queries, qrels, items, column, skip_bad)
    comparison = api.compare(
        data,
        names,
        preset=preset,
        settings=values,
        split=split,
        measures=measures or default_measures(data, split),
        typos=typos,
        controls=controls,
        codes_alone=codes_alone,
        exclude_history=exclude_history,
        on_report=_tell,
        out=out,
    )
    options.show_comparison(comparison, table)
    if out is not None:
        options.say(f"wrote {out}")


def _tell(name: str, report: Report) -> None:
    """Say what a method took. A report from before this command began was read, not measured."""
    cached = int(report.timings.get("cached_texts", 0))
    note = f" (vectors of {options.counted(cached, 'text')} from the cache)" if cached else ""
    options.say(
        f"{name}: fitted in {report.timings['fit_seconds']:.0f} s{note}, "
        f"{report.timings['search_ms_per_query']:.1f} ms per query"
    )
