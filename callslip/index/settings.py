"""Groups of settings. A method's own dataclass opts into the groups that act in it; it has no other settings."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from callslip.corpus.pseudo_queries import KINDS
from callslip.encoders.encoder import EncoderSpec
from callslip.errors import BadSetting
from callslip.settings import check_all, check_range, check_share

Ranking = Literal["bucket", "share", "sum", "union", "code"]
"""Orders of the documents whose codes were written."""


MICRO_BATCH = "micro_batch="
MEMORY_SAVERS = (f"{MICRO_BATCH}32", "activations", "autocast")
"""Values of `save_memory`; the number is an example."""


@dataclass(frozen=True)
class EncoderSettings:
    """The encoder that turns texts into vectors."""

    heading: ClassVar[str] = "Encoder"

    def __post_init__(self) -> None:
        check_all(self)

    encoder: str = "minilm"
    """Encoder: minilm (embedded), granite, bge-small, or any Hugging Face encoder by name or path; `given` if queries
    come with vectors of their own. Options follow a colon, as in `minilm:max_length=128,dim=256`: `max_length` (word
    pieces read of each text), `dim` (numbers kept of each vector, for Matryoshka encoders), `query_prompt` and
    `document_prompt` (text before each query or document, in place of the checkpoint's own prompts)."""
    backend: Literal["auto", "torch", "onnx"] = "auto"
    """How the encoder runs: torch in float32, onnx in int8 (extra `onnx`); auto uses int8 on a CPU where it is
    available."""
    device: str | None = None
    """cpu, cuda or mps; none chooses the best device available."""

    def check(self) -> None:
        EncoderSpec.parse(self.encoder)


@dataclass(frozen=True)
class TextSettings:
    """The texts that stand for queries in training."""

    heading: ClassVar[str] = "Training texts"

    def __post_init__(self) -> None:
        check_all(self)

    training_texts: tuple[str, ...] = ("title", "sentences")
    """Texts of each document to train on: the whole `document`, and as pseudo-queries its title, lead, sentences,
    spans or keywords; empty for none."""
    doc2query: str | None = None
    """Hugging Face sequence-to-sequence checkpoint (name or path) that generates further pseudo-queries. Options follow
    a colon, as in `NAME:count=10,sampling=nucleus`: `count` (queries per document, 5) and `sampling`: `top-k` (the 10
    likeliest tokens; the default) or `nucleus` (p = 0.8 at temperature 0.8)."""
    query_repeat: int | None = 1
    """Number of times each judged query of the train split is seen per epoch; 0 trains on none. None repeats judged
    queries until they are about a third as many as the pseudo-queries."""

    def check(self) -> None:
        check_range(self, query_repeat=0)
        unknown = [kind for kind in self.training_texts if kind not in KINDS]
        if unknown:
            raise BadSetting(f"setting 'training_texts' has {unknown[0]!r}", f"Use some of {', '.join(KINDS)}.")
        if self.doc2query is not None:
            from callslip.corpus.doc2query import QueryGenerator

            QueryGenerator.parse(self.doc2query)


@dataclass(frozen=True)
class DecoderSettings:
    """The decoder over the encoder's vectors."""

    heading: ClassVar[str] = "Decoder"

    def __post_init__(self) -> None:
        check_all(self)

    decoder_width: int = 256
    """Width of the decoder."""
    decoder_layers: int = 2
    """Number of decoder layers."""
    decoder_heads: int = 4
    """Number of attention heads of the decoder."""
    dropout: float = 0.1
    """Dropout rate of the decoder."""
    noise: float = 0.5
    """Norm of the Gaussian noise added to each unit vector in training, which teaches the decoder the neighbourhood
    of a text; 0 adds none."""

    def check(self) -> None:
        check_range(self, decoder_width=1, decoder_layers=1, decoder_heads=1, noise=0)
        check_share(self, "dropout", below=True)


@dataclass(frozen=True)
class ScheduleSettings:
    """Training steps."""

    heading: ClassVar[str] = "Schedule"

    def __post_init__(self) -> None:
        check_all(self)

    epochs: int = 20
    """Number of training epochs."""
    batch_size: int = 512
    """Training examples per step."""
    learning_rate: float = 2e-3
    """Peak learning rate of AdamW."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Learning rate after the warm-up: falls to zero along a `cosine` or a line (`linear`), or stays `constant`."""
    warmup: float = 0.05
    """Share of a phase's steps in which the learning rate rises to its peak."""
    seed: int = 0
    """Random seed of codes, weights and batches."""

    def check(self) -> None:
        check_range(self, epochs=0, batch_size=1, learning_rate=0, weight_decay=0, seed=0)
        check_share(self, "warmup")


RERANKED = 150
"""Number of items that a reranker reorders."""


@dataclass(frozen=True)
class HistorySettings:
    """How histories of items are encoded."""

    heading: ClassVar[str] = "Histories (logs of users and items)"

    def __post_init__(self) -> None:
        check_all(self)

    items: Literal["id", "text", "both"] = "both"
    """Representation of the items of a history: a learned embedding (`id`), the vector of the item's text (`text`), or
    both. New items have no embedding: with `id` they can be found, but are skipped in histories."""
    history_length: int = 20
    """Maximum number of items read of a history: the most recent ones."""
    history_width: int = 96
    """Width of the vectors of items and histories."""
    history_layers: int = 2
    """Number of layers of the history encoder."""
    history_heads: int = 2
    """Number of attention heads of the history encoder."""
    history_dropout: float = 0.3
    """Dropout rate of the history encoder."""
    ranker_negatives: int = 1024
    """Number of random negatives shared by a batch when the item ranking is trained; 0 uses all items."""
    start: Literal["none", "counts"] = "counts"
    """Where scores begin: at what `counts` say (sequential rules, their factors and the items' texts), to which the
    trained model is added as far as held-out training items show that it helps; or at nothing (`none`), as in the
    papers. With `epochs=0` the index ranks as the counts do."""
    rerank: int = RERANKED
    """With the start at counts: number of items, the first ones of the counts, that a small network reorders. It is
    trained on the last training items of the users, and left out unless it finds more of held-out ones; 0 leaves it
    out."""
    diversity: float = 0.0
    """Diversity of a list of hits, from 0 (the order of the scores) to below 1: weight of the dissimilarity to the hits
    before against that of the score (maximal marginal relevance)."""
    item_decay: float = 0.01
    """Weight decay of the item vectors. They are most of the model and overfit individual users; in long trainings
    values up to 1 help."""

    def check(self) -> None:
        check_range(self, history_length=1, history_width=1, history_layers=0, history_heads=1, ranker_negatives=0)
        check_range(self, item_decay=0, rerank=0)
        check_share(self, "history_dropout", below=True)
        check_share(self, "diversity", below=True)

    def decay_of(self, parameter: str, others: float) -> float:
        """The weight decay of a parameter, by its name: `item_decay` for item vectors, otherwise `others`."""
        return self.item_decay if "items" in parameter.split(".") else others


@dataclass(frozen=True)
class HistoryQuerySettings(HistorySettings):
    """Queries that may be histories of items."""

    heading: ClassVar[str] = HistorySettings.heading

    queries: Literal["auto", "text", "set", "sequence"] = "auto"
    """Kind of queries: `text`; histories of items read as a `set` (general recommendation) or as a `sequence`
    (next-item recommendation). auto reads sequences if the train queries are histories, and texts otherwise."""
    history_memory: Literal["vector", "states"] = "vector"
    """What the decoder attends to: the one `vector` of a history (all positions of a sequence are then trained at once,
    several times as fast), or the `states` of all its items."""
    ranker_weight: float = 1.0
    """With histories: weight of the item ranking loss beside the loss of the codes; 0 leaves it out."""
    history_weight: float = 1.0
    """With histories: weight of the inner product of history and item, in units of log-probability, under
    `ranking=sum`."""
    start: Literal["none", "counts", "tied"] = "counts"  # type: ignore[assignment]
    """Where scores begin, to which the trained model is added as far as held-out training items or queries show that it
    helps. Histories begin at what `counts` say (sequential rules, their factors and the items' texts), texts at nothing
    or, with `tied`, at the similarity of the query and the document as its code and 64 bytes beside it reconstruct it;
    no vectors are stored then, and `sum` and `union` rank by the whole score. `none` is as in the papers. With
    `epochs=0` the index ranks as it begins."""

    def check(self) -> None:
        check_range(self, ranker_weight=0)
        if self.queries in ("set", "sequence") and self.start == "tied":
            raise BadSetting(f"queries={self.queries} with start=tied, which is for texts", "Use start=counts.")
        if self.queries in ("set", "sequence") and getattr(self, "train_encoder", "none") != "none":
            raise BadSetting(f"queries={self.queries} with train_encoder, which is for texts", "Leave one out.")
        if self.queries in ("set", "sequence") and getattr(self, "seq2seq", None) is not None:
            raise BadSetting(f"queries={self.queries} with seq2seq, which reads texts", "Leave one out.")


@dataclass(frozen=True)
class T5Settings:
    """An encoder that is fine-tuned together with the decoder, or a T5 in place of both."""

    heading: ClassVar[str] = "Fine-tuned encoder or T5"

    def __post_init__(self) -> None:
        check_all(self)

    train_encoder: Literal["none", "top", "all"] = "none"
    """Encoder layers to fine-tune: `none` (every vector is computed once and cached), the `top` two, or `all`. The
    decoder reads a fine-tuned copy; similarity uses the frozen encoder. Much slower; a GPU is recommended."""
    encoder_learning_rate: float = 2e-5
    """Peak learning rate of the fine-tuned encoder layers."""
    encoder_memory: Literal["vector", "states"] = "vector"
    """What the decoder attends to with a fine-tuned encoder: the one `vector` of a text, or the `states` of all its
    tokens."""
    seq2seq: str | None = None
    """T5 checkpoint, fine-tuned as a whole: flan-t5-small (extra `t5`), a name on the hub or a folder; or, in some
    methods, the folder of a decoder-only language model. It reads the query's text and writes its code, in place of the
    small decoder over the encoder's vector. Needs a learning rate of about 5e-4 and batches of about 32; a GPU is
    recommended."""
    seq2seq_length: int = 64
    """Maximum number of word pieces that a fine-tuned encoder or T5 reads of each text."""
    save_memory: tuple[str, ...] = ()
    """Ways to need less memory in training. `micro_batch=32` reads at most 32 texts in one forward and backward pass;
    gradients are those of the whole batch: they are accumulated or, where the loss compares the texts of a batch,
    computed by GradCache, which encodes each text twice. `activations` is activation checkpointing: layers are computed
    again in the backward pass. `autocast` is bfloat16 on a GPU; ignored on a CPU."""

    @property
    def micro_batch(self) -> int | None:
        """Maximum number of texts in one forward and backward pass; None is the whole batch."""
        sizes = [way.removeprefix(MICRO_BATCH) for way in self.save_memory if way.startswith(MICRO_BATCH)]
        return int(sizes[-1]) if sizes else None

    def check(self) -> None:
        check_range(self, encoder_learning_rate=0, seq2seq_length=3)
        for way in self.save_memory:
            if way not in MEMORY_SAVERS[1:] and not re.fullmatch(rf"{MICRO_BATCH}[1-9]\d*", way):
                raise BadSetting(f"setting 'save_memory' has {way!r}", f"Use some of {', '.join(MEMORY_SAVERS)}.")
        if getattr(self, "start", None) == "tied" and (self.seq2seq is not None or self.train_encoder != "none"):
            raise BadSetting(
                "start=tied with a model that reads the text itself: it begins at the vector of a frozen encoder",
                "Leave out start=tied, or seq2seq and train_encoder.",
            )
        if self.seq2seq is not None and self.train_encoder != "none":
            raise BadSetting(
                "setting 'train_encoder': with seq2seq the decoder reads T5's own encoder", "Leave it out."
            )


@dataclass(frozen=True)
class TiedStartSettings:
    """Where the scores of texts begin."""

    heading: ClassVar[str] = "Search"

    def __post_init__(self) -> None:
        check_all(self)

    start: Literal["none", "tied"] = "none"
    """Where scores begin: at nothing, or, with `tied`, at the similarity of the query and the document as its code and
    64 bytes beside it reconstruct it, to which the trained model is added as far as held-out training queries show that
    it helps. No vectors are stored then, and `sum` and `union` rank by the whole score."""


@dataclass(frozen=True)
class SavedCodesSettings:
    """Codes of another index."""

    heading: ClassVar[str] = "Codes of another index"

    def __post_init__(self) -> None:
        check_all(self)

    codes_from: str | None = None
    """Saved index or file of codes (.csv, .parquet, .json, .npy) whose codes are used instead of the method's own; it
    must hold every document of the corpus."""


@dataclass(frozen=True)
class GenerativeSettings(EncoderSettings, TextSettings, DecoderSettings, ScheduleSettings):
    """What every generative method has: an encoder, training texts, a decoder, a schedule, and a search over codes."""

    heading: ClassVar[str] = "Search"

    training_texts: tuple[str, ...] = ("document", "title", "sentences")
    """Texts of each document to train on: the whole `document`, and as pseudo-queries its title, lead, sentences,
    spans or keywords; empty for none."""
    beam: int = 50
    """Beam size; widened automatically when k hits need more codes."""
    decoding: Literal["beam", "exact"] = "beam"
    """`beam` search, or `exact`: the best codes of all, without pruning. Exact search is slower the less certain the
    model is; use it on small corpora, and to measure what a beam loses."""
    ranking: Ranking = "sum"
    """Order of hits: `bucket` keeps the model's order of codes and ranks by similarity inside each bucket; `share` does
    the same after dividing a code's probability among its documents, so that full buckets are not preferred; `sum` adds
    the code's log-probability and `similarity_weight` times the similarity; `union` ranks all documents of the beam's
    buckets by similarity alone; `code` keeps the model's order of codes, with the documents of a bucket in an arbitrary
    but fixed order. With `code`, a model that reads texts itself needs no vectors: neither the corpus nor a query is
    encoded by the frozen encoder."""
    similarity_weight: float = 60.0
    """Weight of the similarity, in units of log-probability, under `ranking=sum`."""
    bucket_limit: int | None = None
    """Maximum number of documents of one bucket that precede documents of other buckets; none for no limit. The rest of
    the bucket follows last, so that there are still k hits."""

    def check(self) -> None:
        check_range(self, beam=1, bucket_limit=1)
        if not math.isfinite(self.similarity_weight):
            raise BadSetting(f"setting 'similarity_weight' is {self.similarity_weight}", "Use a finite number.")
