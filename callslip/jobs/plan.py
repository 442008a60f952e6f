"""The job folder, and the plan that it begins with.

    plan.json                method, settings, fingerprints, shards
    codebooks.safetensors    the maker of codes, learned from a sample
    judged.json              queries and judgements, if there are any
    shards/shard-00017.jsonl documents, and shard-00017.npy their vectors if they are given
    parts/part-00017.npz     what a worker made of a shard; part-00017.json beside it means that it is done

A plan is written into a draft of the folder, which is renamed when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from callslip.corpus.documents import NO_METADATA, Corpus, Document, Query
from callslip.encoders.segments import Segments
from callslip.errors import BadInput, BadSetting, CallslipError, Unsupported
from callslip.methods import DEFAULT, make
from callslip.runtime import durable
from callslip.settings import to_dict

if TYPE_CHECKING:
    from callslip.corpus.stream import CorpusStream, Placed
    from callslip.identifiers.tied import SegmentQuantizer, TiedQuantizer
    from callslip.methods.tied_residual import TiedResidual

FORMAT = 1
PLAN, CODEBOOKS, JUDGED, SHARDS, PARTS = "plan.json", "codebooks.safetensors", "judged.json", "shards", "parts"
SHARD_ROWS = 100_000
"""Documents of a shard: about twenty minutes of one core, and 100 MB."""


@dataclass(frozen=True)
class Shard:
    """Some consecutive documents of the corpus."""

    number: int
    first: int
    """Row of its first document."""
    rows: int
    place: str
    """File and lines that they come from, for messages."""
    files: Mapping[str, dict[str, Any]]
    """SHA-256 and size of its files, by name."""

    @property
    def name(self) -> str:
        return f"shard-{self.number:05d}"

    @property
    def part(self) -> str:
        return f"part-{self.number:05d}"


class Job:
    """A job folder with its plan."""

    def __init__(self, path: Path, plan: dict[str, Any]) -> None:
        self.path, self.plan = path, plan
        self.shards, first = [], 0
        for number, one in enumerate(plan["shards"]):
            self.shards.append(Shard(number, first, one["rows"], one["place"], one["files"]))
            first += one["rows"]
        self.rows = first

    @classmethod
    def open(cls, path: str | Path) -> Job:
        path = Path(path)
        try:
            plan = json.loads((path / PLAN).read_text(encoding="utf-8"))
            if plan["format"] != FORMAT:
                raise CallslipError(f"{path / PLAN} has format {plan['format']}, and this version reads {FORMAT}")
            return cls(path, plan)
        except OSError:
            raise CallslipError(f"{path} is not a job", "Make one: callslip plan CORPUS --out JOB.") from None
        except (ValueError, KeyError, TypeError) as error:
            raise CallslipError(f"{path / PLAN} is damaged ({error})", "Plan the job again.") from None

    @property
    def given(self) -> bool:
        """Whether the vectors of documents were given."""
        return bool(self.plan["given"])

    @property
    def trained(self) -> bool:
        """Whether the method is trained: parts then have vectors only, and `callslip train` makes the index."""
        return self.plan["maker"] is None

    @property
    def settings_print(self) -> str:
        """Hash of method and settings, computed from the plan as it is now."""
        return settings_print(self.plan["method"], self.plan["settings"])

    def retriever(self) -> TiedResidual:
        """An unfitted index with the settings of the plan."""
        return shardable(self.plan["method"], self.plan["settings"], None)

    def learner(self) -> Any:
        """An unfitted index of a method that is trained, with the settings of the plan."""
        return trainable(self.plan["method"], self.plan["settings"], None)

    def makers(self) -> tuple[TiedQuantizer, SegmentQuantizer | None]:
        """The quantisers of documents and of their segments."""
        from safetensors.numpy import load_file

        from callslip.methods.tied_residual import makers

        wrong = durable.problem_with(self.path / CODEBOOKS, self.plan["maker"])
        if wrong:
            raise CallslipError(f"{self.path / CODEBOOKS}: {wrong}", "Restore it, or plan the job again.")
        return makers(load_file(self.path / CODEBOOKS))

    def documents(self, shard: Shard) -> list[Document]:
        """The documents of a shard, checked against the plan."""
        self.check_files(shard)
        return list(read_shard(self.path / SHARDS / f"{shard.name}.jsonl"))

    def check_files(self, shard: Shard) -> None:
        """Refuse files of a shard that are not the plan's."""
        for name, entry in shard.files.items():
            wrong = durable.problem_with(self.path / SHARDS / name, entry)
            if wrong:
                raise CallslipError(
                    f"{self.path / SHARDS / name} ({shard.place}): {wrong}", "Restore it, or plan the job again."
                )

    def vectors(self, shard: Shard) -> np.ndarray:
        """The given vectors of a shard."""
        return np.load(self.path / SHARDS / f"{shard.name}.npy", allow_pickle=False)

    def corpus(self) -> Corpus:
        """All documents, which are read from the shards, with queries and judgements."""
        for shard in self.shards:
            self.check_files(shard)
        corpus = Corpus(ShardedDocuments(self.path / SHARDS, self.shards))
        corpus.name = self.plan["name"]
        if self.plan["judged"]:
            wrong = durable.problem_with(self.path / JUDGED, self.plan["judged"])
            if wrong:
                raise CallslipError(f"{self.path / JUDGED}: {wrong}", "Restore it, or plan the job again.")
            judged = json.loads((self.path / JUDGED).read_text(encoding="utf-8"))
            queries = (Query(id, text, tuple(history)) for id, text, history in judged["queries"])
            corpus.queries = {query.query_id: query for query in queries}
            corpus.judgements = judged["judgements"]
        return corpus


