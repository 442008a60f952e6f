"""Tied-Atomic, the index: a token for each document, and the decoding step, which is dense retrieval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from callslip.corpus.documents import Corpus, Query
from callslip.index import model_files
from callslip.index.generative import MEMORY_SLOTS
from callslip.index.retriever import Found
from callslip.index.vectors import VectorRetriever
from callslip.methods.tied_atomic.model import TiedReader
from callslip.methods.tied_atomic.settings import PRESETS, TiedAtomicSettings
from callslip.methods.tied_atomic.training import Training
from callslip.runtime.device import best_device
from callslip.runtime.seeds import seeded
from callslip.training.loop import TrainingLog
from callslip.training.teachers import CrossEncoder
from callslip.training.texts import training_pairs

BLOCK = 4096
"""Texts per forward pass outside of training."""


class TiedAtomic(VectorRetriever):
    """Ranks documents by the dot product of their states with the query's. Documents' states are frozen at search."""

    Settings = TiedAtomicSettings
    presets = PRESETS
    model: TiedReader

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.log: TrainingLog | None = None
        self.shape: dict[str, Any] = {}

    def build(self, corpus: Corpus) -> None:
        s, self.log = self.settings, None
        teacher = self.open_teacher()  # a wrong name must not cost the encoding of the corpus
        vectors = self.texts.documents(corpus, "encoding documents")
        with seeded(s.seed):
            self.model = self.new_model(vectors.shape[1])
            pairs = training_pairs(corpus, s) if s.epochs else []
            if pairs:
                training = Training(self, vectors, teacher)
                training.run(training.examples(corpus, pairs))
        self.index(self.project(vectors))

    def open_teacher(self) -> CrossEncoder | None:
        """The cross-encoder that the settings name; None for other teachers, or none."""
        s = self.settings
        return None if s.teacher in (None, "dense", "bm25") else CrossEncoder(str(s.teacher), device=s.device)

    def new_model(self, dim: int) -> TiedReader:
        """An untrained model of the shape that the settings ask for."""
        s = self.settings
        self.shape = {
            "dim": dim,
            "width": s.decoder_width,
            "layers": s.decoder_layers,
            "heads": s.decoder_heads,
            "memory_slots": MEMORY_SLOTS,
            "dropout": s.dropout,
        }
        return TiedReader(**self.shape).to(best_device(s.device)).eval()

    # Search: the decoding step, which is dense retrieval.

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """The model's states of texts, given the encoder's vectors."""
        device = next(self.model.parameters()).device
        states = np.empty_like(vectors)
        with torch.inference_mode():
            for start in range(0, len(vectors), BLOCK):
                block = torch.from_numpy(np.ascontiguousarray(vectors[start : start + BLOCK])).to(device)
                states[start : start + BLOCK] = self.model(block).cpu().numpy()
        return states

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        found = super().find(queries, k, mask, explain)
        for one in found:
            one.codes = np.asarray(one.rows)[:, None]  # the document's token is its row
            if explain:
                one.why = [{"token": int(row), "dot_product": float(score)} for row, score in zip(one.rows, one.scores)]
        return found

    def adjusted(self, names: frozenset[str]) -> None:
        if "device" in names and hasattr(self, "model"):
            self.model.to(best_device(self.settings.device))
        super().adjusted(names)

    # The saved folder.

    def save_files(self, folder: Path) -> None:
        super().save_files(folder)
        model_files.save_model(folder, self.model, self.shape)
        model_files.save_log(folder, self.log)

    def load_files(self, folder: Path) -> None:
        super().load_files(folder)
        self.shape = model_files.read_shape(folder)
        self.model = TiedReader(**self.shape)
        model_files.load_weights(folder, self.model)
        self.model.to(best_device(self.settings.device)).eval()
        self.log = model_files.load_log(folder)
