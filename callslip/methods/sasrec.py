"""SASRec: a dense recommender (Kang and McAuley, 2018). A causal transformer reads the history; its state after the
last item is compared with every item by inner product.

Training uses all positions of a history at once: each state predicts the next item. With `queries=set` the history is
unordered, and the state of the set predicts each left-out item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from callslip.corpus.documents import Corpus, Document
from callslip.corpus.logs import has_texts
from callslip.corpus.sequences import Sequences
from callslip.decoders.histories import HistoryEncoder, HistoryShape, Read
from callslip.encoders.encoder import TextVectors
from callslip.encoders.interaction_vectors import interaction_vectors
from callslip.index import model_files
from callslip.index.counts import Counts
from callslip.index.item_words import word_hashes, words_of
from callslip.index.recommender import Recommender
from callslip.index.settings import EncoderSettings, HistorySettings, ScheduleSettings
from callslip.index.start import HeldOut, Start, count_settings, joined
from callslip.runtime.device import best_device, seeded
from callslip.search.diversity import Diversity
from callslip.storage.rows import Parts
from callslip.training import batches
from callslip.training.item_ranking import ranking_term
from callslip.training.loop import TrainingLog, train

VECTORS = "vectors.npy"


@dataclass(frozen=True)
class SASRecSettings(EncoderSettings, ScheduleSettings, HistorySettings):
    """Settings of SASRec: histories and negatives."""

    queries: Literal["sequence", "set"] = "sequence"
    """Histories as a sequence (next-item recommendation) or as a set (general recommendation)."""
    ranker_negatives: int = 0
    """Number of random negatives shared by a batch; 0 uses all items."""
    batch_size: int = 256
    """Histories per step; with `queries=set`, items per step."""


def next_items(encoder: HistoryEncoder, histories: Tensor) -> tuple[Tensor, Tensor]:
    """From whole histories [B, T]: the state before each item except the first, [n, D], and the item's row, [n]."""
    numbers = histories[:, :-1]
    seen = histories[:, 1:] > 0
    return encoder.states(numbers, numbers > 0)[seen], histories[:, 1:][seen] - 1


