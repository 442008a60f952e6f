"""URI's ranker (Section 4.3): inner products of queries and items order the documents of the beam's buckets.

For texts it is a linear map of the encoder's vectors, trained once the codes are frozen. For histories it is the
history encoder itself, trained together with the decoder that reads the same encoder; or, as in the paper, an encoder
of its own, trained after the decoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from callslip.index.readers import with_noise
from callslip.methods.uri.equations import ranking
from callslip.methods.uri.model import Ranker
from callslip.training.batches import Examples, HistoryExamples, TextExamples
from callslip.training.item_ranking import no_negatives, ranking_term
from callslip.training.loop import train
from callslip.training.losses import sampled_softmax
from callslip.training.negatives import Siblings

if TYPE_CHECKING:
    from callslip.corpus.documents import Corpus
    from callslip.decoders.histories import HistoryEncoder, ItemTable, Read
    from callslip.index.readers import HistoryReader
    from callslip.methods.uri.method import URI

RANKER = "ranker.safetensors"


def with_negatives(index: URI, examples: Examples, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """An epoch's batches, and negatives of each example's item, [n, M]; M is 0 where a batch shares its negatives."""
    s, count = index.settings, len(index.identifiers)
    sampled = s.ranker_softmax == "sampled"
    siblings = Siblings(index.identifiers) if sampled and s.hard_negatives else None
    rng = np.random.default_rng([s.seed, epoch, 2])
    for numbers in examples.order(s.seed, epoch):
        rows = examples.rows_of(numbers)
        others = np.zeros((len(rows), 0), np.int64)
        if sampled:
            others = (rows[:, None] + rng.integers(1, max(2, count), (len(rows), s.random_negatives))) % count
        if siblings is not None:
            others = np.concatenate([others, siblings.draw(rows, s.hard_negatives, rng)], axis=1)
        yield numbers, others


class TextRanker:
    """Orders documents by the inner products of mapped vectors. Untrained, it is the encoder's own inner product."""

    def __init__(self, dim: int) -> None:
        self.maps = Ranker(dim)

    def train(self, index: URI, corpus: Corpus, examples: Examples) -> None:
        s = index.settings
        if not s.ranker_epochs or len(index.vectors) < 2:
            return
        examples = self.examples(index, corpus, examples)
        queries, rows, maps = np.asarray(examples.inputs), examples.rows, self.maps
        items = torch.from_numpy(np.ascontiguousarray(index.vectors))

        def objective(batch: tuple[np.ndarray, np.ndarray], progress: float) -> dict[str, Tensor]:
            own, others = torch.from_numpy(rows[batch[0]]), torch.from_numpy(batch[1])
            query = maps.queries(with_noise(torch.from_numpy(queries[batch[0]]), s.noise)) / s.temperature
            if s.ranker_softmax == "sampled":
                compared = torch.cat([own[:, None], others], dim=1)
                return {"ranking": ranking(query, maps.items(items[compared]), others == own[:, None])}
            whole = s.ranker_softmax == "full"
            shared = torch.arange(len(items)) if whole else torch.randint(len(items), (s.ranker_negatives,))
            right = (query * maps.items(items[own])).sum(dim=1)
            rest = query @ maps.items(items[shared]).t()
            return {"ranking": sampled_softmax(right, rest, shared == own[:, None])}

        train(
            maps,
            lambda epoch: with_negatives(index, examples, epoch),
            objective,
            epochs=s.ranker_epochs,
            steps_per_epoch=len(examples),
            learning_rate=s.ranker_learning_rate,
            schedule=s.schedule,
            warmup=s.warmup,
            weight_decay=s.weight_decay,
            phase="training the ranker",
            log=index.log,
            checkpoints=index.checkpoints,
        )

    def examples(self, index: URI, corpus: Corpus, examples: Examples) -> Examples:
        """The decoder's examples; where it reads token ids, the vectors of the training texts instead."""
        if isinstance(examples.inputs, np.ndarray):
            return examples
        pairs = index.training_pairs(corpus)
        vectors = index.texts.training(pairs.texts)
        return TextExamples(vectors, examples.rows[: len(pairs)], index.settings.batch_size)

    def scores(self, query: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Inner products of a query's vector [dim] with documents' [n, dim]."""
        return documents @ self.maps.folded(torch.from_numpy(query)).numpy()

    def save(self, folder: Path) -> None:
        save_file(self.maps.state_dict(), folder / RANKER)

    def load(self, folder: Path) -> None:
        self.maps.load_state_dict(load_file(folder / RANKER))


class HistoryRanker:
    """The inner products of history and item vectors, as terms of the decoder's training."""

    def __init__(self, index: URI, encoder: HistoryEncoder | None = None) -> None:
        self.index, self.settings, self._encoder = index, index.settings, encoder

    @property
    def items(self) -> ItemTable:
        """The item vectors that are trained: those of the decoder's encoder, unless another one is given."""
        return self.index.model.items if self._encoder is None else self._encoder.items

    def warm_up(self, examples: Examples) -> None:
        """Train the ranker alone, before the first level."""
        s = self.settings

        def objective(numbers: np.ndarray, progress: float) -> dict[str, Tensor]:
            read = self.index.reader.read(examples, numbers)
            return {"ranking": self.shared_negatives(read, examples.rows_of(numbers))}

        def batches(epoch: int) -> Iterator[np.ndarray]:
            return examples.order(s.seed, epoch)

        if s.warmup_epochs and s.ranker_weight:
            more: dict[str, Any] = {"decay": False, "share": None}
            self.index.train(batches, objective, len(examples), s.warmup_epochs, "warm-up", **more)

    def shared_negatives(self, query: Read, rows: np.ndarray) -> Tensor:
        """The loss of the items `rows` against random items that the batch shares, or against all."""
        negatives = 0 if self.settings.ranker_softmax == "full" else self.settings.ranker_negatives
        target = torch.from_numpy(rows).to(query.vector.device)
        return ranking_term(query, target, self.items, negatives)

    def own_negatives(self, query: Read, rows: np.ndarray, others: np.ndarray) -> Tensor:
        """The loss of the items `rows` against negatives [n, M] of their own, if the settings give them any."""
        if self.settings.ranker_softmax != "sampled":
            return self.shared_negatives(query, rows)
        own, drawn = (torch.from_numpy(part).to(query.vector.device) for part in (rows, others))
        compared = self.items(torch.cat([own[:, None], drawn], dim=1) + 1)
        return ranking(query.vector, compared, no_negatives(query, drawn, own))


class OwnRanker:
    """Trains, saves and loads the encoder of histories that a reader ranks with and that the decoder does not read."""

    def __init__(self, index: URI, reader: HistoryReader) -> None:
        assert reader.ranking_encoder is not None
        self.index, self.settings, self.encoder = index, index.settings, reader.ranking_encoder

    def train(self, examples: Examples) -> None:
        s, index, loss = self.settings, self.index, HistoryRanker(self.index, self.encoder)

        def objective(batch: tuple[np.ndarray, np.ndarray], progress: float) -> dict[str, Tensor]:
            read = cast(HistoryExamples, examples).read(self.encoder, batch[0])
            return {"ranking": loss.own_negatives(read, examples.rows_of(batch[0]), batch[1])}

        train(
            self.encoder,
            lambda epoch: with_negatives(index, examples, epoch),
            objective,
            epochs=s.ranker_epochs,
            steps_per_epoch=len(examples),
            learning_rate=s.ranker_learning_rate,
            weight_decay=lambda name: s.decay_of(name, s.weight_decay),
            phase="training the ranker",
            log=index.log,
            checkpoints=index.checkpoints,
        )
        index.reader.forget_vectors()

    def save(self, folder: Path) -> None:
        save_file({k: v.contiguous().cpu() for k, v in self.encoder.state_dict().items()}, folder / RANKER)

    def load(self, folder: Path) -> None:
        self.encoder.load_state_dict(load_file(folder / RANKER))
        self.encoder.eval()
