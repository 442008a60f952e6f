"""Encoders: texts in, L2-normalised float32 vectors out.

`load_encoder` takes a spec (`minilm`, `granite`, `scratch`, a folder, a name on the hub) and returns an `Encoder`. The
encoder's `fingerprint` covers everything that a vector depends on, so that cached vectors of different encoders are
never mixed. torch is imported only by the encoders that run on it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

import callslip.encoders.cold_start as cold_start  # a plain import would ask the package's lazy names first
from callslip.encoders.given import GIVEN, Given
from callslip.encoders.pretrained import Checkpoint, Kind, Prompts, open_checkpoint
from callslip.encoders.scratch import DEFAULTS as SCRATCH
from callslip.encoders.scratch import HashedWords, scratch_settings
from callslip.encoders.segments import Segments, segment
from callslip.errors import BadSetting, CallslipError, UnknownName, Unsupported
from callslip.runtime import plugins
from callslip.runtime.process import one_thread
from callslip.runtime.progress import counting
from callslip.settings import joined_spec, split_spec

if TYPE_CHECKING:
    from callslip.corpus.documents import Document, Query

BACKENDS = ("auto", "torch", "onnx")

OURS = ("bge-small", "granite", "minilm")
"""Encoders with a short name; no plugin takes their place."""
FLOAT = frozenset({"granite"})
"""Encoders that "auto" keeps in float32: int8 costs granite 0.006 nDCG@10 on part of SciFact, and MiniLM nothing."""
BATCH = 32
"""Most texts of a batch."""
WINDOW = 8192
"""Number of texts that are tokenised and sorted together: many enough for little padding, few enough for memory."""
CHARACTERS_PER_TOKEN = 100
"""Texts are truncated to this many characters per token before tokenisation, so that megabytes are not tokenised in
vain."""

_SURROGATES = re.compile("[\ud800-\udfff]")


OPTIONS = ("max_length", "dim", "query_prompt", "document_prompt")
"""What may follow an encoder's name: `minilm:max_length=128,dim=256`."""


@dataclass(frozen=True)
class EncoderSpec:
    """An encoder as the setting `encoder` names it."""

    name: str
    """The name alone; of the scratch encoder and of a plugin, with the options that are its own."""
    max_length: int | None = None
    """Maximum number of tokens; None is the encoder's own limit."""
    dim: int | None = None
    """Numbers kept of each vector, from the first (Matryoshka); None keeps all."""
    query_prompt: str | None = None
    """Text before each query; None is the checkpoint's own prompt, "" is none."""
    document_prompt: str | None = None

    @classmethod
    def parse(cls, spec: str) -> Self:
        """`NAME` or `NAME:max_length=128,dim=256,query_prompt=query: ,document_prompt=passage: `."""
        base = spec.partition(":")[0]
        if base == "scratch":
            name, given = split_spec(spec, (*OPTIONS, *(key for key in SCRATCH if key not in OPTIONS)))
            name = joined_spec(name, {key: given.pop(key, None) for key in SCRATCH})
        elif base != spec and base not in OURS and base in plugins.plugins(plugins.ENCODERS):
            name, given = split_spec(spec, OPTIONS[2:])
        else:
            name, given = split_spec(spec, OPTIONS)
            if stray := re.search(r":(\w+)=", name):
                raise UnknownName("option of an encoder", stray[1], OPTIONS)
        numbers = {key: _whole(key, given.get(key), least) for key, least in (("max_length", 3), ("dim", 1))}
        return cls(name, **numbers, **{key: given.get(key) for key in OPTIONS[2:]})  # type: ignore[arg-type]

    @property
    def is_scratch(self) -> bool:
        return self.name.partition(":")[0] == "scratch"

    @property
    def plugin(self) -> plugins.Plugin | None:
        """The plugin that brings the encoder, if it is another package's."""
        return None if self.name in OURS else plugins.plugins(plugins.ENCODERS).get(self.name.partition(":")[0])

    def prompts(self, own: Prompts) -> Prompts:
        """A checkpoint's prompts, replaced by those of the spec."""
        query, document = self.query_prompt, self.document_prompt
        return Prompts(own.query if query is None else query, own.document if document is None else document)


