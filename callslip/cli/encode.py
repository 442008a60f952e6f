"""callslip encode: encode the shards of a job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options
from callslip.errors import BadSetting

JobArgument = Annotated[Path, typer.Argument(metavar="JOB", help="A folder made by `callslip plan`.")]


@app.command()
def encode(
    job: JobArgument,
    part: Annotated[
        str | None,
        typer.Option("--part", metavar="i/n", help="Encode only the i-th of n shares, counted from 1; for array jobs."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Number of processes on this machine. [default: 1]")
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="local, ray or dask; the last two need the extra of that name.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option("--address", help="Address of the cluster: auto or host:port (ray), tcp://host:port (dask)."),
    ] = None,
) -> None:
    """Encode the remaining shards of a job. It can be killed and restarted at any time."""
    from callslip import api
    from callslip.jobs.plan import Job

    done = 0

    def tell(number: int) -> None:
        nonlocal done
        done += 1
        options.say(f"part-{number:05d} done ({done})")

    made = api.encode(job, part=_share(part), workers=workers, engine=engine, address=address, tell=tell)
    options.say(f"{job}: {options.counted(made, 'part')} made" if made else f"{job}: nothing was missing")
    if part is None:
        options.say(f"next: callslip train {job}" if Job.open(job).trained else f"next: callslip build {job} --out DIR")


def _share(part: str | None) -> tuple[int, int] | None:
    if part is None:
        return None
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", part)
    if found is None:
        raise BadSetting(f"--part {part}", "Give i/n with i from 1 to n, e.g. 1/8.")
    return int(found[1]), int(found[2])
