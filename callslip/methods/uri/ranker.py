"""A generative retriever whose buckets are ordered by a ranker: inner products of queries and items, trained so that an
item is told from random ones and from those of the leaves beside its own.

Texts: a linear change of the encoder's vectors, trained by itself when the decoder is done. Histories: the vectors of
the history encoder and of its items, trained together with the decoder that reads the same encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from callslip.corpus.documents import Corpus, Query
from callslip.decoders.histories import Read
from callslip.errors import BadSetting
from callslip.identifiers.quality import average_partition_entropy
from callslip.index.generative import GenerativeRetriever, GenerativeSettings, Inputs
from callslip.index.histories import Batches, no_negatives, ranking_term
from callslip.methods.uri.model import Ranker
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
    ranker_softmax: Literal["sampled", "shared", "full"] = "sampled"
    """What the right item is told from: `random_negatives` and `hard_negatives` of its own, `ranker_negatives` random
    items that a batch shares, or all items."""
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


@dataclass
class Pairs:
    """What is trained on: queries and items as the model reads them, and the item that each query belongs to."""

    queries: Inputs
    rows: np.ndarray
    items: Inputs
    positives: list[np.ndarray]
    """Items that belong to one judged query, for the average partition entropy."""
    batch_size: int = 512
    seed: int = 0
    runs: Batches | None = None
    """Of histories: those that go on with one another, which are read together."""

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return batches.steps(len(self.rows), self.batch_size) if self.runs is None else len(self.runs)

    def order(self, epoch: int) -> Iterator[np.ndarray]:
        """Batches of numbers: of pairs, or of runs of them."""
        if self.runs is None:
            return batches.shuffled(len(self.rows), self.batch_size, self.seed, epoch)
        return self.runs.order(self.seed, epoch)

    def rows_of(self, numbers: np.ndarray) -> np.ndarray:
        """The items of a batch."""
        return self.rows[numbers if self.runs is None else self.runs.examples(numbers)]

    def entropy(self, codes: np.ndarray) -> dict[str, float]:
        """The average partition entropy of codes; nothing where no query has two items, for it would be 0 by itself."""
        told = any(len(some) > 1 for some in self.positives)
        return {"ape": round(average_partition_entropy(codes, self.positives), 4)} if told else {}


class RankedRetriever(GenerativeRetriever):
    """Orders the documents of the buckets by what a ranker has learned."""

    Settings = RankedSettings
    settings: RankedSettings
    ranker: Ranker | None = None

    def pairs(self, corpus: Corpus) -> Pairs:
        """What is trained on: texts or histories, and their items."""
        s, (examples, rows) = self.settings, self.examples(corpus)
        if self.history is not None:
            runs = Batches(self.history, cast(np.ndarray, examples), rows, s.batch_size)
            of_users = corpus.sequences().each()
            return Pairs(examples, rows, np.arange(len(corpus)), of_users, s.batch_size, s.seed, runs)
        items = self.inputs([Query(d.doc_id, d.content) for d in corpus], self.vectors)
        row_of, (_, judged) = corpus.rows(), corpus.split("train")
        positives = [np.array([row_of[d] for d, grade in of.items() if grade > 0], np.int64) for of in judged.values()]
        return Pairs(examples, rows, items, positives, s.batch_size, s.seed)

    def ranker_pairs(self, corpus: Corpus, pairs: Pairs) -> Pairs:
        """Where the decoder reads texts, the ranker has the encoder's vectors of them."""
        if not isinstance(pairs.queries, list):
            return pairs
        asked = self.training_pairs(corpus)
        vectors = self.encode([pair.query for pair in asked], "encoding training texts")
        return replace(pairs, queries=vectors, rows=pairs.rows[: len(asked)])

    def read(self, pairs: Pairs, numbers: np.ndarray) -> Any:
        """The queries of a batch, as the decoder reads them."""
        if pairs.runs is None:
            return self.noisy(self.batch(pairs.queries, numbers))
        return pairs.runs.read(self.histories.encoder, numbers)

    def with_negatives(self, pairs: Pairs, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """An epoch's batches, and negatives of each example's item, [n, M]; M is 0 where they share theirs."""
        s, count = self.settings, len(self.identifiers)
        sampled = s.ranker_softmax == "sampled"
        siblings = Siblings(self.identifiers) if sampled and s.hard_negatives else None
        rng = np.random.default_rng([s.seed, epoch, 2])
        for numbers in pairs.order(epoch):
            rows = pairs.rows_of(numbers)
            others = np.zeros((len(rows), 0), np.int64)
            if sampled:
                others = (rows[:, None] + rng.integers(1, max(2, count), (len(rows), s.random_negatives))) % count
            if siblings is not None:
                others = np.concatenate([others, siblings.draw(rows, s.hard_negatives, rng)], axis=1)
            yield numbers, others

    def train_ranker(self, pairs: Pairs) -> None:
        """Of texts: the pairs' queries are vectors, [n, D]."""
        s, queries, rows = self.settings, cast(np.ndarray, pairs.queries), pairs.rows
        self.ranker = Ranker(self.vectors.shape[1])
        if not s.ranker_epochs or len(self.vectors) < 2:
            return
        ranker, items = self.ranker, torch.from_numpy(np.ascontiguousarray(self.vectors))

        def objective(batch: tuple[np.ndarray, np.ndarray], progress: float) -> dict[str, Tensor]:
            own, others = torch.from_numpy(rows[batch[0]]), torch.from_numpy(batch[1])
            query = ranker.queries(self.noisy(torch.from_numpy(queries[batch[0]]))) / s.temperature
            if s.ranker_softmax != "sampled":
                whole = s.ranker_softmax == "full"
                shared = torch.arange(len(items)) if whole else torch.randint(len(items), (s.ranker_negatives,))
                right = (query * ranker.items(items[own])).sum(dim=1)
                rest = query @ ranker.items(items[shared]).t()
                return {"ranking": sampled_softmax(right, rest, shared == own[:, None])}
            compared = torch.cat([own[:, None], others], dim=1)
            return {"ranking": ranking(query, ranker.items(items[compared]), others == own[:, None])}

        train(
            ranker,
            lambda epoch: self.with_negatives(pairs, epoch),
            objective,
            epochs=s.ranker_epochs,
            steps_per_epoch=len(pairs),
            learning_rate=s.ranker_learning_rate,
            weight_decay=s.weight_decay,
            phase="training the ranker",
            log=self.log,
            checkpoints=self.checkpoints,
        )

    def warm_up(self, pairs: Pairs, epochs: int) -> None:
        """Of histories: the ranker alone."""
        s = self.settings

        def objective(numbers: np.ndarray, progress: float) -> dict[str, Tensor]:
            return {"ranking": self.shared_ranking(self.read(pairs, numbers), pairs.rows_of(numbers))}

        if epochs and s.ranker_weight:
            train(
                self.model,
                pairs.order,
                objective,
                epochs=epochs,
                steps_per_epoch=len(pairs),
                learning_rate=s.learning_rate,
                weight_decay=self.decay,
                decay=False,
                phase="warm-up",
                log=self.log,
                checkpoints=self.checkpoints,
            )

    def shared_ranking(self, query: Read, rows: np.ndarray) -> Tensor:
        """Of histories: the rows of their items, told from items that the batch shares."""
        negatives = 0 if self.settings.ranker_softmax == "full" else self.settings.ranker_negatives
        return ranking_term(query, torch.from_numpy(rows).to(query.vector.device), self.histories.items, negatives)

    def history_ranking(self, query: Read, rows: np.ndarray, others: np.ndarray) -> Tensor:
        """Of histories: the rows of their items, and negatives [n, M] of each."""
        if self.settings.ranker_softmax != "sampled":
            return self.shared_ranking(query, rows)
        own, drawn = (torch.from_numpy(part).to(query.vector.device) for part in (rows, others))
        compared = self.histories.items(torch.cat([own[:, None], drawn], dim=1) + 1)
        return ranking(query.vector, compared, no_negatives(query, drawn, own))

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
