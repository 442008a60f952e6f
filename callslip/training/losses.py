"""Loss terms that more than one method uses: tensors in, a scalar out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def code_cross_entropy(logits: Sequence[Tensor], code: Tensor) -> Tensor:
    """Mean over the batch of the summed cross-entropy of a code's levels.

    `logits`: one [B, outputs] per level; `code` [B, L]. END (-1) is a level's last output; levels after the
    first END are already decided and count nothing.
    """
    if len(logits) != code.shape[1] or any(len(one) != len(code) for one in logits):
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


def sampled_softmax(h_query: Tensor, h_positive: Tensor, h_negatives: Tensor) -> Tensor:
    """The positive [B, D] among itself and M negatives [B, M, D], by inner products with the query [B, D]: URI's ranker
    (section 4.3). The mean of the batch."""
    if h_query.dim() != 2 or h_positive.shape != h_query.shape:
        raise ValueError(f"queries {tuple(h_query.shape)} and positives {tuple(h_positive.shape)} do not fit")
    if h_negatives.dim() != 3 or h_negatives.shape[::2] != h_query.shape:
        raise ValueError(f"queries {tuple(h_query.shape)} and negatives {tuple(h_negatives.shape)} do not fit")
    own = (h_query * h_positive).sum(dim=1, keepdim=True)
    scores = torch.cat([own, (h_negatives @ h_query[:, :, None]).squeeze(2)], dim=1)
    return functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))
