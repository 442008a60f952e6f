"""SASRec: a dense recommender (Kang and McAuley, 2018). A causal transformer reads the history; its state after the
last item is compared with every item by inner product.

Trained on all places of a history at once: each state against the item that came next. With `queries=set` the history
has no order, and the state of the set is trained against each item that was left out of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from callslip.corpus.documents import Corpus, Document
from callslip.corpus.sequences import Sequences
from callslip.decoders.histories import HistoryEncoder, Read
from callslip.index.histories import HistorySettings, HistoryShape, has_texts, interaction_vectors, ranking_term
from callslip.index.recommender import Recommender
from callslip.runtime.device import best_device
from callslip.settings import check_range
from callslip.storage.rows import Parts
from callslip.training import batches
from callslip.training.loop import TrainingLog, train

if TYPE_CHECKING:
    from callslip.encoders.encoder import Encoder

VECTORS, MODEL, MODEL_SHAPE = "vectors.npy", "model.safetensors", "model.json"


@dataclass(frozen=True)
class SASRecSettings(HistorySettings):
    """SASRec's own: how it is trained."""

    queries: Literal["sequence", "set"] = "sequence"
    """Histories as a sequence (what comes next) or as a set (general recommendation)."""
    encoder: str = "minilm"
    """What makes vectors of items' texts, with `items=text` or `both`; it is not trained."""
    max_length: int | None = None
    """Word pieces read of each text; none is the encoder's own limit."""
    backend: Literal["auto", "torch", "onnx"] = "auto"
    """How the encoder runs: torch in float32, onnx in int8 (extra `onnx`); auto takes int8 on a CPU where it can."""
    ranker_negatives: int = 0
    """Random items that the right one is compared with in training, drawn anew for each batch; 0 is all items."""
    epochs: int = 20
    """Passes over the histories."""
    batch_size: int = 256
    """Histories per step (of sets: items)."""
    learning_rate: float = 2e-3
    """Peak learning rate of AdamW."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    seed: int = 0
    """Random seed of weights and batches."""
    device: str | None = None
    """cpu, cuda, mps; none is the best there is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, epochs=0, batch_size=1, learning_rate=0, weight_decay=0, seed=0)


def next_items(encoder: HistoryEncoder, histories: Tensor) -> tuple[Tensor, Tensor]:
    """Of whole histories [B, T]: the state before each item but the first, [n, D], and the row of that item, [n]."""
    numbers = histories[:, :-1]
    seen = histories[:, 1:] > 0
    return encoder.states(numbers, numbers > 0)[seen], histories[:, 1:][seen] - 1


class SASRec(Recommender):
    """Nearest items to the vector of a history."""

    Settings = SASRecSettings
    search_settings = frozenset({"backend"})
    settings: SASRecSettings
    model: HistoryEncoder
    vectors: np.ndarray
    """Of the items' texts, or of who had them if they have none."""
    shape: HistoryShape

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self._encoder: Encoder | None = None
        self.log: TrainingLog | None = None
        self._items: np.ndarray | None = None

    def encode(self, texts: list[str]) -> np.ndarray:
        from callslip.encoders.encoder import load_encoder
        from callslip.encoders.vector_cache import cached_encode

        s = self.settings
        if self._encoder is None:
            self._encoder = load_encoder(s.encoder, device=s.device, max_length=s.max_length, backend=s.backend)
        return cached_encode(self._encoder, texts, progress="encoding items")

    def learn(self, corpus: Corpus, sequences: Sequences) -> None:
        s, texts, self._items = self.settings, has_texts(corpus), None
        if s.items == "id":
            self.vectors = np.zeros((len(corpus), 0), np.float32)
        elif texts:
            self.vectors = self.encode([d.content for d in corpus])
        else:
            self.vectors = interaction_vectors(sequences, len(corpus), s.seed)
        self.shape = HistoryShape.of(s, s.queries, self.vectors, texts)
        with torch.random.fork_rng(devices=[]):  # the caller's chance is left alone
            torch.manual_seed(s.seed)
            self.model = self.shape.encoder(self.vectors).to(best_device(s.device))
            self.log = self.train_model(sequences)

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
            weight_decay=lambda name: s.decay_of(name, s.weight_decay),
            phase="training on histories",
            checkpoints=self.checkpoints,
        )

    @torch.no_grad()
    def scores(self, histories: Sequence[np.ndarray]) -> np.ndarray:
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

    def _prepare(self, documents: list[Document]) -> Parts:
        if self.vectors.shape[1] and self.shape.texts:
            return {"vectors": self.encode([d.content for d in documents])}
        return {"vectors": np.zeros((len(documents), self.vectors.shape[1]), np.float32)}

    def _extend(self, documents: list[Document], parts: Parts) -> None:
        self.vectors, self._items = np.concatenate([self.vectors, parts["vectors"]]), None
        self.model.items.extend(torch.from_numpy(parts["vectors"]))

    def _keep(self, rows: np.ndarray) -> None:
        self.vectors, self._items = self.vectors[rows], None
        self.model.items.keep(torch.from_numpy(rows))

    def _save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        np.save(folder / VECTORS, self.vectors, allow_pickle=False)
        save_file({name: value.contiguous().cpu() for name, value in self.model.state_dict().items()}, folder / MODEL)
        shape = replace(self.shape, count=len(self.vectors)).to_dict()
        (folder / MODEL_SHAPE).write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")

    def _load(self, folder: Path) -> None:
        from safetensors.torch import load_file

        self.vectors, self._items = np.load(folder / VECTORS, allow_pickle=False), None
        self.shape = HistoryShape(**json.loads((folder / MODEL_SHAPE).read_text(encoding="utf-8")))
        self.model = self.shape.encoder(self.vectors)
        self.model.load_state_dict(load_file(folder / MODEL))
        self.model.to(best_device(self.settings.device)).eval()

    def _adjusted(self, names: frozenset[str]) -> None:
        self._encoder = None
