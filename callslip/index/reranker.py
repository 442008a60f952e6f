"""The reranker: a small network that reorders the first items of the counts, trained on what the counts lacked.

It sees no item, only what the sources say of one for a history, each by itself: rules from the last item and from
all, what followed the last item, factors, texts, words, popularity. Those numbers mean the same for every item, so it
needs few examples and holds for items and users that it was not trained on. The examples are histories whose next item
was left out of the counts, as it is when somebody searches; the loss is a softmax over the first items, of
log p0 + network, and the network begins at zero: it learns what the counts lack, not everything anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from callslip.index import neighbours
from callslip.index.counts import Counts
from callslip.index.item_words import ItemWords
from callslip.runtime.device import seeded
from callslip.runtime.progress import track

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from callslip.training.log import TrainingLog

RERANKER = "reranker.safetensors"
FEATURES = (
    "log p0", "rules", "rules, last", "rules, last but one", "rules, sum", "followed the last", "share with a rule",
    "factors", "factors, last", "factors, sum", "texts", "texts, last", "texts, mean", "texts, nearest",
    "words", "words, last", "words, mean", "words, nearest", "users", "in the history",
    "length of the history", "rank", "users of the first",
)  # fmt: skip
"""What the network sees of an item and a history."""
RECENT = 20
"""Number of items of a history that are compared with others one by one: the last ones."""
SMALL = 0.01
"""Added to scores before their logarithm is taken."""
LIMIT = 5.0
"""Features are standardised, and at most so far from their mean."""
LEAST = 0.02
"""A feature with a smaller standard deviation is left out: nothing was learned of its other values."""
WIDTH, EPOCHS, BATCH, LEARNING_RATE = 32, 8, 64, 3e-3
EXAMPLES, FEWEST = 20_000, 300
"""At most so many users give an example; with fewer usable examples than `FEWEST` nothing is trained."""
BLOCK = 64

Products = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""States [B, D] and rows [B, K] -> inner products of each state with the outputs of its rows, [B, K]."""


@dataclass(frozen=True)
class Evidence:
    """What counts say of an item for a history, source by source."""

    counts: Counts
    products: Products | None = None
    """Inner products with the outputs of the items, if the counts do not have them."""

    @cached_property
    def words(self) -> ItemWords:
        return ItemWords(self.counts.words)

    @cached_property
    def linked(self) -> csr_matrix:
        """1 where there is a rule, [N, N]."""
        found = self.counts.rules.copy()
        found.data = np.ones_like(found.data)
        return found

    def features(self, histories: Sequence[np.ndarray], rows: np.ndarray, p0: np.ndarray) -> np.ndarray:
        """What the network sees of items, [B, K, features], given as rows with their log p0, [B, K] each, in the order
        of log p0. Histories that are sets have no last item: all of their items take its place."""
        counts, decay = self.counts, self.counts.settings.decay
        ordered, recent = decay < 1, [history[-RECENT:] for history in histories]

        def asked(some: Sequence[np.ndarray], decay: float = 1.0) -> csr_matrix:
            return neighbours.history_matrix(some, len(counts), decay)

        def of(matrix: csr_matrix, asked: csr_matrix) -> np.ndarray:
            return np.take_along_axis((asked @ matrix).toarray(), rows, axis=1)

        whole, each = asked(histories, decay), asked(recent)
        last = asked([history[-1:] for history in recent]) if ordered else each
        before = asked([history[-2:-1] for history in recent]) if ordered else each
        lengths = np.array([max(1, len(history)) for history in recent])[:, None]
        users = np.log1p(counts.users[rows])
        columns = [
            p0 - p0[:, :1],
            *(logarithm(of(counts.rules, some)) for some in (whole, last, before, each)),
            logarithm(of(counts.following, last)),
            of(self.linked, each) / lengths,
            *(logarithm(self.factors(some, rows)) for some in (whole, last, each)),
            *self.by_item(recent, rows),
            users,
            np.stack([np.isin(some, history) for some, history in zip(rows, histories, strict=True)]),
            np.log(lengths),
            np.log1p(np.arange(rows.shape[1])),
            users.mean(axis=1, keepdims=True),
        ]
        return np.stack([np.broadcast_to(column, rows.shape) for column in columns], axis=-1).astype(np.float32)

    def factors(self, asked: csr_matrix, rows: np.ndarray) -> np.ndarray:
        """Inner products of histories and items by factors alone, [B, K]."""
        counts, used = self.counts, np.unique(asked.indices)
        inputs = counts.inputs[used].astype(np.float32)
        inputs[:, inputs.shape[1] - len(counts.centre) :] = 0
        states = np.asarray(asked[:, used] @ inputs)
        if self.products is not None:
            return self.products(states, rows)
        return np.einsum("bd,bkd->bk", states, counts.outputs[rows].astype(np.float32), optimize=True)

    def by_item(self, histories: Sequence[np.ndarray], rows: np.ndarray) -> Iterator[np.ndarray]:
        """Similarities of items with those of the histories, by texts and then by words: decayed, with the last, their
        mean, and the largest."""
        counts, texts = self.counts, len(self.counts.centre)
        compared = counts.inputs[:, counts.inputs.shape[1] - texts :]
        others = compared[rows].astype(np.float32)
        ages = max(map(len, histories), default=0)
        similar = np.zeros((2, ages, *rows.shape), np.float32)
        there = np.zeros((ages, len(histories)))
        for age in range(ages):
            some = np.array([n for n, history in enumerate(histories) if len(history) > age], np.int64)
            items = np.array([histories[n][-1 - age] for n in some], np.int64)
            own = compared[items].astype(np.float32)
            similar[0, age, some] = np.einsum("bd,bkd->bk", own, others[some], optimize=True)
            similar[1, age, some] = self.words.similarities(items, rows[some])
            there[age, some] = 1
        decayed = counts.settings.decay ** np.arange(ages)
        mean = there / np.maximum(there.sum(axis=0), 1)
        for source in similar:
            whole = np.einsum("a,abk->bk", decayed, source)
            average = np.einsum("ab,abk->bk", mean, source)
            last = source[0] if ages and counts.settings.decay < 1 else average
            yield from (whole, last, average, source.max(axis=0, initial=0))


