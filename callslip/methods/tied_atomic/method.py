"""Tied-Atomic, the index: a token for each document, and the decoding step, which is dense retrieval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.corpus.documents import Corpus, Document, Query
from callslip.decoders.t5 import T5CodeWriter
from callslip.decoders.tuned import TunedWriter
from callslip.index import model_files, readers
from callslip.index.readers import T5Reader
from callslip.index.retriever import Found
from callslip.index.vectors import VectorRetriever
from callslip.methods.tied_atomic.model import T5State, T5Vector, TiedReader, TunedVector
from callslip.methods.tied_atomic.settings import PRESETS, TiedAtomicSettings
from callslip.methods.tied_atomic.training import Training
from callslip.runtime.device import best_device, seeded
from callslip.training.batches import Inputs, training_pairs
from callslip.training.loop import TrainingLog
from callslip.training.teachers import CrossEncoder

VECTOR_BLOCK, TOKEN_BLOCK = 4096, 64
"""Texts per forward pass outside of training, given as vectors or as tokens."""


class TiedAtomic(VectorRetriever):
    """Ranks documents by the product of their states with the query's. Documents' states are frozen at search."""

    Settings = TiedAtomicSettings
    presets = PRESETS

    @property
    def code_settings(self) -> Mapping[str, Any]:
        return {}  # a document's only token is all that ranks it

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.log: TrainingLog | None = None
        self.reader = readers.text_reader(self.settings, self.texts, self.rows)

    @property
    def model(self) -> Any:
        """What computes the states of texts."""
        return self.reader.model

    @property
    def shape(self) -> dict[str, Any]:
        """The shape of the small decoder; empty for T5 and for an encoder alone."""
        return self.reader.shape

    def build(self, corpus: Corpus) -> None:
        s, self.log = self.settings, None
        teacher = self.open_teacher()  # a wrong name must not cost the encoding of the corpus
        self.reader = readers.reader_for(s, corpus, self.texts, self.rows)
        with seeded(s.seed):
            self.new_model()
            documents = self.reader.read_documents(corpus, "encoding documents")
            pairs = training_pairs(corpus, s) if s.epochs else None
            if pairs:
                training = Training(self, documents, teacher)
                training.run(training.examples(corpus, pairs))
        self.index(self.project(documents))

    def open_teacher(self) -> CrossEncoder | None:
        """The cross-encoder that the settings name; None for other teachers, or none."""
        s = self.settings
        return None if s.teacher in (None, "dense", "bm25") else CrossEncoder(str(s.teacher), device=s.device)

    # The model, made for the reader that the settings ask for.

    def new_model(self) -> None:
        """Make an untrained model: T5 as it is, or a decoder that starts from the encoder's vectors."""
        if isinstance(self.reader, T5Reader):
            self.reader.new_model(self.builder, [1], False)
        else:
            self.reader.shape = self.writer_shape() | {"dim": self.reader.dim}
            self.reader.use(self.reader.join(self.builder, self.writer(self.reader.shape)))
        self.model.eval()

    @property
    def builder(self) -> Any:
        """Itself, as what makes a reader's model: all that `readers.Builder` asks for but histories."""
        return self

    def writer_shape(self) -> dict[str, Any]:
        return readers.decoder_shape(self.settings)

    def writer(self, shape: dict[str, Any]) -> Any:
        """The small decoder over the encoder's vector; none in a dual encoder."""
        return nn.Identity() if self.settings.state == "encoder" else TiedReader(**shape)

    def tuned_writer(self, writer: Any) -> TunedWriter:
        s = self.settings
        kind = TunedVector if s.state == "encoder" else TunedWriter
        return kind(s.encoder, writer, s.train_encoder)

    def t5_writer(self) -> tuple[type[T5CodeWriter], dict[str, Any]]:
        kind = T5Vector if self.settings.state == "encoder" else T5State
        return kind, {"codes": "words", "vocabulary": [0]}  # no codes: the documents' states serve as output weights

    def t5_model(self, writer: T5CodeWriter) -> Any:
        """The T5 alone."""
        return writer

    # Search: the decoding step, which is dense retrieval.

    def states(self, batch: Any) -> Tensor:
        """The states [B, dim] of a batch of texts, as they are multiplied."""
        nothing = torch.zeros((len(batch), 0), dtype=torch.long, device=next(self.model.parameters()).device)
        states = self.model.hidden(batch, nothing)[:, 0]
        return functional.normalize(states, dim=-1) if self.settings.products == "cosine" else states

    def project(self, inputs: Inputs) -> np.ndarray:
        """The states of texts as the model reads them, [n, dim]; texts of similar length share a batch."""
        if not len(inputs):
            return np.zeros((0, self.vectors.shape[1]), np.float32)
        tokens = not isinstance(inputs, np.ndarray)
        order = np.argsort([-len(one) for one in inputs], kind="stable") if tokens else np.arange(len(inputs))
        size = TOKEN_BLOCK if tokens else VECTOR_BLOCK
        blocks = [order[start : start + size] for start in range(0, len(order), size)]
        with torch.inference_mode():
            found = [self.states(self.reader.batch(inputs, rows)).float().cpu().numpy() for rows in blocks]
        states = np.concatenate(found)
        return states[np.argsort(order)] if tokens else states

    def query_vectors(self, queries: list[Query]) -> np.ndarray:
        return self.project(self.reader.query_inputs(queries))

    def document_vectors(self, documents: Iterable[Document], progress: str) -> np.ndarray:
        return self.project(self.reader.read_documents(documents, progress))

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        found = super().find(queries, k, mask, explain)
        for one in found:
            one.codes = np.asarray(one.rows)[:, None]  # the document's token is its row
            if explain:
                one.why = [{"token": int(row), "dot_product": float(score)} for row, score in zip(one.rows, one.scores)]
        return found

    def adjusted(self, names: frozenset[str]) -> None:
        if "device" in names and self.model is not None:
            self.model.to(best_device(self.settings.device))
        super().adjusted(names)

    # The saved folder.

    def save_files(self, folder: Path) -> None:
        super().save_files(folder)
        self.reader.save(folder)
        model_files.save_log(folder, self.log)

    def load_files(self, folder: Path) -> None:
        super().load_files(folder)
        self.reader = readers.text_reader(self.settings, self.texts, self.rows)
        self.reader.load(folder, self.builder)
        self.log = model_files.load_log(folder)
