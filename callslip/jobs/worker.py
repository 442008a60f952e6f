"""The worker: makes the part of one shard, and does nothing if it is there already.

`python -m callslip.jobs.worker JOB` reads numbers of shards from standard input and answers each with a line of JSON:
what the local engine talks to. It ends when its input does, so it does not outlive the process that started it.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from callslip.errors import CallslipError
from callslip.jobs.plan import PARTS, Job, Shard, encoded, encoder_print
from callslip.runtime import durable


def expected(job: Job, shard: Shard) -> dict[str, Any]:
    """What the JSON of a part must say."""
    return {
        "part": shard.number,
        "rows": shard.rows,
        "shard": {name: entry["sha256"] for name, entry in shard.files.items()},
        "settings": job.settings_print,
        "encoder": job.plan["encoder"],
        "maker": None if job.trained else job.plan["maker"]["sha256"],
    }


def standing(job: Job, shard: Shard) -> dict[str, Any] | None:
    """The JSON of a part that is there; None if it has to be made. A part of other settings, another encoder or other
    documents is refused."""
    file = job.path / PARTS / f"{shard.part}.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        whole = job.path / PARTS / f"{shard.part}.npz"
        made = found["file"]
        if whole.stat().st_size != made["bytes"]:
            return None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CallslipError(f"{file} is damaged ({error})", "Delete it, and run callslip encode again.") from None
    for what, value in expected(job, shard).items():
        if found.get(what) != value:
            raise CallslipError(
                f"{shard.part} was made with a different {_WHAT.get(what, what)} than the plan's",
                f"Restore {job.path / 'plan.json'}, or delete {file} and run callslip encode again.",
            )
    return found


_WHAT = {"settings": "set of settings", "shard": "shard of documents", "maker": "maker of codes", "rows": "length"}


class Worker:
    """Encodes shards of a job. It is loaded once for many of them."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.retriever: Any = job.learner() if job.trained else job.retriever()
        self.retriever.texts.use_cache = False  # the same bytes, whatever was encoded before
        if not job.trained:
            self.retriever.maker, self.retriever.segment_maker = job.makers()

    def run(self, number: int) -> bool:
        """Make a part; False if it was there."""
        job, shard = self.job, self.job.shards[number]
        if standing(job, shard) is not None:
            return False
        here = encoder_print(self.retriever, job.given)
        if here != job.plan["encoder"]:
            raise CallslipError(
                f"{shard.part}: the encoder here is [{here}], and the plan's is [{job.plan['encoder']}]",
                "Use the same weights and the same backend (onnx or torch) everywhere, or plan again.",
            )
        folder = job.path / PARTS
        for leftover in folder.glob(f"{durable.DRAFT}{shard.part}.*"):  # of a worker that was killed
            durable.system.remove(leftover)
        made = durable.replace(folder / f"{shard.part}.npz", archive(self.arrays(shard)))
        said = expected(job, shard) | {"file": made}
        durable.replace(folder / f"{shard.part}.json", (json.dumps(said, indent=1) + "\n").encode())
        return True

    def arrays(self, shard: Shard) -> dict[str, np.ndarray]:
        """Vectors in 16 bits and codes of the documents of a shard, and of their segments and passages; vectors alone
        if the codes are made in training."""
        documents = self.job.documents(shard)
        vectors, segments = encoded(self.job, self.retriever, shard, documents)
        if self.job.trained:
            return {"vectors": vectors.astype(np.float16)}
        coded = self.retriever.code(vectors, segments)
        arrays: dict[str, np.ndarray] = {"vectors": vectors.astype(np.float16), "codes": coded.codes}
        if self.retriever.segment_maker is not None:
            scales, counts = coded.segment_scales, coded.counts.astype(np.uint8)
            arrays |= {"segments": coded.segments, "segment_scales": scales, "segment_counts": counts}
        if self.retriever.settings.passages:
            codes, _, owners = self.retriever.passage_codes(documents, shard.first)
            arrays |= {"passages": codes.astype(np.uint8), "owners": owners}
        return arrays


def archive(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as a .npz file whose bytes depend on nothing else, not on the time either."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as file:
        for name, values in arrays.items():
            one = io.BytesIO()
            np.save(one, values, allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{name}.npy"), one.getvalue())
    return whole.getvalue()


def serve(path: Path) -> None:
    """Answer numbers of shards, one a line, until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    worker: Worker | None = None
    for line in sys.stdin:
        answer: dict[str, Any] = {"number": int(line)}
        try:
            worker = worker or Worker(Job.open(path))
            answer["made"] = worker.run(int(line))
        except Exception as error:
            answer["error"] = said(error)
        print(json.dumps(answer), file=answers, flush=True)


def said(error: Exception) -> str:
    """An error in one line."""
    text = error.problem if isinstance(error, CallslipError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:500]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
