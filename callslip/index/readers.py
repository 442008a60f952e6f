"""Readers: what a generative model reads of a query, and how its decoder is joined to what reads it.

`VectorReader` gives the decoder the vector of a frozen encoder, `TunedReader` fine-tunes the encoder with the decoder,
`T5Reader` is a T5 that reads the text itself, and `HistoryReader` reads histories of items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from callslip.corpus.documents import Corpus, Document, Pair, Query
from callslip.corpus.logs import has_histories, has_texts, numbers_of, training_examples, training_sequences
from callslip.errors import BadSetting
from callslip.index import model_files
from callslip.index.settings import HistoryQuerySettings, T5Settings, TunedEncoderSettings
from callslip.training.examples import Examples, HistoryExamples, Inputs, TextExamples

if TYPE_CHECKING:
    from torch import Tensor

    from callslip.decoders.histories import HistoryEncoder, HistoryShape, HistoryWriter
    from callslip.decoders.writer import CodeWriter
    from callslip.encoders.encoder import TextVectors
    from callslip.encoders.modules import Kind
    from callslip.index.rows import Rows

T5 = "t5"
"""Folder of a saved T5."""


@dataclass
class ReadQuery:
    """A query as documents are ranked for it: its vector, and the states of a decoder that ranks by them."""

    vector: np.ndarray
    states: np.ndarray | None = None


class Builder(Protocol):
    """The method that a model is made for."""

    vectors: np.ndarray

    def writer_shape(self) -> dict[str, Any]:
        """The shape of the decoder, as it is saved."""

    def writer(self, shape: dict[str, Any]) -> CodeWriter:
        """A decoder of that shape."""

    def history_writer(self, encoder: HistoryEncoder, writer: CodeWriter) -> HistoryWriter:
        """The decoder joined to an encoder of histories."""


class VectorReader:
    """Gives the decoder the vector of a text by a frozen encoder."""

    histories = False

    def __init__(self, settings: Any, texts: TextVectors, rows: Rows) -> None:
        self.settings, self.texts, self.rows = settings, texts, rows
        self.model: Any = None
        self.shape: dict[str, Any] = {}

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
        model_files.save_model(folder, self.model, self.shape)

    def load(self, folder: Path, builder: Builder) -> None:
        self.read_shape(folder)
        model = self.join(builder, builder.writer(self.shape))
        model_files.load_weights(folder, model)
        self.use(model)
        self.model.eval()

    def read_shape(self, folder: Path) -> None:
        self.shape = model_files.read_shape(folder)

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

    def encode_new(self, documents: list[Document], dim: int) -> np.ndarray:
        """The vectors of documents that are added, [n, dim]."""
        return self.texts.documents(documents, "encoding new documents")

    def query_vectors(self, queries: list[Query]) -> np.ndarray:
        """One vector a query, for similarity."""
        return self.texts.queries(queries)

    def inputs(self, queries: list[Query], vectors: np.ndarray) -> Inputs:
        """Queries as the model reads them, given their vectors."""
        return vectors

    def document_inputs(self, documents: Sequence[Document], vectors: np.ndarray) -> Inputs:
        """Documents as the model reads them."""
        return self.inputs([Query(document.doc_id, document.content) for document in documents], vectors)

    def examples(self, corpus: Corpus, pairs: list[Pair], vectors: np.ndarray, documents: bool) -> Examples:
        """The pairs to train on and, if `documents` are to be trained on, each document with itself."""
        row_of = corpus.rows()
        rows = np.array([row_of[pair.doc_id] for pair in pairs], dtype=np.int64)
        if documents:
            rows = np.concatenate([rows, np.arange(len(corpus))])
        inputs = self.training_inputs([pair.query for pair in pairs], corpus if documents else (), vectors)
        return TextExamples(inputs, rows, self.settings.batch_size)

    def training_inputs(self, texts: list[str], documents: Corpus | tuple[()], vectors: np.ndarray) -> Inputs:
        """Texts to train on and, after them, documents, as the model reads them."""
        found = self.texts.training(texts)
        return np.concatenate([found, vectors]) if documents else found

    def batch(self, inputs: Inputs, rows: np.ndarray | None = None) -> Any:
        """Some of the inputs as the model takes them, on its device."""
        import torch

        device = next(self.model.parameters()).device
        return torch.from_numpy(np.ascontiguousarray(inputs if rows is None else np.asarray(inputs)[rows])).to(device)

    def read(self, examples: Any, numbers: np.ndarray) -> Any:
        """The queries of a training batch as the model takes them."""
        return with_noise(self.batch(examples.inputs, numbers), self.settings.noise)

    def terms(self, read: Any, rows: np.ndarray) -> dict[str, Tensor]:
        """Terms of the training objective beside that of the codes."""
        return {}

    # Documents' vectors, and their changes.

    def document_vectors(self, vectors: np.ndarray) -> np.ndarray:
        """What query vectors are compared with, by row."""
        return vectors

    def forget_vectors(self) -> None:
        """Compute `document_vectors` anew: the model has been trained."""

    def extend(self, vectors: np.ndarray) -> None:
        """Append documents with these vectors."""

    def keep(self, rows: np.ndarray) -> None:
        """Keep some documents only."""


class TunedReader(VectorReader):
    """Fine-tunes a copy of the encoder together with the decoder."""

    def join(self, builder: Builder, writer: CodeWriter) -> Any:
        from callslip.decoders.tuned import TunedWriter

        s = self.settings
        return TunedWriter(s.encoder, writer, s.train_encoder, s.max_length, s.vector_size)

    def learning_share(self, parameter: str, rate: float) -> float:
        own = self.settings.encoder_learning_rate
        return own / max(rate, 1e-12) if parameter.startswith("encoder.") else 1.0

    def inputs(self, queries: list[Query], vectors: np.ndarray) -> Inputs:
        return self.tokenize([query.text for query in queries])

    def document_inputs(self, documents: Sequence[Document], vectors: np.ndarray) -> Inputs:
        return self.tokenize([], documents)

    def training_inputs(self, texts: list[str], documents: Corpus | tuple[()], vectors: np.ndarray) -> Inputs:
        return self.tokenize(texts, documents)

    def tokenize(self, queries: list[str], documents: Iterable[Document] = ()) -> list[list[int]]:
        """Token ids of queries and, after them, documents, as the model reads them: with the encoder's prompts."""
        contents = [document.content for document in documents]
        texts = [*self.prompted(queries, "query"), *self.prompted(contents, "document")]
        return self.model.tokenize(texts, self.settings.seq2seq_length)

    def prompted(self, texts: list[str], kind: Kind) -> Sequence[str]:
        """Texts with what the model wants before them."""
        return self.texts.prompted(texts, kind)

    def batch(self, inputs: Inputs, rows: np.ndarray | None = None) -> Any:
        device = next(self.model.parameters()).device
        chosen = range(len(inputs)) if rows is None else rows
        return self.model.batch([inputs[row] for row in chosen]).to(device)


