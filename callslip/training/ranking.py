"""Training of a ranker: which item a query belongs to, told from others by inner products."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from callslip.model.ranker import Ranker
from callslip.training import batches
from callslip.training.losses import sampled_softmax

Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Rows of positives [n] and chance -> rows of negatives [n, M]."""


def ranking_objective(
    ranker: Ranker, queries: Tensor, items: Tensor, rows: np.ndarray, *, temperature: float, noise: float = 0.0
) -> Callable[[tuple[np.ndarray, np.ndarray], float], dict[str, Tensor]]:
    """The objective of batches of (examples, negatives [n, M]): softmax over the positive and its negatives, or, where
    M is 0, over all items. `queries` [n, D] and `items` [N, D] are vectors, `rows` the item of each query."""
    positive = torch.from_numpy(rows).to(items.device)

    def objective(batch: tuple[np.ndarray, np.ndarray], progress: float) -> dict[str, Tensor]:
        numbers, others = (torch.from_numpy(part).to(items.device) for part in batch)
        vectors = queries[numbers]
        if noise:
            vectors = vectors + noise * torch.randn_like(vectors) / vectors.shape[1] ** 0.5
        query, own = ranker.queries(vectors) / temperature, positive[numbers]
        if not others.shape[1]:
            return {"ranking": functional.cross_entropy(query @ ranker.items(items).t(), own)}
        scores = ranker.items(items[torch.cat([own[:, None], others], dim=1)]) @ query[:, :, None]
        return {"ranking": sampled_softmax(scores[:, 0, 0], scores[:, 1:, 0], others == own[:, None])}

    return objective


def with_negatives(
    rows: np.ndarray, draw: Draw, batch_size: int, seed: int
) -> Callable[[int], Iterator[tuple[np.ndarray, np.ndarray]]]:
    """Batches of an epoch: examples, and negatives drawn for each."""

    def drawn(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng([seed, epoch, 2])
        for some in batches.shuffled(len(rows), batch_size, seed, epoch):
            yield some, draw(rows[some], rng)

    return drawn