class SASRec(Recommender):
    """Nearest items to the vector of a history."""

    Settings = SASRecSettings
    search_settings = frozenset({"backend", "diversity"})
    settings: SASRecSettings
    model: HistoryEncoder
    vectors: np.ndarray
    """Vectors of the items' texts, or of their users if they have no texts."""
    shape: HistoryShape

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.texts = TextVectors(self.settings)
        self.log: TrainingLog | None = None
        self.start: Start | None = None
        """Where scores begin; None if they begin at nothing."""
        self._items: np.ndarray | None = None

    def learn(self, corpus: Corpus, sequences: Sequences) -> None:
        s, texts, self._items = self.settings, has_texts(corpus), None
        if s.items == "id":
            self.vectors = np.zeros((len(corpus), 0), np.float32)
        elif texts:
            self.vectors = self.texts.documents(corpus, "encoding items")
        else:
            self.vectors = interaction_vectors(sequences, len(corpus), s.seed)
        self.shape = HistoryShape.of(s, s.queries, self.vectors, texts)
        self.start = None
        with seeded(s.seed):
            self.model = self.shape.encoder(self.vectors).to(best_device(s.device))
            self.log = self.train_model(sequences if s.start == "none" else HeldOut.of(sequences, s.seed).rest)
        if s.start != "none":
            self.begin(corpus, sequences, texts)

    def begin(self, corpus: Corpus, sequences: Sequences, texts: bool) -> None:
        """Let scores begin at counts, and choose how far the trained model is trusted beyond them."""
        s, counted = self.settings, count_settings(ordered=self.settings.queries == "sequence")
        vectors = self.vectors if texts and self.vectors.shape[1] else None
        words = word_hashes(document.content for document in corpus) if texts else None

        def count(some: Sequences) -> Counts:
            return Counts.of(some, len(self.vectors), vectors, counted, s.seed, words)

        def ranked(tried: Start, held: HeldOut) -> list[np.ndarray]:
            self.start = tried
            return held.ranked_by(self.scores)

        assert self.log is not None
        self.start = joined(count, sequences, s.rerank, s.seed, self.log, ranked if s.epochs else None)

    def train_model(self, sequences: Sequences) -> TrainingLog:
        s = self.settings
        if s.queries == "sequence":
            histories, targets = sequences.whole(s.history_length + 1), None
        else:
            examples = sequences.general(s.history_length)
            histories, targets = examples.histories, torch.from_numpy(examples.targets)
        numbers, lengths = torch.from_numpy(histories), np.count_nonzero(histories, axis=1)

        def objective(rows: np.ndarray, progress: float) -> dict[str, Tensor]:
            some = numbers[rows].to(self.model.items.trained.device)
            if targets is None:
                states, right = next_items(self.model, some[:, : int(lengths[rows].max())])
                read = Read(states)
            else:
                read, right = self.model(some), targets[rows].to(some.device)
            return {"ranking": ranking_term(read, right, self.model.items, s.ranker_negatives)}

        return train(
            self.model,
            lambda epoch: batches.by_length(lengths, s.batch_size, s.seed, epoch),
            objective,
            epochs=s.epochs,
            steps_per_epoch=batches.steps(len(histories), s.batch_size),
            learning_rate=s.learning_rate,
            schedule=s.schedule,
            warmup=s.warmup,
            weight_decay=lambda name: s.decay_of(name, s.weight_decay),
            phase="training on histories",
            checkpoints=self.checkpoints,
        )

    def scores(self, histories: Sequence[np.ndarray]) -> np.ndarray:
        if self.start is None:
            return self.products(histories)
        scores = self.start.log_weights(histories)
        return scores + self.start.trust * self.products(histories) if self.start.trust else scores

    def diversity(self) -> Diversity | None:
        amount, start = self.settings.diversity, self.start
        if not amount:
            return None
        if start is not None:
            return Diversity(amount, lambda rows: start.counts.outputs[rows])
        return Diversity(amount, lambda rows: self.model.items.all()[rows].detach().cpu().numpy())

    def reasons(self, history: np.ndarray, rows: np.ndarray) -> list[dict[str, object]] | None:
        if self.start is None:
            return None
        return self.start.because(history, rows, [d.doc_id for d in self.documents.rows(history.tolist())])

    @torch.no_grad()
    def products(self, histories: Sequence[np.ndarray]) -> np.ndarray:
        """Inner products of the vectors of histories and of all items, [B, N]."""
        if self._items is None:
            self._items = self.model.items.all().cpu().numpy()
        known = self.model.items.known().cpu().numpy()
        rows = [history[known[history]][-self.shape.longest :] for history in histories]
        table = np.zeros((len(rows), max(map(len, rows), default=0) or 1), np.int64)
        for place, row in enumerate(rows):
            table[place, : len(row)] = row + 1
        vectors = self.model(torch.from_numpy(table).to(self.model.items.trained.device)).vector
        return vectors.cpu().numpy() @ self._items.T

    # A living index.

    def prepare(self, documents: list[Document]) -> Parts:
        if self.vectors.shape[1] and self.shape.texts:
            vectors = self.texts.documents(documents, "encoding items")
        else:
            vectors = np.zeros((len(documents), self.vectors.shape[1]), np.float32)
        return {"vectors": vectors, "words": word_hashes(document.content for document in documents)}

    def extend(self, documents: list[Document], parts: Parts) -> None:
        self.vectors, self._items = np.concatenate([self.vectors, parts["vectors"]]), None
        self.model.items.extend(torch.from_numpy(parts["vectors"]))
        if self.start is not None:
            self.start = self.start.extended(parts["vectors"], words_of(parts))

    def keep(self, rows: np.ndarray) -> None:
        self.vectors, self._items = self.vectors[rows], None
        self.model.items.keep(torch.from_numpy(rows))
        if self.start is not None:
            self.start = self.start.kept(rows)

    def save_files(self, folder: Path) -> None:
        np.save(folder / VECTORS, self.vectors, allow_pickle=False)
        model_files.save_model(folder, self.model, replace(self.shape, count=len(self.vectors)).to_dict())
        model_files.save_log(folder, self.log)
        if self.start is not None:
            self.start.save(folder)

    def load_files(self, folder: Path) -> None:
        self.vectors, self._items = np.load(folder / VECTORS, allow_pickle=False), None
        self.shape = HistoryShape(**model_files.read_shape(folder))
        self.model = self.shape.encoder(self.vectors)
        model_files.load_weights(folder, self.model)
        self.model.to(best_device(self.settings.device)).eval()
        self.log = model_files.load_log(folder)
        self.start = Start.load(folder, ordered=self.shape.kind == "sequence")

    def adjusted(self, names: frozenset[str]) -> None:
        self.texts.adjust(self.settings)
