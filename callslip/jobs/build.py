"""Build: the index of a job whose parts are all there, as a fit in one piece would have made it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from callslip.corpus.documents import Corpus
from callslip.errors import CallslipError
from callslip.jobs.plan import PARTS, Job
from callslip.jobs.worker import standing
from callslip.runtime import durable
from callslip.storage.folder import check_writable

if TYPE_CHECKING:
    from callslip.encoders.given import Encode
    from callslip.index.entries import Block
    from callslip.index.given import Vectors
    from callslip.methods.tied_residual import Coded, TiedResidual

NAMED = 10
"""Most missing parts that a message names."""


def build_job(path: str | Path, out: str | Path, query_vectors: Vectors | Encode | None = None) -> TiedResidual:
    """Make the index of a job, and save it to the folder `out`."""
    check_writable(out)
    job = Job.open(path)
    check_parts(job)
    retriever = job.retriever()
    corpus = job.corpus()
    if query_vectors is not None:
        from callslip.index.given import give

        give(retriever, corpus, None, query_vectors)
    elif job.given:
        _check_encoder(job, retriever)
    retriever.fit_coded(corpus, coded(job))
    retriever.save(out)
    return retriever


def check_parts(job: Job) -> None:
    """Refuse parts that are missing, damaged, or made with something else than the plan says."""
    found = {shard.part: standing(job, shard) for shard in job.shards}
    missing = [name for name, entry in found.items() if entry is None]
    if missing:
        more = f" and {len(missing) - NAMED:,} more" if len(missing) > NAMED else ""
        raise CallslipError(
            f"{len(missing):,} of {len(found):,} parts are missing: {', '.join(missing[:NAMED])}{more}",
            f"Run callslip encode {job.path}; it makes what is missing.",
        )
    for name, entry in found.items():
        wrong = durable.problem_with(job.path / PARTS / f"{name}.npz", (entry or {})["file"])
        if wrong:
            raise CallslipError(
                f"{job.path / PARTS / name}.npz: {wrong}",
                f"Delete {name}.json and {name}.npz, and run callslip encode {job.path} again.",
            )


def coded(job: Job) -> Coded:
    """The codes of all parts, in the order of the rows: read a part at a time."""
    from callslip.index.segment_table import SegmentTable
    from callslip.methods.tied_residual import Coded

    def blocks() -> Iterator[Block]:
        for name, owners in (("codes", None), ("passages", "owners")):
            for shard in job.shards:
                with np.load(job.path / PARTS / f"{shard.part}.npz", allow_pickle=False) as part:
                    if owners is None:
                        yield part[name], np.arange(shard.first, shard.first + shard.rows), True
                    elif name in part:
                        yield part[name], part[owners], False

    def segments() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        for shard in job.shards:
            with np.load(job.path / PARTS / f"{shard.part}.npz", allow_pickle=False) as part:
                yield part["segments"], part["segment_scales"], part["segment_counts"]

    maker, segment_maker = job.makers()
    table = None if segment_maker is None else SegmentTable.of_blocks(segments)
    return Coded(maker, blocks(), segment_maker, table)


def _check_encoder(job: Job, retriever: TiedResidual) -> None:
    """The encoder of the queries must fit the vectors that were given."""
    from callslip.encoders.given import GivenVectors
    from callslip.index.given import check_encoder

    shard = job.shards[0]
    some = Corpus(job.documents(shard))
    check_encoder(retriever.texts, some, GivenVectors(some.doc_ids, job.vectors(shard), shard.place))
