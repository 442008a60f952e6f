"""The ranking loss on inner products of histories and items, for every method that reads histories."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from callslip.decoders.histories import ItemTable, Read
from callslip.training.losses import sampled_softmax


def ranking_term(read: Read, target: Tensor, items: ItemTable, negatives: int) -> Tensor:
    """Softmax cross-entropy of the target item (by row) against random negatives, or against all items if `negatives`
    is 0, by inner product.

    Members of a set are not used as negatives: a set's vector is a mean of its items and similar to each of them, and
    pushing it away from them would waste capacity needed to separate other items.
    """
    query = read.vector
    if not negatives or negatives >= items.count:
        scores = query @ items.all().T
        if read.members is not None:
            others = torch.where(read.members == target.unsqueeze(1) + 1, 0, read.members)
            scores = functional.pad(scores, (1, 0)).scatter(1, others, -torch.inf)[:, 1:]
        return functional.cross_entropy(scores, target)
    drawn = torch.randint(items.count, (negatives,), device=query.device)
    positive = (query * items(target + 1)).sum(dim=1)
    return sampled_softmax(positive, query @ items(drawn + 1).T, no_negatives(read, drawn.unsqueeze(0), target))


def no_negatives(read: Read, drawn: Tensor, target: Tensor) -> Tensor:
    """Which sampled items [1 or n, M] (rows) are false negatives, the target itself or a member of the set; [n, M]."""
    same = drawn == target.unsqueeze(1)
    return same if read.members is None else same | (drawn.unsqueeze(2) + 1 == read.members.unsqueeze(1)).any(dim=2)