def logarithm(scores: np.ndarray) -> np.ndarray:
    return np.log(SMALL + np.maximum(scores, 0))


def first_rows(log_weights: np.ndarray, depth: int) -> np.ndarray:
    """The `depth` rows with the largest weights, in their order, [B, depth]."""
    depth = min(depth, log_weights.shape[1])
    rows = np.argpartition(-log_weights, depth - 1, axis=1)[:, :depth]
    order = np.argsort(-np.take_along_axis(log_weights, rows, axis=1), axis=1, kind="stable")
    return np.take_along_axis(rows, order, axis=1)


@dataclass(frozen=True)
class Reranker:
    """Adds to log p0 of the first items of a history what a network makes of the evidence."""

    depth: int
    """Number of items that are reordered."""
    sharpness: float
    """Factor on log p0 before the network's number is added."""
    centre: np.ndarray
    """The mean of each feature in training."""
    spread: np.ndarray
    """The standard deviation of each feature."""
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    """Weights [out, in] and offsets of each layer of the network."""

    def added(
        self, evidence: Evidence, histories: Sequence[np.ndarray], log_weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows that are reordered, and what is added to their log weights, [B, depth] each; the total probability
        of a history's rows stays as it was. An empty history has no evidence, and its items stay as they are."""
        rows = first_rows(log_weights, self.depth)
        p0 = np.take_along_axis(log_weights, rows, axis=1)
        found = np.empty(p0.shape)
        for start in range(0, len(rows), BLOCK):
            part = slice(start, start + BLOCK)
            seen = self.standardised(evidence.features(histories[part], rows[part], p0[part]))
            found[part] = self.sharpness * p0[part] + self.network(seen)
        added = found + log_sum(p0) - log_sum(found) - p0
        added[[n for n, history in enumerate(histories) if not len(history)]] = 0.0
        return rows, added

    def standardised(self, seen: np.ndarray) -> np.ndarray:
        return np.clip((seen - self.centre) / self.spread, -LIMIT, LIMIT)

    def network(self, values: np.ndarray) -> np.ndarray:
        """The network's number for standardised features, [B, K]."""
        *inner, (weights, offsets) = self.layers
        for hidden, bias in inner:
            values = np.maximum(values @ hidden.T + bias, 0)
        return (values @ weights.T + offsets)[..., 0]

    def save(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        parts = {"depth": np.array([self.depth]), "sharpness": np.array([self.sharpness])}
        parts |= {"centre": self.centre, "spread": self.spread}
        for number, (weights, offsets) in enumerate(self.layers):
            parts |= {f"weights.{number}": weights, f"offsets.{number}": offsets}
        save_file({name: np.ascontiguousarray(part) for name, part in parts.items()}, folder / RERANKER)

    @classmethod
    def load(cls, folder: Path) -> Reranker | None:
        """What `save` wrote; None if nothing was."""
        from safetensors.numpy import load_file

        if not (folder / RERANKER).exists():
            return None
        parts = load_file(folder / RERANKER)
        layers = [(parts[f"weights.{n}"], parts[f"offsets.{n}"]) for n in range((len(parts) - 4) // 2)]
        return cls(
            int(parts["depth"][0]), float(parts["sharpness"][0]), parts["centre"], parts["spread"], tuple(layers)
        )


def log_sum(values: np.ndarray) -> np.ndarray:
    """log of the sum of exponentials along the last axis, which is kept."""
    top = values.max(axis=-1, keepdims=True)
    return top + np.log(np.exp(values - top).sum(axis=-1, keepdims=True))


# Training.


@dataclass(frozen=True)
class Examples:
    """Histories whose next item is among the first of the counts."""

    seen: np.ndarray
    """Features, float32 [n, K, features]."""
    p0: np.ndarray
    """log p0 relative to the first item, [n, K]."""
    right: np.ndarray
    """The place of the next item, [n]."""


def examples_of(
    evidence: Evidence,
    log_weights: Callable[[Sequence[np.ndarray]], np.ndarray],
    histories: Sequence[np.ndarray],
    targets: np.ndarray,
    depth: int,
) -> Examples:
    """The examples among histories and their next items, which the counts have not seen."""
    seen, p0, right = [], [], []
    for start in track(range(0, len(histories), BLOCK), "reading examples"):
        some, wanted = histories[start : start + BLOCK], targets[start : start + BLOCK]
        weights = log_weights(some)
        rows = first_rows(weights, depth)
        hit, place = np.nonzero(rows == wanted[:, None])
        rows, known = rows[hit], np.take_along_axis(weights[hit], rows[hit], axis=1)
        seen.append(evidence.features([some[n] for n in hit.tolist()], rows, known))
        p0.append(known - known[:, :1])
        right.append(place)
    return Examples(np.concatenate(seen), np.concatenate(p0).astype(np.float32), np.concatenate(right))


def trained(examples: Examples, seed: int, log: TrainingLog) -> Reranker | None:
    """A reranker of these examples; None if they are too few."""
    import torch
    from torch import nn
    from torch.nn import functional

    from callslip.training.loop import train

    if len(examples.right) < FEWEST:
        return None
    centre, spread = examples.seen.mean(axis=(0, 1)), examples.seen.std(axis=(0, 1))
    spread = np.where(spread < LEAST, np.inf, spread).astype(np.float32)
    begin = Reranker(examples.p0.shape[1], 1.0, centre, spread, ())
    values, p0 = torch.from_numpy(begin.standardised(examples.seen)), torch.from_numpy(examples.p0)
    right, count = torch.from_numpy(examples.right), len(examples.right)

    def batches(epoch: int) -> list[np.ndarray]:
        order = np.random.default_rng([seed, epoch]).permutation(count)
        return np.array_split(order, steps)

    def objective(batch: np.ndarray, progress: float) -> dict[str, torch.Tensor]:
        scores = sharpness * p0[batch] + network(values[batch])[..., 0]
        return {"reranking": functional.cross_entropy(scores, right[batch])}

    steps = -(-count // BATCH)
    with seeded(seed):
        inner = [nn.Linear(len(FEATURES), WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        last, sharpness = nn.Linear(WIDTH, 1), nn.Parameter(torch.ones(()))
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        network = nn.Sequential(*inner, last)
        network.register_parameter("sharpness", sharpness)
        train(
            network,
            batches,
            objective,
            epochs=EPOCHS,
            steps_per_epoch=steps,
            learning_rate=LEARNING_RATE,
            phase="training the reranker",
            log=log,
        )
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    arrays = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in linear]
    return replace(begin, sharpness=float(sharpness.detach()), layers=tuple(arrays))