class ShardedDocuments(Sequence[Document]):
    """The documents of a job by row, read from its shards whenever they are asked for."""

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self._files = [folder / f"{shard.name}.jsonl" for shard in shards]
        self._ends = np.cumsum([shard.rows for shard in shards])
        self._lines: dict[int, np.ndarray] = {}
        """Where each line of a shard begins: eight bytes a document, of shards that were read by row."""

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __iter__(self) -> Iterator[Document]:
        for file in self._files:
            yield from read_shard(file)

    @overload
    def __getitem__(self, row: int) -> Document: ...
    @overload
    def __getitem__(self, row: slice) -> list[Document]: ...
    def __getitem__(self, row: int | slice) -> Document | list[Document]:
        if isinstance(row, slice):
            return self.rows(range(*row.indices(len(self))))
        at = range(len(self))[row]
        shard = int(np.searchsorted(self._ends, at, side="right"))
        if shard not in self._lines:
            text = np.memmap(self._files[shard], np.uint8, mode="r")
            self._lines[shard] = np.concatenate([[0], np.flatnonzero(text == ord("\n")) + 1])
        starts = self._lines[shard]
        place = at - (int(self._ends[shard - 1]) if shard else 0)
        with self._files[shard].open("rb") as file:
            file.seek(int(starts[place]))
            return _document(file.read(int(starts[place + 1] - starts[place])).decode("utf-8"))

    def rows(self, rows: Sequence[int]) -> list[Document]:
        return [self[row] for row in rows]

    def doc_ids(self) -> Iterator[str]:
        return (document.doc_id for document in self)

    def metadata(self) -> Iterator[Mapping[str, Any]]:
        return (document.metadata for document in self)