def _whole(key: str, value: str | None, least: int) -> int | None:
    if value is None:
        return None
    if not value.strip().isdecimal() or int(value) < least:
        raise BadSetting(
            f"the encoder's {key} is {value!r}",
            f"Give a whole number, {least} or more. Options of an encoder: {', '.join(OPTIONS)}.",
        )
    return int(value)


class Runner(Protocol):
    """Runs one padded batch: ids and mask, int64 [b, t], to unnormalised vectors [b, dim]."""

    precision: str
    """Numerical precision, as part of the fingerprint."""
    batch_tokens: int
    """Maximum number of tokens per call, padding included; a single text may exceed it."""

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray: ...

    def with_states(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same vectors, and the states of all tokens, [b, t, d]."""
        ...


class Encoder(ABC):
    """Texts to L2-normalised vectors."""

    name: str
    dim: int
    max_length: int
    """Maximum number of tokens; longer texts are truncated."""
    fingerprint: str
    """Identifies weights, pooling, length and precision: equal fingerprints give equal vectors."""
    backend: str = "none"
    worth_caching: bool = True
    prompts: Prompts = Prompts()
    """What is written before queries and documents."""
    has_segments: bool = False
    """Whether `segmented` gives segments of texts, see `callslip.encoders.segments`."""

    def prompted(self, texts: Sequence[str], kind: Kind) -> Sequence[str]:
        """Texts with the prompt of their kind before them. The cache's keys are made of these, so that it never takes
        the vector of a query for that of a document, or one prompt's for another's."""
        prompt = self.prompts.before(kind)
        return [prompt + text for text in texts] if prompt else texts

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "plain",
        batch_size: int = BATCH,
        progress: str | Callable[[int], Any] | None = None,
    ) -> np.ndarray:
        """Vectors float32 [n, dim], row i for text i. `progress` describes the progress bar, or is called with the
        number of texts of each batch; None shows no bar.

        `kind` says whose prompt the encoder wants before each text: a query's, a document's, or none.
        """
        if isinstance(texts, str):
            raise BadSetting("encode() takes a list of texts, not one string", "Write encode([text]).")
        if batch_size < 1:
            raise BadSetting(f"batch_size is {batch_size}", "Give 1 or more.")
        texts = self.prompted(texts, kind)
        vectors = np.empty((len(texts), self.dim), np.float32)
        with nullcontext(lambda rows: None) if progress is None else counting(progress, len(texts)) as count:
            for rows, found in self._batches(texts, batch_size):
                vectors[rows] = found
                count(len(rows))
        return self._normalised(vectors)

    def segmented(
        self, texts: Sequence[str], most: int, *, kind: Kind = "plain", progress: Callable[[int], Any] | None = None
    ) -> tuple[np.ndarray, Segments]:
        """Vectors as of `encode`, and at most `most` segments of each text, of the same pass."""
        raise Unsupported(f"the encoder {self.name!r} gives texts one vector each", "Use one that pools by the mean.")

    def _normalised(self, vectors: np.ndarray) -> np.ndarray:
        if not np.isfinite(vectors).all():
            raise CallslipError(
                f"the encoder {self.name!r} returned NaN or infinity", "Its weights are corrupt: use another encoder."
            )
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    @abstractmethod
    def _batches(self, texts: Sequence[str], batch_size: int) -> Iterator[tuple[list[int], np.ndarray]]:
        """Batches of rows with their unnormalised vectors; every row occurs once, in any order."""

    def __repr__(self) -> str:
        return f"Encoder({self.name!r}, dim={self.dim}, max_length={self.max_length}, backend={self.backend!r})"


class TransformerEncoder(Encoder):
    """A transformer checkpoint on a runner (torch, or an exported graph)."""

    def __init__(
        self, checkpoint: Checkpoint, runner: Runner, max_length: int, backend: str, dim: int | None = None
    ) -> None:
        self.name, self.max_length, self.backend = checkpoint.name, max_length, backend
        self.dim, self.prompts = dim or checkpoint.dim, checkpoint.prompts
        self.fingerprint = (
            f"weights={checkpoint.weights[:32]} pooling={checkpoint.pooling} max_length={max_length} {runner.precision}"
        )
        if self.dim != checkpoint.dim:
            self.fingerprint += f" dim={self.dim}"
        self.has_segments = checkpoint.pooling == "mean" and not checkpoint.modules
        self.runner, self.pad_id = runner, checkpoint.pad_id
        self.tokenizer = checkpoint.tokenizer
        # Set only once: threads share the tokenizer, and changing it while another thread uses it fails.
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(max_length)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with the model's special tokens, truncated to `max_length`."""
        limit = self.max_length * CHARACTERS_PER_TOKEN
        # A lone surrogate is not valid Unicode, and the tokenizer rejects it.
        clean = [_SURROGATES.sub("\ufffd", text[:limit]) for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(clean)]

    def segmented(
        self, texts: Sequence[str], most: int, *, kind: Kind = "plain", progress: Callable[[int], Any] | None = None
    ) -> tuple[np.ndarray, Segments]:
        if not self.has_segments:
            return super().segmented(texts, most, kind=kind)
        texts = self.prompted(texts, kind)
        vectors = np.empty((len(texts), self.dim), np.float32)
        parts: list[np.ndarray] = [np.zeros(0)] * len(texts)
        for rows, ids, mask in self._padded_batches(texts, BATCH):
            found, states = self.runner.with_states(ids, mask)
            vectors[rows] = found[:, : self.dim]
            for row, own, length in zip(rows, states, mask.sum(axis=1).tolist(), strict=True):
                parts[row] = segment(own[:length, : self.dim], most)
            if progress is not None:
                progress(len(rows))
        return self._normalised(vectors), Segments.of(parts, self.dim)

    def _batches(self, texts: Sequence[str], batch_size: int) -> Iterator[tuple[list[int], np.ndarray]]:
        for rows, ids, mask in self._padded_batches(texts, batch_size):
            yield rows, self.runner(ids, mask)[:, : self.dim]

    def _padded_batches(
        self, texts: Sequence[str], batch_size: int
    ) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
        """Batches of rows with their ids and mask."""
        for start in range(0, len(texts), WINDOW):
            ids = self.tokens(texts[start : start + WINDOW])
            for rows in batches_by_length([len(one) for one in ids], batch_size, self.runner.batch_tokens):
                yield [start + row for row in rows], *padded([ids[row] for row in rows], self.pad_id)


class ScratchEncoder(Encoder):
    """Hashed words, see `scratch.py`."""

    backend = "numpy"
    worth_caching = False

    def __init__(self, spec: str, max_length: int) -> None:
        settings = scratch_settings(spec)
        self.name, self.dim, self.max_length = spec, settings["dim"], max_length
        self.words = HashedWords(**settings)
        listed = " ".join(f"{key}={value}" for key, value in settings.items())
        self.fingerprint = f"scratch {listed} max_length={max_length}"

    def _batches(self, texts: Sequence[str], batch_size: int) -> Iterator[tuple[list[int], np.ndarray]]:
        for start in range(0, len(texts), batch_size):
            part = texts[start : start + batch_size]
            yield list(range(start, start + len(part))), self.words.vectors(part, self.max_length)


def batches_by_length(lengths: Sequence[int], batch_size: int, batch_tokens: int) -> Iterator[list[int]]:
    """Rows in batches of similar length, longest first: at most `batch_size` rows and, once padded to the
    longest of them, at most `batch_tokens` tokens (a row longer than that has a batch of its own)."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    start = 0
    while start < len(order):
        size = max(1, min(batch_size, batch_tokens // max(1, lengths[order[start]])))
        yield order[start : start + size]
        start += size


def padded(ids: Sequence[Sequence[int]], pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded ids, and the mask of the tokens that are not padding; both int64 [b, t]."""
    longest = max(1, max(len(one) for one in ids))
    out = np.full((len(ids), longest), pad_id, np.int64)
    mask = np.zeros((len(ids), longest), np.int64)
    for row, one in enumerate(ids):
        out[row, : len(one)] = one
        mask[row, : len(one)] = 1
    # An empty text has no tokens at all if the tokenizer adds no special ones: use a padding token.
    mask[:, 0] = 1
    return out, mask


class TorchRunner:
    """The model in float32 on one device."""

    precision = "fp32"

    def __init__(self, checkpoint: Checkpoint, device: Any) -> None:
        from callslip.encoders.pooling import PooledModel

        self.device = device
        model = PooledModel(checkpoint.load_model(), checkpoint.pooling, checkpoint.load_modules())
        self.model = model.to(device).eval().requires_grad_(False)
        # A large batch overflows a CPU's caches; a GPU needs it.
        self.batch_tokens = 2048 if device.type == "cpu" else 65_536

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return self.with_states(ids, mask)[0]

    def with_states(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        import torch

        # One thread is as fast as two for a short batch, and unaffected by other processes.
        few = one_thread() if ids.size <= cold_start.SHORT and self.device.type == "cpu" else nullcontext()
        with torch.inference_mode(), few:
            tokens, kept = torch.from_numpy(ids).to(self.device), torch.from_numpy(mask).to(self.device)
            states = self.model.states(tokens, kept)
            return self.model.pooled(states, kept).float().cpu().numpy(), states.float().cpu().numpy()


def load_encoder(
    spec: str = "minilm",
    *,
    device: Any = None,
    backend: str = "auto",
) -> Encoder:
    """Load an encoder by `spec`: `minilm` (embedded), `granite`, `bge-small`, `scratch[:dim=64,…]`, a folder, or a
    hub name; with the options of `EncoderSpec` after a colon.

    `backend` "torch" computes in float32; "onnx" runs an int8 graph on the CPU, exported on first use and cached in the
    cache folder; "auto" uses the graph if onnxruntime is installed and the device is a CPU.
    """
    if backend not in BACKENDS:
        raise UnknownName("encoder backend", backend, BACKENDS)
    asked = EncoderSpec.parse(spec)
    if asked.is_scratch:
        encoder: Encoder = ScratchEncoder(asked.name, asked.max_length or 256)
    elif brought := asked.plugin:
        encoder = brought.load()(asked.name)
        if not isinstance(encoder, Encoder):
            raise BadSetting(
                f"the plugin {brought.name!r} of {brought.package} gives a {type(encoder).__name__}",
                "A plugin of callslip.encoders takes the encoder's name and returns a callslip.encoders.Encoder.",
            )
    else:
        encoder = _load_transformer(asked, device, backend)
    encoder.prompts = asked.prompts(encoder.prompts)
    return encoder


def _load_transformer(asked: EncoderSpec, device: Any, backend: str) -> TransformerEncoder:
    checkpoint = checkpoint_of(asked)
    length = asked.max_length or checkpoint.default_length
    if length > checkpoint.longest:
        remedy = f"The encoder {asked.name!r} reads at most {checkpoint.longest} tokens."
        raise BadSetting(f"the encoder's max_length is {length}", remedy)
    if asked.dim is not None and asked.dim > checkpoint.dim:
        problem = f"the encoder {asked.name!r} has vectors of {checkpoint.dim} numbers, and dim is {asked.dim}"
        raise BadSetting(problem, f"Use {checkpoint.dim} or fewer.")
    runner, chosen = _choose_runner(checkpoint, device, backend)
    return TransformerEncoder(checkpoint, runner, length, chosen, asked.dim)


def encoder_dim(spec: str) -> int:
    """The width of an encoder's vectors, without loading its weights unless it is a plugin."""
    asked = EncoderSpec.parse(spec)
    if asked.is_scratch:
        return int(scratch_settings(asked.name)["dim"])
    if asked.plugin is not None:
        return load_encoder(spec).dim
    return asked.dim or checkpoint_of(asked).dim


def state_dim(spec: str) -> int:
    """The width of the states of a transformer's tokens, without loading its weights."""
    return checkpoint_of(EncoderSpec.parse(spec)).state_dim


def checkpoint_of(asked: EncoderSpec) -> Checkpoint:
    """The checkpoint of a transformer. A bare word that is neither one of our encoders nor a folder is rejected: it is
    a typo, not a hub name."""
    from pathlib import Path

    name = asked.name
    if name not in {*OURS, GIVEN} and not Path(name).is_dir() and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        brought = plugins.plugins(plugins.ENCODERS)
        known = [*OURS, "scratch", *brought, "the path of a folder", "OWNER/NAME on the hub"]
        raise UnknownName("encoder", name, known)
    return open_checkpoint(name)


def _choose_runner(checkpoint: Checkpoint, device: Any, backend: str) -> tuple[Runner, str]:
    import callslip.encoders.int8 as int8  # a plain import would ask the package's lazy names first

    if backend == "onnx" or (backend == "auto" and checkpoint.name not in FLOAT and int8.suits(device)):
        try:
            return int8.open_runner(checkpoint), "onnx"
        except int8.ExportFailed as error:
            if backend == "onnx":
                raise
            import warnings

            warnings.warn(f"{error.problem}; running it in torch instead", stacklevel=3)

    def load() -> TorchRunner:
        from callslip.runtime.device import best_device

        return TorchRunner(checkpoint, best_device(None if device is None else str(device)))

    folder = checkpoint.folder
    # A device that was asked for must be there at once; otherwise torch can wait for more than a query.
    if device is None and folder is not None and cold_start.suits(folder, checkpoint.pooling, checkpoint.modules):
        return cold_start.ColdStart(folder, checkpoint.pooling, load), "torch"
    return load(), "torch"


class EncoderChoice(Protocol):
    """The settings of an encoder."""

    @property
    def encoder(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def device(self) -> str | None: ...


class TextVectors:
    """Vectors of queries, encoded directly, and of documents and training texts, through the cache."""

    def __init__(self, settings: EncoderChoice) -> None:
        self.settings = settings
        self.given = Given()
        self.use_cache = True
        """Whether vectors come from the cache. What it holds decides which texts are encoded together, and so the last
        bits of their vectors: whoever needs the same bytes from the same texts does without."""
        self._encoder: Encoder | None = None
        self._prompts: Prompts | None = None

    @property
    def encoder(self) -> Encoder:
        if self._encoder is None:
            s = self.settings
            self._encoder = load_encoder(s.encoder, device=s.device, backend=s.backend)
        return self._encoder

    @property
    def dim(self) -> int:
        """The width of the vectors of documents."""
        if self.given.documents is not None:
            return self.given.documents.dim
        return encoder_dim(self.settings.encoder)

    def queries(self, queries: Sequence[Query]) -> np.ndarray:
        """Unit vectors of queries, [n, dim]: given ones by id, others by their texts."""
        held = self.given.queries
        if held is None:
            return self.encode([query.text for query in queries])
        others = [query for query in queries if query.query_id not in held]
        if others and self.given.encode is None and self.settings.encoder == GIVEN:
            raise Unsupported(
                f"the query {others[0].query_id!r} has no vector, and the index no encoder for its text",
                "Give vectors of all queries: --query-vectors FILE (query_vectors=).",
            )
        encoded = dict(zip((q.query_id for q in others), self.encode([q.text for q in others]) if others else ()))
        return np.stack([encoded[q.query_id] if q.query_id in encoded else held.of([q.query_id])[0] for q in queries])

    def encode(self, texts: list[str]) -> np.ndarray:
        """Unit vectors of the texts of queries, [n, dim], without the cache."""
        if self.given.encode is not None:
            return self.given.encoded(texts, None if self.given.documents is None else self.given.documents.dim)
        return self.encoder.encode(texts, kind="query")

    def documents(self, documents: Iterable[Document], progress: str) -> np.ndarray:
        """Unit vectors of documents, [n, dim]: given ones by doc_id, or else of their texts."""
        some = list(documents)
        held = self.given.documents
        if held is not None and all(document.doc_id in held for document in some):
            return held.of([document.doc_id for document in some])
        if self.settings.encoder == GIVEN and self.given.encode is None:
            without = next(document.doc_id for document in some if held is None or document.doc_id not in held)
            raise Unsupported(
                f"the document {without!r} has no vector, and the index no encoder for its text",
                "Give vectors of all documents: --vectors FILE (vectors=).",
            )
        return self.cached([document.content for document in some], progress, "document")

    def segments(self, documents: Iterable[Document], most: int, progress: str) -> tuple[np.ndarray, Segments]:
        """Unit vectors of documents, and at most `most` segments of each. There are none where vectors are given, or
        where the encoder has none."""
        some = list(documents)
        if not most or not self.segmentable:  # given ones are found by doc_id
            vectors = self.documents(some, progress)
            return vectors, Segments.none(len(some), vectors.shape[1])
        return self.segmented([document.content for document in some], most, progress)

    def segmented(self, texts: Sequence[str], most: int, progress: str) -> tuple[np.ndarray, Segments]:
        """Unit vectors of the texts of documents, and at most `most` segments of each, from the encoder; cached."""
        from callslip.encoders.vector_cache import cached_segments

        if not most:
            vectors = self.cached(texts, progress, "document")
            return vectors, Segments.none(len(texts), vectors.shape[1])
        if not self.use_cache:
            return self.encoder.segmented(texts, most, kind="document")
        return cached_segments(self.encoder, self.encoder.prompted(texts, "document"), most, progress=progress)

    @property
    def segmentable(self) -> bool:
        """Whether documents that are encoded here may have segments."""
        return self.given.documents is None and self.settings.encoder != GIVEN and self.encoder.has_segments

    def training(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors of the texts that stand for queries in training, [n, dim]."""
        held = self.given.queries
        if self.given.encode is not None and texts:
            return self.given.encoded(list(texts))
        if self.settings.encoder != GIVEN:
            return self.cached(texts, "encoding training texts", "query")
        if not texts and self.given.documents is not None:
            return np.zeros((0, self.given.documents.dim), np.float32)
        missing = [text for text in texts if text not in self.given.by_text]
        if held is None or missing:
            raise Unsupported(
                f"the training text {missing[0][:60] if missing else ''!r} has no vector, and the index no encoder",
                "Give vectors of the train queries, or a callable; or do not train on them: --set query_repeat=0, or"
                " memory=false for tied-residual.",
            )
        return held.of([self.given.by_text[text] for text in texts])

    def cached(self, texts: Sequence[str], progress: str, kind: Kind) -> np.ndarray:
        """Unit vectors of texts of one kind, [n, dim]; cached, so that each text is encoded only once."""
        from callslip.encoders.vector_cache import cached_encode

        if not self.use_cache:
            return self.encoder.encode(texts, kind=kind)
        return cached_encode(self.encoder, self.encoder.prompted(texts, kind), progress=progress)

    def prompted(self, texts: list[str], kind: Kind) -> Sequence[str]:
        """Texts with the encoder's prompt before them, for a model that reads them itself. The prompts are read without
        the weights, which such a model has of its own."""
        asked = EncoderSpec.parse(self.settings.encoder)
        if self._encoder is not None or asked.is_scratch or asked.plugin is not None:  # no checkpoint, or loaded
            return self.encoder.prompted(texts, kind)
        if self._prompts is None:
            self._prompts = asked.prompts(checkpoint_of(asked).prompts)
        prompt = self._prompts.before(kind)
        return [prompt + text for text in texts] if prompt else texts

    def adjust(self, settings: EncoderChoice) -> None:
        """Use other settings from the next text on."""
        self.settings, self._encoder, self._prompts = settings, None, None
