"""A generative retriever whose buckets are ordered by a ranker: inner products of queries and items, trained so that an
item is told from random ones and from those of the leaves beside its own.

Texts: a linear change of the encoder's vectors, trained by itself when the decoder is done. Histories: the vectors of
the history encoder and of its items, trained together with the decoder that reads the same encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from callslip.errors import BadSetting
from callslip.generative import GenerativeRetriever, GenerativeSettings
from callslip.model.unified import Ranker
from callslip.settings import check_range
from callslip.training import batches
from callslip.training.loop import train
from callslip.training.losses import sampled_softmax
from callslip.training.negatives import Siblings

RANKER = "ranker.safetensors"


@dataclass(frozen=True)
class RankedSettings(GenerativeSettings):
    """The ranker's settings."""

    ranker_epochs: int = 5
    """With texts: passes over the training pairs for the ranker; 0 leaves the encoder's own inner product."""
    ranker_learning_rate: float = 1e-3
    """With texts: peak learning rate of the ranker."""
    ranker_softmax: Literal["sampled", "full"] = "sampled"
    """What the right item is told from: `random_negatives` and `hard_negatives`, or all items."""
    random_negatives: int = 9
    """Negatives of each pair that chance draws from all items."""
    hard_negatives: int = 1
    """Negatives of each pair from the leaves beside the right item's own; 0 leaves them out."""
    temperature: float = 0.05
    """With texts: what inner products are divided by in the ranker's softmax."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, ranker_epochs=0, ranker_learning_rate=0, random_negatives=0, hard_negatives=0)
        if self.temperature <= 0:
            raise BadSetting(f"setting 'temperature' is {self.temperature}", "Use more than 0.")
        if self.ranker_softmax == "sampled" and not self.random_negatives + self.hard_negatives:
            raise BadSetting("the ranker has nothing to tell an item from", "Use random_negatives, or hard_negatives.")


class RankedRetriever(GenerativeRetriever):
    """Orders the documents of the buckets by what a ranker has learned."""

    Settings = RankedSettings
    settings: RankedSettings
    ranker: Ranker | None = None

    def with_negatives(
        self, rows: np.ndarray, some: Iterator[np.ndarray], epoch: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Batches of examples, and negatives of each example's item, [n, M]; M is 0 for a softmax over all items."""
        s, count = self.settings, len(self.identifiers)
        sampled = s.ranker_softmax == "sampled" and count > 1
        siblings = Siblings(self.identifiers) if sampled and s.hard_negatives else None
        rng = np.random.default_rng([s.seed, epoch, 2])
        for numbers in some:
            positives = rows[numbers]
            others = np.zeros((len(numbers), 0), np.int64)
            if sampled:
                others = (positives[:, None] + rng.integers(1, count, (len(numbers), s.random_negatives))) % count
            if siblings is not None:
                others = np.concatenate([others, siblings.draw(positives, s.hard_negatives, rng)], axis=1)
            yield numbers, others

    def train_ranker(self, queries: np.ndarray, rows: np.ndarray) -> None:
        """Of texts: `queries` [n, D] are vectors of training texts, `rows` their items."""
        s = self.settings
        self.ranker = Ranker(self.vectors.shape[1])
        if not s.ranker_epochs or len(self.vectors) < 2:
            return
        ranker, items = self.ranker, torch.from_numpy(np.ascontiguousarray(self.vectors))

        def objective(batch: tuple[np.ndarray, np.ndarray], progress: float) -> dict[str, Tensor]:
            own, others = torch.from_numpy(rows[batch[0]]), torch.from_numpy(batch[1])
            query = ranker.queries(self.noisy(torch.from_numpy(queries[batch[0]]))) / s.temperature
            if not others.shape[1]:
                return {"ranking": functional.cross_entropy(query @ ranker.items(items).t(), own)}
            compared = torch.cat([own[:, None], others], dim=1)
            return {"ranking": ranking(query, ranker.items(items[compared]), others == own[:, None])}

        train(
            ranker,
            lambda epoch: self.with_negatives(rows, batches.shuffled(len(rows), s.batch_size, s.seed, epoch), epoch),
            objective,
            epochs=s.ranker_epochs,
            steps_per_epoch=batches.steps(len(rows), s.batch_size),
            learning_rate=s.ranker_learning_rate,
            weight_decay=s.weight_decay,
            phase="training the ranker",
            log=self.log,
            checkpoints=self.checkpoints,
        )

    def history_ranking(self, query: Tensor, rows: np.ndarray, others: np.ndarray) -> Tensor:
        """Of histories: their vectors [n, D], the rows of their items, and negatives [n, M]."""
        items, own, drawn = self.histories.items, torch.from_numpy(rows), torch.from_numpy(others)
        own, drawn = own.to(query.device), drawn.to(query.device)
        if not drawn.shape[1]:
            return functional.cross_entropy(query @ items.all().t(), own)
        return ranking(query, items(torch.cat([own[:, None], drawn], dim=1) + 1), drawn == own[:, None])

    def rank(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Inner products of the ranker's vectors."""
        if self.ranker is None:
            return super().rank(query, rows)
        return self.vectors[rows] @ self.ranker.folded(torch.from_numpy(query)).numpy()

    def _save(self, folder: Path) -> None:
        super()._save(folder)
        if self.ranker is not None:
            save_file(self.ranker.state_dict(), folder / RANKER)

    def _load(self, folder: Path) -> None:
        super()._load(folder)
        self.ranker = None
        if (folder / RANKER).exists():
            self.ranker = Ranker(self.vectors.shape[1])
            self.ranker.load_state_dict(load_file(folder / RANKER))


def ranking(query: Tensor, compared: Tensor, same: Tensor) -> Tensor:
    """URI, section 4.3: sampled softmax of inner products with the query [B, D]; of `compared` [B, 1 + M, D] the first
    is the right item, and `same` [B, M] marks negatives that are it after all."""
    if query.dim() != 2 or compared.dim() != 3 or compared.shape[::2] != query.shape:
        raise ValueError(f"queries {tuple(query.shape)} and items {tuple(compared.shape)} do not fit")
    scores = (compared @ query[:, :, None]).squeeze(2)
    return sampled_softmax(scores[:, 0], scores[:, 1:], same)
