"""Loss terms that more than one method uses: tensors in, a scalar out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def code_cross_entropy(logits: Tensor | Sequence[Tensor], code: Tensor) -> Tensor:
    """Mean over the batch of the summed cross-entropy of a code's levels.

    `logits`: [B, L, outputs], or one [B, outputs] per level; `code` [B, L]. END (-1) is a level's last output; levels
    after the first END are masked out.
    """
    if isinstance(logits, Tensor):
        if logits.dim() != 3:
            raise ValueError(f"logits must be [B, L, outputs], not {tuple(logits.shape)}")
        logits = logits.unbind(1)  # iterating over the tensor would iterate over the batch
    if len(logits) != code.shape[1] or any(one.dim() != 2 or len(one) != len(code) for one in logits):
        shapes = [tuple(one.shape) for one in logits]
        raise ValueError(f"logits {shapes} do not fit a code of shape {tuple(code.shape)}")
    total = torch.zeros(len(code), device=code.device)
    open_ = torch.ones(len(code), dtype=torch.bool, device=code.device)
    for level, scores in enumerate(logits):
        token = code[:, level]
        target = torch.where(token < 0, scores.shape[-1] - 1, token)
        total = total + functional.cross_entropy(scores, target, reduction="none") * open_
        open_ = open_ & (token >= 0)
    return total.mean()


def sampled_softmax(positive: Tensor, negative: Tensor, same: Tensor | None = None) -> Tensor:
    """Sampled softmax: cross-entropy of the positive against its negatives, batch mean (Covington et al., 2016).

    `positive` [B] and `negative` [B, M] are scores; `same` [B, M] marks false negatives, which are masked out.
    Uniformly sampled negatives need no logQ correction.
    """
    if positive.dim() != 1 or negative.dim() != 2 or len(negative) != len(positive):
        raise ValueError(f"scores of shapes {tuple(positive.shape)} and {tuple(negative.shape)}")
    if same is not None:
        if same.shape != negative.shape:
            raise ValueError(f"a mask of shape {tuple(same.shape)} for scores of shape {tuple(negative.shape)}")
        negative = negative.masked_fill(same, -torch.inf)
    scores = torch.cat([positive.unsqueeze(1), negative], dim=1)
    return (scores.logsumexp(dim=1) - positive).mean()
