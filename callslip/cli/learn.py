"""callslip learn: remember which documents answered which queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def learn(
    index: options.IndexArgument,
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG",
            help='Lines of {"query": "…", "doc_id": "…"} or "doc_ids": […]; or a TSV or CSV of query and doc_id. '
            "For an index of a log: users and items, in any format that `callslip fit` reads.",
        ),
    ],
    qrels: Annotated[
        Path | None,
        typer.Option("--qrels", help="Judgements, if LOG is a file of queries with ids."),
    ] = None,
    skip_bad: options.SkipBadOption = False,
    store: options.StoreOption = None,
) -> None:
    """Learn from use, without training: which documents answered which queries, or what users interacted with.

    The next search uses what was learned. It is on disk when the command returns.
    """
    from callslip import api

    done, skipped = api.learn_log(index, log, qrels=qrels, skip_bad=skip_bad)
    if skipped.count:
        options.say(f"skipped {options.counted(skipped.count, 'bad line')}, for example:")
        for example in skipped.examples[:3]:
            options.say(f"  {example}")
    if done.users:
        users = options.counted(done.remembered, "user")
        options.say(f"learned {options.counted(done.answers, 'new interaction')}; {index} counts those of {users}")
        return
    options.say(f"learned {options.counted(done.answers, 'new answer')}; {index} remembers {_queries(done.remembered)}")


def _queries(number: int) -> str:
    return f"{number:,} {'query' if number == 1 else 'queries'}"
