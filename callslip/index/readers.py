"""Readers: what a generative model reads of a query, and how its decoder is joined to what reads it.

`VectorReader` gives the decoder the vector of a frozen encoder, `TunedReader` fine-tunes the encoder with the decoder,
`T5Reader` is a T5 that reads the text itself, and `HistoryReader` reads histories of items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from callslip.corpus.documents import Corpus, Document, Pair, Query
from callslip.corpus.logs import has_histories, has_texts, numbers_of, training_examples, training_sequences
from callslip.corpus.on_disk import PairTable, TokenTable
from callslip.corpus.sequences import Sequences
from callslip.errors import BadSetting, Unsupported
from callslip.index import model_files
from callslip.index.counts import Counts
from callslip.index.item_words import word_hashes, words_of
from callslip.index.settings import HistoryQuerySettings, T5Settings
from callslip.index.start import DEPTH, HeldOut, Start, count_settings, joined
from callslip.index.tied_start import TiedStart
from callslip.search.candidates import candidates
from callslip.storage.rows import Parts
from callslip.training.batches import Examples, HistoryExamples, Inputs, TextExamples

if TYPE_CHECKING:
    from torch import Tensor

    from callslip.decoders.histories import HistoryEncoder, HistoryShape, HistoryWriter, ItemTable, Read
    from callslip.decoders.t5 import T5CodeWriter
    from callslip.decoders.tuned import TunedWriter
    from callslip.decoders.writer import CodeWriter
    from callslip.encoders.encoder import TextVectors
    from callslip.encoders.pretrained import Kind
    from callslip.identifiers.table import Identifiers
    from callslip.identifiers.vector_table import VectorTable
    from callslip.index.rows import Rows
    from callslip.search.beam import Beams
    from callslip.training.log import TrainingLog

T5 = "t5"
"""Folder of a saved T5."""
TOKENIZED = 4096
"""Training texts that are tokenised at once."""
MEMORY_SLOTS = 2
"""Vectors that the decoder's cross-attention reads, made from the query's one vector."""


@dataclass
class ReadQuery:
    """A query as documents are ranked for it: its vector, and the states of a decoder that ranks by them."""

    vector: np.ndarray
    states: np.ndarray | None = None
    inputs: np.ndarray | None = None
    """A history as the model reads it: item numbers, from 1, right-padded with 0."""


def decoder_shape(s: Any) -> dict[str, Any]:
    """The shape of the decoder that the settings ask for, as it is saved."""
    return {
        "width": s.decoder_width,
        "layers": s.decoder_layers,
        "heads": s.decoder_heads,
        "memory_slots": MEMORY_SLOTS,
        "dropout": s.dropout,
    }


class Builder(Protocol):
    """The method that a model is made for."""

    vectors: np.ndarray

    def writer_shape(self) -> dict[str, Any]:
        """The shape of the decoder, as it is saved."""

    def writer(self, shape: dict[str, Any]) -> CodeWriter:
        """A decoder of that shape."""

    def history_writer(self, encoder: HistoryEncoder, writer: CodeWriter) -> HistoryWriter:
        """The decoder joined to an encoder of histories."""

    def tuned_writer(self, writer: CodeWriter) -> TunedWriter:
        """The decoder joined to a fine-tuned encoder."""

    def t5_writer(self) -> tuple[type[T5CodeWriter], dict[str, Any]]:
        """The class of a T5 that writes codes, and the options of a new one."""

    def t5_model(self, writer: T5CodeWriter) -> Any:
        """The T5 joined to further parts, as its `writer`; or the T5 alone."""


class VectorReader:
    """Gives the decoder the vector of a text by a frozen encoder."""

    histories = False
    block = 2048
    """Texts per forward pass outside of training."""

    @property
    def reads_vectors(self) -> bool:
        """Whether the model reads the vectors of the frozen encoder."""
        return True

    @property
    def dim(self) -> int:
        """The width of the vectors that the encoder gives texts."""
        return self.texts.dim

    def __init__(self, settings: Any, texts: TextVectors, rows: Rows) -> None:
        self.settings, self.texts, self.rows = settings, texts, rows
        self.model: Any = None
        self.shape: dict[str, Any] = {}
        self.start: Any = None
        """Where scores begin, a `TiedStart` or the `Start` of a log; None if they begin at nothing."""
        self._searched: tuple[Any, ...] | None = None

    # The model.

    def new_model(self, builder: Builder, widths: Sequence[int], with_end: bool) -> None:
        """Make an untrained model for codes of so many tokens per level."""
        own = {"widths": [int(width) for width in widths], "with_end": with_end}
        self.shape = builder.writer_shape() | self.writer_input(builder.vectors) | own
        self.use(self.join(builder, builder.writer(self.shape)))

    def use(self, model: Any) -> None:
        """Take a model, onto the device of the settings."""
        from callslip.runtime.device import best_device

        self.model = model.to(best_device(self.settings.device))

    def writer_input(self, vectors: np.ndarray) -> dict[str, Any]:
        """What the decoder's shape says of its input."""
        return {"input_dim": vectors.shape[1]}

    def join(self, builder: Builder, writer: CodeWriter) -> Any:
        """The decoder and what reads queries for it, as one module."""
        return writer

    def save(self, folder: Path) -> None:
        if self.start is not None:
            self.start.save(folder)
        model_files.save_model(folder, self.model, self.shape)

    def load(self, folder: Path, builder: Builder) -> None:
        self.read_shape(folder)
        self.start = self.saved_start(folder, len(builder.vectors))
        model = self.join(builder, builder.writer(self.shape))
        model_files.load_weights(folder, model)
        self.use(model)
        self.model.eval()

    def read_shape(self, folder: Path) -> None:
        self.shape = model_files.read_shape(folder)

    def saved_start(self, folder: Path, count: int) -> Any:
        """Where the scores of a saved index of `count` documents begin; None if they begin at nothing."""
        return TiedStart.load(folder, count)

    def learning_share(self, parameter: str, rate: float) -> float:
        """The share of a phase's learning rate that a parameter has."""
        return 1.0

    def decay(self, parameter: str) -> float:
        """The weight decay of a parameter."""
        return self.settings.weight_decay

    # Queries and documents.

    def encode_corpus(self, corpus: Corpus) -> np.ndarray:
        """The vector of every document, [N, dim]."""
        return self.texts.documents(corpus, "encoding documents")

    def read_without_vectors(self, corpus: Corpus) -> np.ndarray:
        """Vectors of no dimensions, [N, 0], where nothing asks for the encoder's."""
        return np.zeros((len(corpus), 0), np.float32)

    def encode_new(self, documents: list[Document], dim: int) -> np.ndarray:
        """The vectors of documents that are added, [n, dim]."""
        return self.texts.documents(documents, "encoding new documents")

    def query_vectors(self, queries: list[Query]) -> np.ndarray:
        """One vector a query, for similarity."""
        return self.texts.queries(queries)

    def inputs(self, queries: list[Query], vectors: np.ndarray) -> Inputs:
        """Queries as the model reads them, given their vectors."""
        return vectors

    def query_inputs(self, queries: list[Query]) -> Inputs:
        """Queries as the model reads them."""
        return self.inputs(queries, self.query_vectors(queries))

    def text_inputs(self, texts: Sequence[str]) -> Inputs:
        """Training texts, which stand for queries, as the model reads them."""
        return self.texts.training(texts)

    def read_documents(self, documents: Iterable[Document], progress: str) -> Inputs:
        """Documents as the model reads them; they are encoded if it reads vectors."""
        return self.texts.documents(documents, progress)

    def document_inputs(self, documents: Sequence[Document], vectors: np.ndarray) -> Inputs:
        """Documents as the model reads them, given their vectors."""
        return self.inputs([Query(document.doc_id, document.content) for document in documents], vectors)

    def examples(self, corpus: Corpus, pairs: Sequence[Pair], vectors: np.ndarray, documents: bool) -> Examples:
        """The pairs to train on and, if `documents` are to be trained on, each document with itself."""
        table = pairs if isinstance(pairs, PairTable) else PairTable.of(pairs, corpus.doc_ids)
        rows = np.concatenate([table.rows, np.arange(len(corpus))]) if documents else table.rows
        inputs = self.training_inputs(table.texts, corpus if documents else (), vectors)
        return TextExamples(inputs, rows, self.settings.batch_size)

    def training_inputs(self, texts: Sequence[str], documents: Corpus | tuple[()], vectors: np.ndarray) -> Inputs:
        """Texts to train on and, after them, documents, as the model reads them."""
        found = self.texts.training(texts)
        return np.concatenate([found, vectors]) if documents else found

    def batch(self, inputs: Inputs, rows: np.ndarray | None = None) -> Any:
        """Some of the inputs as the model takes them, on its device."""
        return self.tensor(np.asarray(inputs) if rows is None else np.asarray(inputs)[rows])

    def tensor(self, array: np.ndarray) -> Tensor:
        """An array on the model's device."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(array)).to(next(self.model.parameters()).device)

    def encoded(self, batch: Any) -> Tensor | Read:
        """A batch as the encoder gives it: vectors [B, dim], with states if the decoder reads them."""
        return batch

    def dense(self, inputs: Inputs) -> np.ndarray:
        """The vectors that the encoder gives texts as it is now, [n, dim]."""
        return np.asarray(inputs)

    def read(self, examples: Any, numbers: np.ndarray) -> Any:
        """The queries of a training batch as the model takes them."""
        return with_noise(self.batch(examples.inputs, numbers), self.settings.noise)

    def terms(self, read: Any, rows: np.ndarray) -> dict[str, Tensor]:
        """Terms of the training objective beside that of the codes."""
        return {}

    # Search.

    @property
    def tied(self) -> TiedStart | None:
        """The start at the similarity of query and code, if there is one: then the index holds no vectors."""
        return self.start if isinstance(self.start, TiedStart) else None

    def searched(self, identifiers: Identifiers) -> Any:
        """The model as it is searched: with the prior probabilities that its scores begin at, if there are any."""
        from callslip.search.prior import PriorWriter

        start = self.start
        if start is None:
            return self.model
        held = (self.model, start, identifiers)
        if self._searched is None or any(a is not b for a, b in zip(self._searched, held, strict=False)):
            self._searched = (*held, PriorWriter(self.model, self._prior, identifiers, start.trust))
        return self._searched[-1]

    def _prior(self, batch: Tensor) -> np.ndarray:
        """log p0 of every document that is not deleted, up to a constant: [B, N]."""
        found = self.start.log_weights(self.prior_inputs(batch.cpu().numpy()))
        found[:, ~self.rows.alive] = -np.inf  # or a compaction would change the scores of the others
        return found

    def prior_inputs(self, batch: np.ndarray) -> Any:
        """A batch of the model's inputs as the prior reads it."""
        return batch

    def prior_input(self, query: ReadQuery) -> np.ndarray:
        """One query as the prior reads it."""
        return query.vector

    def read_query(self, vector: np.ndarray, inputs: Any) -> ReadQuery:
        """A query as documents are ranked for it, given its vector and its inputs."""
        return ReadQuery(vector)

    def similarity(self, query: ReadQuery, rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Similarity of some documents to the query, by which those of a bucket are ranked."""
        if self.tied is not None:
            return self.tied.similarity(query.vector[None], rows)[0]
        return self.document_vectors(vectors)[rows] @ query.vector

    def code_part(self, query: ReadQuery, beams: Beams, identifiers: Identifiers) -> np.ndarray:
        """What codes add to the similarities of their documents under `ranking=sum`, [beams]. With a start, that is
        what the model says of them, as far as it is trusted: the similarity of a document has all of its prior."""
        start = self.start
        if start is None:
            return beams.scores
        if not start.trust:
            return np.zeros(len(beams.scores))
        rows, beam = candidates(beams, identifiers, self.rows.alive)
        first = np.flatnonzero(np.diff(beam, prepend=-1))
        known = np.maximum.reduceat(start.log_weights([self.prior_input(query)], rows)[0], first)
        part = np.full(len(beams.scores), -np.inf)
        part[beam[first]] = beams.scores[beam[first]] - known
        return part

    @property
    def similarity_name(self) -> str:
        """What explanations call the similarity."""
        return "similarity"

    def compared(self, rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Vectors by which some documents are compared with one another."""
        return self.document_vectors(vectors)[rows]

    def reasons(self, query: ReadQuery, rows: np.ndarray) -> list[dict[str, Any]]:
        """Why the reader prefers each of these documents."""
        return [{} for _ in rows]

    # Documents' vectors, and their changes.

    def document_vectors(self, vectors: np.ndarray) -> np.ndarray:
        """What query vectors are compared with, by row."""
        return vectors

    def forget_vectors(self) -> None:
        """Compute `document_vectors` anew: the model has been trained."""

    def read_stored(self, vectors: VectorTable) -> None:
        """Read documents from now on by their vectors as they are stored: the fit is over."""

    def new_parts(self, documents: list[Document], codes: np.ndarray, vectors: np.ndarray) -> Parts:
        """What `extend` needs of new documents beside their codes [n, L] and vectors [n, dim]."""
        return {} if self.tied is None else {"tied": self.tied.code(codes, vectors)}

    def extend(self, parts: Parts) -> None:
        """Append documents with these vectors and `new_parts`."""
        if self.tied is not None:
            self.tied.extend(parts["tied"])

    def keep(self, rows: np.ndarray) -> None:
        """Keep some documents only."""
        if self.tied is not None:
            self.tied.keep(rows)


class TunedReader(VectorReader):
    """Fine-tunes a copy of the encoder together with the decoder, which reads its vectors or its states."""

    block = 128

    @property
    def reads_vectors(self) -> bool:
        return False

    @property
    def dim(self) -> int:
        from callslip.encoders.encoder import encoder_dim

        return encoder_dim(self.settings.encoder)

    @property
    def tokenizing(self) -> Any:
        """What turns texts into token ids."""
        return self.model

    def writer_input(self, vectors: np.ndarray) -> dict[str, Any]:
        from callslip.encoders.encoder import state_dim

        s, dim = self.settings, self.dim
        if s.encoder_memory == "states" and (width := state_dim(s.encoder)) != dim:
            raise BadSetting(
                f"encoder_memory=states: the states of {s.encoder!r} have {width} numbers, its vectors {dim}",
                "Use encoder_memory=vector, or an encoder without a Dense module and without `dim`.",
            )
        return {"input_dim": dim, "reads": s.encoder_memory}

    def join(self, builder: Builder, writer: CodeWriter) -> Any:
        return builder.tuned_writer(writer)

    def use(self, model: Any) -> None:
        super().use(model)
        if "activations" in self.settings.save_memory:
            from callslip.training.memory import recompute_activations

            recompute_activations(self.model)

    def learning_share(self, parameter: str, rate: float) -> float:
        own = self.settings.encoder_learning_rate
        return own / max(rate, 1e-12) if parameter.startswith("encoder.") else 1.0

    def inputs(self, queries: list[Query], vectors: np.ndarray) -> Inputs:
        return self.tokenize([query.text for query in queries], "query")

    def query_inputs(self, queries: list[Query]) -> Inputs:
        return self.inputs(queries, np.zeros((len(queries), 0), np.float32))

    def text_inputs(self, texts: Sequence[str]) -> Inputs:
        return TokenTable.of(self._tokenized(texts, "query"))

    def document_inputs(self, documents: Sequence[Document], vectors: np.ndarray) -> Inputs:
        return TokenTable.of(self._tokenized((document.content for document in documents), "document"))

    def read_documents(self, documents: Iterable[Document], progress: str) -> Inputs:
        return TokenTable.of(self._tokenized((document.content for document in documents), "document"))

    def training_inputs(self, texts: Sequence[str], documents: Corpus | tuple[()], vectors: np.ndarray) -> Inputs:
        contents = (document.content for document in documents)
        return TokenTable.of(chain(self._tokenized(texts, "query"), self._tokenized(contents, "document")))

    def _tokenized(self, texts: Iterable[str], kind: Kind) -> Iterator[list[int]]:
        """Token ids of texts that are not all in memory at once."""
        each = iter(texts)
        while block := list(islice(each, TOKENIZED)):
            yield from self.tokenize(block, kind)

    def tokenize(self, texts: list[str], kind: Kind) -> list[list[int]]:
        """Token ids of texts as the model reads them: with the encoder's prompt before texts of that kind."""
        return self.tokenizing.tokenize(self.prompted(texts, kind), self.settings.seq2seq_length)

    def prompted(self, texts: list[str], kind: Kind) -> Sequence[str]:
        """Texts with what the model wants before them."""
        return self.texts.prompted(texts, kind)

    def batch(self, inputs: Inputs, rows: np.ndarray | None = None) -> Any:
        device = next(self.model.parameters()).device
        chosen = range(len(inputs)) if rows is None else rows
        return self.tokenizing.batch([inputs[row] for row in chosen]).to(device)

    def encoded(self, batch: Any) -> Tensor | Read:
        read = self.model.read(batch)
        return read.vector if read.states is None else read

    def dense(self, inputs: Inputs) -> np.ndarray:
        import torch

        training = self.model.training
        self.model.eval()
        found = []
        with torch.no_grad():
            for start in range(0, len(inputs), self.block):
                read = self.encoded(self.batch(inputs, np.arange(start, min(start + self.block, len(inputs)))))
                found.append((read if isinstance(read, torch.Tensor) else read.vector).cpu().numpy())
        self.model.train(training)
        return np.concatenate(found)


class T5Reader(TunedReader):
    """A T5, or a decoder-only language model, that reads the text of a query itself and writes its code."""

    @property
    def tokenizing(self) -> Any:
        return getattr(self.model, "writer", self.model)

    def new_model(self, builder: Builder, widths: Sequence[int], with_end: bool) -> None:
        from callslip.decoders.causal import CausalCodeWriter, is_causal
        from callslip.decoders.t5 import T5CodeWriter

        kind: Any
        kind, options = builder.t5_writer()
        if is_causal(self.settings.seq2seq):
            if kind is not T5CodeWriter:
                raise no_encoder()
            kind, options = CausalCodeWriter, {}
        writer = kind.from_pretrained(self.settings.seq2seq, [int(w) for w in widths], with_end=with_end, **options)
        self.use(builder.t5_model(writer))

    def prompted(self, texts: list[str], kind: Kind) -> Sequence[str]:
        return texts  # the encoder's prompts are not T5's

    def learning_share(self, parameter: str, rate: float) -> float:
        return 1.0

    def encoded(self, batch: Any) -> Read:
        """T5's encoder has no vector of its own: the mean of its states, as a unit vector."""
        from torch.nn import functional

        from callslip.decoders.causal import CausalCodeWriter
        from callslip.decoders.histories import Read
        from callslip.encoders.pooling import pool

        if isinstance(self.tokenizing, CausalCodeWriter):
            raise no_encoder()
        states = self.tokenizing.encode(batch)
        return Read(functional.normalize(pool(states.values, states.mask, "mean"), dim=-1), states)

    def save(self, folder: Path) -> None:
        self.tokenizing.save(folder / T5)
        if self.tokenizing is not self.model:
            model_files.save_parts(folder, self.model, "writer.")

    def load(self, folder: Path, builder: Builder) -> None:
        from callslip.decoders.causal import CausalCodeWriter, is_causal

        kind: Any = CausalCodeWriter if is_causal(folder / T5) else builder.t5_writer()[0]
        self.use(builder.t5_model(kind.load(folder / T5)))
        if self.tokenizing is not self.model:
            model_files.load_parts(folder, self.model, "writer.")
        self.model.eval()


class HistoryReader(VectorReader):
    """Reads histories of items; the item vectors are trained with the decoder."""

    histories = True

    def __init__(
        self, settings: Any, texts: TextVectors, rows: Rows, kind: Literal["set", "sequence"], has_texts: bool
    ) -> None:
        super().__init__(settings, texts, rows)
        self.kind, self.has_texts = kind, has_texts
        self.history: HistoryShape | None = None
        self.ranking_encoder: HistoryEncoder | None = None
        """Encoder that gives the vectors of queries and items, if it is not the one that the decoder reads."""
        self._item_vectors: np.ndarray | None = None

    @property
    def reads_vectors(self) -> bool:
        return self.settings.items != "id"

    def read_without_vectors(self, corpus: Corpus) -> np.ndarray:
        return self._shaped(np.zeros((len(corpus), 0), np.float32))

    def encode_corpus(self, corpus: Corpus) -> np.ndarray:
        from callslip.encoders.interaction_vectors import interaction_vectors

        sequences = training_sequences(corpus)  # or an error: too few items for each user
        if self.has_texts:
            vectors = super().encode_corpus(corpus)
        else:
            vectors = interaction_vectors(sequences, len(corpus), self.settings.seed)
        return self._shaped(vectors)

    def _shaped(self, vectors: np.ndarray) -> np.ndarray:
        """Note the shape of the encoder of items with these vectors."""
        from callslip.decoders.histories import HistoryShape

        memory = self.settings.history_memory
        self.history = HistoryShape.of(self.settings, self.kind, vectors, self.has_texts, memory)
        return vectors

    def new_parts(self, documents: list[Document], codes: np.ndarray, vectors: np.ndarray) -> Parts:
        return {"words": word_hashes(document.content for document in documents)}

    def encode_new(self, documents: list[Document], dim: int) -> np.ndarray:
        if self.has_texts:
            return super().encode_new(documents, dim)
        return np.zeros((len(documents), dim), np.float32)  # no user has had them yet

    def writer_input(self, vectors: np.ndarray) -> dict[str, Any]:
        assert self.history is not None
        return {"reads": self.history.memory, "input_dim": self.history.width}

    def join(self, builder: Builder, writer: CodeWriter) -> Any:
        assert self.history is not None
        self.forget_vectors()
        return builder.history_writer(self.history.encoder(np.asarray(builder.vectors)), writer)

    def save(self, folder: Path) -> None:
        assert self.history is not None
        if self.start is not None:
            self.start.save(folder)
        count = self.model.items.count  # new items included
        history = replace(self.history, count=count).to_dict()
        model_files.save_model(folder, self.model, self.shape | {"history": history})

    def read_shape(self, folder: Path) -> None:
        from callslip.decoders.histories import HistoryShape

        super().read_shape(folder)
        self.history = HistoryShape(**self.shape.pop("history"))

    def saved_start(self, folder: Path, count: int) -> Any:
        return Start.load(folder, ordered=self.kind == "sequence")

    def decay(self, parameter: str) -> float:
        return self.settings.decay_of(parameter, self.settings.weight_decay)

    def new_ranking_encoder(self, builder: Builder) -> None:
        """Rank by an encoder that the decoder does not read; it is untrained."""
        assert self.history is not None
        device = next(self.model.parameters()).device
        self.ranking_encoder = self.history.encoder(np.asarray(builder.vectors)).to(device)
        self.forget_vectors()

    @property
    def _ranking(self) -> HistoryEncoder:
        return self.model.encoder if self.ranking_encoder is None else self.ranking_encoder

    def query_vectors(self, queries: list[Query]) -> np.ndarray:
        from callslip.decoders.histories import vectors_of

        return vectors_of(self._ranking, self.batch(self._numbers(queries))).cpu().numpy()

    def inputs(self, queries: list[Query], vectors: np.ndarray) -> Inputs:
        return self._numbers(queries)

    def _numbers(self, queries: list[Query]) -> np.ndarray:
        assert self.history is not None
        known = self.model.items.known().cpu().numpy()
        return numbers_of(queries, self.rows.names_in_memory(), self.history.longest, known)

    def examples(self, corpus: Corpus, pairs: Sequence[Pair], vectors: np.ndarray, documents: bool) -> Examples:
        assert self.history is not None
        some = training_examples(self.training_sequences(corpus), self.history.kind, self.history.longest)
        return HistoryExamples(self.history, some.histories, some.targets, self.settings.batch_size)

    def training_sequences(self, corpus: Corpus) -> Sequences:
        """The histories to train on; without those items by which the model's trust is chosen."""
        whole = training_sequences(corpus)
        return whole if self.settings.start == "none" else HeldOut.of(whole, self.settings.seed).rest

    def begin(
        self,
        corpus: Corpus,
        vectors: np.ndarray,
        ranked: Callable[[list[Query], int], list[np.ndarray]],
        log: TrainingLog,
    ) -> None:
        """Begin at counts, now that the model is trained. `ranked` gives rows for queries, at least so many."""
        s, whole, names = self.settings, training_sequences(corpus), corpus.doc_ids
        texts = vectors if self.has_texts and vectors.shape[1] else None
        words = word_hashes(document.content for document in corpus) if self.has_texts else None
        counted = count_settings(ordered=self.kind == "sequence")

        def count(some: Sequences) -> Counts:
            return Counts.of(some, len(corpus), texts, counted, s.seed, words)

        def rankings(tried: Start, held: HeldOut) -> list[np.ndarray]:
            asked = [Query(f"held out {n}", "", tuple(names[i] for i in had)) for n, had in enumerate(held.histories)]
            self.start = tried
            return ranked(asked, DEPTH + max(map(len, held.histories), default=0))

        self.start = joined(count, whole, s.rerank, s.seed, log, rankings if s.epochs else None)

    def read(self, examples: Any, numbers: np.ndarray) -> Any:
        return examples.read(self.model.encoder, numbers)

    def prior_inputs(self, batch: np.ndarray) -> Any:
        return [row[row > 0] - 1 for row in batch]

    def prior_input(self, query: ReadQuery) -> np.ndarray:
        return had(query)

    def read_query(self, vector: np.ndarray, inputs: Any) -> ReadQuery:
        return ReadQuery(vector, inputs=inputs)

    def similarity(self, query: ReadQuery, rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        if self.start is None:
            return super().similarity(query, rows, vectors)
        found = self.start.log_weights([had(query)], rows)[0]
        return found + self.start.trust * super().similarity(query, rows, vectors) if self.start.trust else found

    @property
    def similarity_name(self) -> str:
        return super().similarity_name if self.start is None else "item_score"

    def compared(self, rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        return super().compared(rows, vectors) if self.start is None else self.start.counts.outputs[rows]

    def reasons(self, query: ReadQuery, rows: np.ndarray) -> list[dict[str, Any]]:
        if self.start is None:
            return super().reasons(query, rows)
        history = had(query)
        names = [document.doc_id for document in self.rows.documents.rows(history.tolist())]
        return self.start.because(history, rows, names)

    def terms(self, read: Any, rows: np.ndarray) -> dict[str, Tensor]:
        import torch

        from callslip.training.item_ranking import ranking_term

        weight = self.settings.ranker_weight
        if not weight:
            return {}
        target = torch.from_numpy(rows).to(read.vector.device)
        return {"ranking": weight * ranking_term(read, target, self.model.items, self.settings.ranker_negatives)}

    def document_vectors(self, vectors: np.ndarray) -> np.ndarray:
        if self._item_vectors is None:
            import torch

            with torch.no_grad():
                self._item_vectors = self._ranking.items.all().cpu().numpy()
        return self._item_vectors

    def forget_vectors(self) -> None:
        self._item_vectors = None

    def read_stored(self, vectors: VectorTable) -> None:
        import torch

        for table in self._tables():
            table.set_texts(torch.from_numpy(np.asarray(vectors)))
        self.forget_vectors()

    def extend(self, parts: Parts) -> None:
        import torch

        for table in self._tables():
            table.extend(torch.from_numpy(parts["vectors"]))
        if self.start is not None:
            self.start = self.start.extended(parts["vectors"], words_of(parts))
        self.forget_vectors()

    def keep(self, rows: np.ndarray) -> None:
        import torch

        for table in self._tables():
            table.keep(torch.from_numpy(rows))
        if self.start is not None:
            self.start = self.start.kept(rows)
        self.forget_vectors()

    def _tables(self) -> list[ItemTable]:
        """The item vectors of all encoders."""
        other = [] if self.ranking_encoder is None else [self.ranking_encoder.items]
        return [self.model.items, *other]


def had(query: ReadQuery) -> np.ndarray:
    """The rows of a history's items."""
    assert query.inputs is not None
    return query.inputs[query.inputs > 0] - 1


def with_noise(batch: Any, noise: float) -> Any:
    """Vectors plus Gaussian noise of norm `noise`; token ids and histories as they are."""
    import torch

    if not noise or not isinstance(batch, torch.Tensor) or not batch.is_floating_point():
        return batch
    return batch + noise * torch.randn_like(batch) / batch.shape[1] ** 0.5


def no_encoder() -> Unsupported:
    """The error of a method that needs more of a T5 than the codes it writes."""
    return Unsupported(
        "seq2seq is a decoder-only model, and this method needs T5's encoder or its word embeddings",
        "Give a T5, or use another method, such as dsi-semantic.",
    )


def reads_text(settings: Any) -> bool:
    """Whether the model reads texts itself rather than the vectors of a frozen encoder."""
    return isinstance(settings, T5Settings) and (settings.train_encoder != "none" or settings.seq2seq is not None)


def could_read(settings: Any, *, histories: bool) -> bool:
    """Whether an index fitted with these settings, on a corpus of such queries, would answer them."""
    kind = settings.queries if isinstance(settings, HistoryQuerySettings) else "text"
    if histories:
        return kind in ("set", "sequence") or (kind == "auto" and not reads_text(settings))
    return kind in ("auto", "text")


def reader_for(settings: Any, corpus: Corpus, texts: TextVectors, rows: Rows) -> VectorReader:
    """The reader of a corpus's queries."""
    kind = settings.queries if isinstance(settings, HistoryQuerySettings) else "text"
    if kind == "auto":
        kind = "sequence" if has_histories(corpus) and could_read(settings, histories=True) else "text"
    if kind != "text":
        if settings.start == "tied":
            raise BadSetting(
                "start=tied is for texts, and the train queries of this corpus are histories of items",
                "Use start=counts, or none.",
            )
        training_sequences(corpus)  # or an error, before anything is encoded
        return HistoryReader(settings, texts, rows, kind, has_texts(corpus))
    if isinstance(settings, T5Settings) and settings.seq2seq is not None:
        from callslip.decoders.causal import is_causal
        from callslip.decoders.t5 import check_checkpoint

        if not is_causal(settings.seq2seq):
            check_checkpoint(settings.seq2seq)  # a wrong name must not cost the encoding of the corpus
        elif getattr(settings, "seq2seq_codes", "tokens") == "codebooks":
            raise BadSetting("seq2seq_codes=codebooks with a decoder-only model", "Use seq2seq_codes=tokens.")
    return text_reader(settings, texts, rows)


def text_reader(settings: Any, texts: TextVectors, rows: Rows) -> VectorReader:
    """The reader of texts that the settings ask for."""
    if isinstance(settings, T5Settings) and settings.seq2seq is not None:
        return T5Reader(settings, texts, rows)
    if isinstance(settings, T5Settings) and settings.train_encoder != "none":
        return TunedReader(settings, texts, rows)
    return VectorReader(settings, texts, rows)


def saved_reader(settings: Any, folder: Path, texts: TextVectors, rows: Rows) -> VectorReader:
    """The reader that wrote a folder, not yet loaded."""
    history = model_files.read_shape(folder).get("history") if (folder / model_files.SHAPE).exists() else None
    if history is not None:
        return HistoryReader(settings, texts, rows, history["kind"], history["texts"])
    return text_reader(settings, texts, rows)