def read_shard(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield _document(line)


def _document(line: str) -> Document:
    doc_id, title, text, metadata = json.loads(line)
    return Document(doc_id, text, title, metadata or NO_METADATA)


def settings_print(method: str, settings: Mapping[str, Any]) -> str:
    whole = json.dumps([method, dict(settings)], sort_keys=True, default=str)
    return hashlib.sha256(whole.encode()).hexdigest()


def shardable(method: str, settings: Mapping[str, Any] | None, preset: str | None) -> TiedResidual:
    """An unfitted index of a method that can be fitted in shards."""
    from callslip.methods.tied_residual import TiedResidual

    retriever = make(method, settings, preset=preset)
    if not isinstance(retriever, TiedResidual):
        raise Unsupported(
            f"{method} cannot be fitted in shards", f"Use --method {DEFAULT}, or fit in one piece: callslip fit."
        )
    return retriever


def trainable(method: str, settings: Mapping[str, Any] | None, preset: str | None) -> Any:
    """An unfitted index of a method that is trained on vectors of texts, or as `shardable`."""
    from callslip.encoders.encoder import TextVectors
    from callslip.index.settings import ScheduleSettings

    retriever: Any = make(method, settings, preset=preset)
    if isinstance(retriever.settings, ScheduleSettings) and isinstance(getattr(retriever, "texts", None), TextVectors):
        return retriever
    return shardable(method, settings, preset)


def encoder_print(retriever: Any, given: bool) -> str:
    """What the vectors of documents depend on besides the settings."""
    if given and not getattr(retriever.settings, "passages", 0):
        return "given"
    encoder = retriever.texts.encoder
    said = f"{encoder.fingerprint} prompt={encoder.prompts.document!r}"
    return f"given, passages {said}" if given else said


def plan_job(
    stream: CorpusStream,
    out: str | Path,
    *,
    method: str = DEFAULT,
    settings: Mapping[str, Any] | None = None,
    preset: str | None = None,
    shard_rows: int = SHARD_ROWS,
    vectors: str | Path | None = None,
) -> Job:
    """Write a job folder: the corpus in shards, and codebooks learned from a sample of it."""
    out = Path(out)
    if shard_rows < 1:
        raise BadSetting(f"--shard-rows is {shard_rows}", "Use 1 or more.")
    if out.exists():
        raise CallslipError(
            f"{out} exists already", "Run callslip encode if it is this job; otherwise choose another folder."
        )
    retriever = trainable(method, settings, preset)
    given = None if vectors is None else _open_vectors(Path(vectors))
    try:
        for leftover in out.parent.glob(f"{durable.DRAFT}{out.name}-????????"):  # of a plan that was killed
            durable.system.remove(leftover)
        with durable.new_folder(out) as draft:
            _write(draft, stream, retriever, shard_rows, given)
    except OSError as error:
        raise CallslipError(f"{out} cannot be written ({error})", "Check the path and the free space.") from None
    return Job.open(out)


def _write(draft: Path, stream: CorpusStream, retriever: Any, shard_rows: int, given: np.ndarray | None) -> None:
    for folder in (SHARDS, PARTS):
        durable.system.make_folder(draft / folder)
    ids: dict[str, str] = {}
    shards = [
        _write_shard(draft / SHARDS, number, block, given, shard_rows, ids if stream.has_queries else None)
        for number, block in enumerate(_blocks(stream.documents(), shard_rows))
    ]
    if not shards:
        raise BadInput(stream.source, "the corpus is empty", remedy="Give a corpus with documents.")
    plan: dict[str, Any] = {
        "format": FORMAT,
        "name": stream.name,
        "method": retriever.method,
        "settings": to_dict(retriever.settings),
        "given": given is not None,
        "judged": None,
        "shards": shards,
    }
    rows = sum(one["rows"] for one in shards)
    if given is not None and len(given) != rows:
        raise BadInput(
            "the given vectors",
            f"{len(given):,} for {rows:,} documents",
            remedy="Give one vector per document, in order.",
        )
    queries, judgements = stream.judged(ids) if stream.has_queries else ({}, {})
    if queries:
        listed = [[query.query_id, query.text, query.history] for query in queries.values()]
        whole = json.dumps({"queries": listed, "judgements": judgements}, ensure_ascii=False)
        plan["judged"] = durable.write(draft / JUDGED, whole.encode())
    if hasattr(retriever, "new_maker"):
        plan |= _learn(draft, Job(draft, plan), retriever)
    else:
        plan |= {"encoder": encoder_print(retriever, given is not None), "maker": None, "sample": 0}
    durable.sync_folder(draft / SHARDS)
    durable.write(draft / PLAN, (json.dumps(plan, indent=1) + "\n").encode())


def _blocks(documents: Iterable[Placed], size: int) -> Iterator[list[Placed]]:
    block: list[Placed] = []
    for one in documents:
        block.append(one)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block


def _write_shard(
    folder: Path, number: int, block: list[Placed], given: np.ndarray | None, size: int, ids: dict[str, str] | None
) -> dict[str, Any]:
    """Write the files of a shard, and return its entry in the plan."""
    name = f"shard-{number:05d}"
    lines = []
    for one in block:
        d = one.document
        try:
            line = json.dumps([d.doc_id, d.title, d.text, dict(d.metadata)], ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise BadInput(one.source, f"the metadata of {d.doc_id!r} are not JSON ({error})", line=one.line) from None
        lines.append(line + "\n")
    files = {f"{name}.jsonl": durable.write(folder / f"{name}.jsonl", "".join(lines).encode())}
    if given is not None:
        part = given[number * size : number * size + len(block)]
        files[f"{name}.npy"] = durable.write(folder / f"{name}.npy", durable.array(np.ascontiguousarray(part)))
    if ids is not None:
        ids.update((one.document.doc_id, one.document.doc_id) for one in block)
    first, last = block[0], block[-1]
    place = f"{first.source}, lines {first.line} to {last.line}" if first.line else first.source
    return {"rows": len(block), "place": place, "files": files}


def _learn(draft: Path, job: Job, retriever: TiedResidual) -> dict[str, Any]:
    """Learn the codebooks from a sample, and return the fingerprints of encoder and maker. The sample and the draws
    are those of a fit in one piece, so the codebooks are its, too."""
    from safetensors.numpy import save

    from callslip.methods.tied_residual import codebooks

    retriever.texts.use_cache = False
    fingerprint = encoder_print(retriever, job.given)
    dim = job.vectors(job.shards[0]).shape[1] if job.given else retriever.texts.encoder.dim
    retriever.maker = maker = retriever.new_maker(job.rows, dim)
    wanted = maker.sample(job.rows)
    found = []
    for shard in job.shards:
        rows = wanted[np.searchsorted(wanted, shard.first) : np.searchsorted(wanted, shard.first + shard.rows)]
        if len(rows):
            documents = job.documents(shard)
            some = [documents[row - shard.first] for row in rows.tolist()]
            found.append(encoded(job, retriever, shard, some, rows - shard.first))
    vectors = np.concatenate([one for one, _ in found])
    maker.learn(vectors, job.rows)
    segments = Segments.joined([one for _, one in found])
    of_segments = None if job.given else retriever.new_segment_maker(maker.assign(vectors), segments)
    entry = durable.write(draft / CODEBOOKS, save(codebooks(maker, of_segments)))
    return {"encoder": fingerprint, "maker": entry, "sample": len(wanted), "dim": dim}


def encoded(
    job: Job, retriever: Any, shard: Shard, documents: list[Document], rows: np.ndarray | None = None
) -> tuple[np.ndarray, Segments]:
    """Unit vectors of documents of a shard, float32: the given ones, or the encoder's; and their segments. `rows` are
    those of the documents in the shard; None means all."""
    if not job.given:
        most = getattr(retriever.settings, "segments", 0)
        return retriever.texts.segments(documents, most, "encoding documents")
    from callslip.encoders.given import GivenVectors

    vectors = job.vectors(shard)
    vectors = vectors if rows is None else vectors[rows]
    found = GivenVectors([document.doc_id for document in documents], vectors, shard.place).vectors
    return found, Segments.none(len(found), found.shape[1])


def _open_vectors(path: Path) -> np.ndarray:
    """A .npy file of vectors in the order of the documents, mapped."""
    remedy = "Give a .npy array [rows, dim] in the order of the documents."
    if path.suffix != ".npy" or not path.is_file():
        raise BadInput(path, "is not a .npy file", remedy=remedy)
    with suppress(ValueError, OSError, EOFError):
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
        if vectors.ndim == 2 and vectors.dtype.kind == "f" and math.prod(vectors.shape):
            return vectors
    raise BadInput(path, "is not an array [rows, dim] of floating-point numbers", remedy=remedy)
