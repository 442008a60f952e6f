"""Training of a job: one fit, divided among the processes that torchrun started.

plan.json, shards/, parts/    as in every job; the parts have the vectors of documents, if the job was encoded
training/                     checkpoints, while the training is not finished
trained/                      the index; the training is finished when it is there
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from callslip.corpus.documents import Corpus
from callslip.encoders.given import GivenVectors
from callslip.errors import BadSetting, CallslipError, Unsupported
from callslip.index.given import give
from callslip.jobs.build import check_parts
from callslip.jobs.plan import PARTS, Job
from callslip.runtime import progress
from callslip.settings import to_dict
from callslip.storage.copies import copy_index
from callslip.storage.folder import MANIFEST
from callslip.training import ranks
from callslip.training.checkpoints import Checkpoints

TRAINING, TRAINED = "training", "trained"


def train_job(
    path: str | Path, *, every: float = 60.0, again: str = "", tell: Callable[[str], object] = lambda line: None
) -> bool:
    """Train the index of a job, or resume its training; False if it is trained. `every`: seconds between checkpoints;
    `again`: what to do if it is stopped. `tell` gets what the first process has to say."""
    job = Job.open(path)
    if not job.trained:
        raise Unsupported(
            f"{job.plan['method']} is not trained", f"Run callslip encode {path}, then callslip build {path} --out DIR."
        )
    if (job.path / TRAINED / MANIFEST).is_file():
        return False
    with ranks.joined() as world:
        # Shards and parts are read on every rank: torchrun's other processes may be on other machines.
        retriever, corpus = job.learner(), job.corpus()
        vectors = document_vectors(job, corpus)
        if vectors is not None:
            give(retriever, corpus, vectors, None)
        checkpoints = Checkpoints(job.path / TRAINING, every=every, resume=True)
        if world.first:
            where = f"{world.count} processes" if world.count > 1 else "one process"
            tell(
                f"training {retriever.method} on {where}: {to_dict(retriever.settings)['batch_size']:,} examples a step"
            )
        with checkpoints.stop.on_signals(again), progress.quiet(not world.first):
            retriever.fit(corpus, checkpoints)
        if world.first:
            retriever.save(job.path / TRAINED)
            checkpoints.remove()
        world.wait()
    return True


def document_vectors(job: Job, corpus: Corpus) -> GivenVectors | None:
    """The vectors of all parts, or those given to the plan; None if the job was not encoded at all."""
    if any((job.path / PARTS).glob("*.json")):
        check_parts(job)
        files = (job.path / PARTS / f"{shard.part}.npz" for shard in job.shards)
        found = []
        for file in files:
            with np.load(file, allow_pickle=False) as part:
                found.append(part["vectors"].astype(np.float32))
        vectors = np.concatenate(found)
    elif job.given:
        vectors = np.concatenate([job.vectors(shard) for shard in job.shards])
    else:
        return None
    return GivenVectors(corpus.doc_ids, vectors, str(job.path))


def copy_trained(path: str | Path, out: str | Path, query_vectors: bool) -> None:
    """Copy the index of a trained job to the folder `out`."""
    job = Job.open(path)
    if query_vectors:
        raise BadSetting("a job that is trained takes no --query-vectors", "Use callslip fit --query-vectors instead.")
    if not (job.path / TRAINED / MANIFEST).is_file():
        raise CallslipError(
            f"{job.path} is not trained yet, and {job.plan['method']} needs training",
            f"Run torchrun --nproc-per-node N -m callslip train {job.path}, or callslip train {job.path}.",
        )
    copy_index(job.path / TRAINED, out)