class T5Reader(TunedReader):
    """A T5, or a decoder-only language model, that reads the text of a query itself and writes its code."""

    def new_model(self, builder: Builder, widths: Sequence[int], with_end: bool) -> None:
        from callslip.decoders.causal import CausalCodeWriter, is_causal
        from callslip.decoders.t5 import T5CodeWriter

        if is_causal(self.settings.seq2seq):
            self.use(CausalCodeWriter.from_pretrained(self.settings.seq2seq, widths, with_end=with_end))
            return
        codes = getattr(self.settings, "seq2seq_codes", "codebooks")
        widths = [int(width) for width in widths]
        self.use(T5CodeWriter.from_pretrained(self.settings.seq2seq, widths, codes=codes, with_end=with_end))

    def prompted(self, texts: list[str], kind: Kind) -> Sequence[str]:
        return texts  # the encoder's prompts are not T5's

    def learning_share(self, parameter: str, rate: float) -> float:
        return 1.0

    def save(self, folder: Path) -> None:
        self.model.save(folder / T5)

    def load(self, folder: Path, builder: Builder) -> None:
        from callslip.decoders.causal import CausalCodeWriter, is_causal
        from callslip.decoders.t5 import T5CodeWriter

        self.use((CausalCodeWriter if is_causal(folder / T5) else T5CodeWriter).load(folder / T5))
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
        self._item_vectors: np.ndarray | None = None

    def encode_corpus(self, corpus: Corpus) -> np.ndarray:
        from callslip.decoders.histories import HistoryShape
        from callslip.encoders.interaction_vectors import interaction_vectors

        sequences = training_sequences(corpus)  # or an error: too few items for each user
        if self.has_texts:
            vectors = super().encode_corpus(corpus)
        else:
            vectors = interaction_vectors(sequences, len(corpus), self.settings.seed)
        memory = self.settings.history_memory
        self.history = HistoryShape.of(self.settings, self.kind, vectors, self.has_texts, memory)
        return vectors

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
        return builder.history_writer(self.history.encoder(builder.vectors), writer)

    def save(self, folder: Path) -> None:
        assert self.history is not None
        count = self.model.items.count  # new items included
        history = replace(self.history, count=count).to_dict()
        model_files.save_model(folder, self.model, self.shape | {"history": history})

    def read_shape(self, folder: Path) -> None:
        from callslip.decoders.histories import HistoryShape

        super().read_shape(folder)
        self.history = HistoryShape(**self.shape.pop("history"))

    def decay(self, parameter: str) -> float:
        return self.settings.decay_of(parameter, self.settings.weight_decay)

    def query_vectors(self, queries: list[Query]) -> np.ndarray:
        return self.model.vectors(self.batch(self._numbers(queries))).cpu().numpy()

    def inputs(self, queries: list[Query], vectors: np.ndarray) -> Inputs:
        return self._numbers(queries)

    def _numbers(self, queries: list[Query]) -> np.ndarray:
        assert self.history is not None
        known = self.model.items.known().cpu().numpy()
        return numbers_of(queries, self.rows.row_of(), self.history.longest, known)

    def examples(self, corpus: Corpus, pairs: list[Pair], vectors: np.ndarray, documents: bool) -> Examples:
        assert self.history is not None
        some = training_examples(training_sequences(corpus), self.history.kind, self.history.longest)
        return HistoryExamples(self.history, some.histories, some.targets, self.settings.batch_size)

    def read(self, examples: Any, numbers: np.ndarray) -> Any:
        return examples.read(self.model.encoder, numbers)

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
                self._item_vectors = self.model.items.all().cpu().numpy()
        return self._item_vectors

    def forget_vectors(self) -> None:
        self._item_vectors = None

    def extend(self, vectors: np.ndarray) -> None:
        import torch

        self.model.items.extend(torch.from_numpy(vectors))
        self.forget_vectors()

    def keep(self, rows: np.ndarray) -> None:
        import torch

        self.model.items.keep(torch.from_numpy(rows))
        self.forget_vectors()


def with_noise(batch: Any, noise: float) -> Any:
    """Vectors plus Gaussian noise of norm `noise`; token ids and histories as they are."""
    import torch

    if not noise or not isinstance(batch, torch.Tensor) or not batch.is_floating_point():
        return batch
    return batch + noise * torch.randn_like(batch) / batch.shape[1] ** 0.5


def reads_text(settings: Any) -> bool:
    """Whether the model reads texts itself rather than the vectors of a frozen encoder."""
    tuned = isinstance(settings, TunedEncoderSettings) and settings.train_encoder != "none"
    return tuned or (isinstance(settings, T5Settings) and settings.seq2seq is not None)


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
    if isinstance(settings, TunedEncoderSettings) and settings.train_encoder != "none":
        return TunedReader(settings, texts, rows)
    return VectorReader(settings, texts, rows)


def saved_reader(settings: Any, folder: Path, texts: TextVectors, rows: Rows) -> VectorReader:
    """The reader that wrote a folder, not yet loaded."""
    history = model_files.read_shape(folder).get("history") if (folder / model_files.SHAPE).exists() else None
    if history is not None:
        return HistoryReader(settings, texts, rows, history["kind"], history["texts"])
    return text_reader(settings, texts, rows)
