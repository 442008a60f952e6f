"""callslip train: train the index of a job, on one process or on all that torchrun starts."""

from __future__ import annotations

from typing import Annotated

import typer

from callslip.cli import app, options
from callslip.cli.encode import JobArgument


@app.command()
def train(
    job: JobArgument,
    every: Annotated[float, typer.Option("--every", help="Seconds between two checkpoints.")] = 60.0,
) -> None:
    """Train the index of a job, or resume its training.

    Several processes share the work: torchrun --nproc-per-node N -m callslip train JOB.
    """
    from callslip import api
    from callslip.training.ranks import is_first

    resume = f"Start the same command again: it resumes from {job / 'training'}."
    trained = api.train(job, every=every, again=resume, tell=options.say)
    if is_first():
        options.say(f"{job}: trained" if trained else f"{job} is trained already")
        options.say(f"next: callslip build {job} --out DIR")
