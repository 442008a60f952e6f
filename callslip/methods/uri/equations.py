"""URI's equations. B items or queries of a batch, K tokens of the level, M negatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from callslip.training.losses import code_cross_entropy, sampled_softmax

SMALLEST = 1e-9
"""Lower bound of probabilities under a logarithm."""


def e_step(p_item: Tensor, p_query: Tensor) -> Tensor:
    """Eq. 8: H(sg(P_item), P_query). The query learns where its item is; [B, K] both, the mean of the batch."""
    return cross_entropy(p_item.detach(), p_query)


def m_step(p_query: Tensor, p_item: Tensor) -> Tensor:
    """Eq. 9, first part: H(sg(P_query), P_item). The item goes where its queries look for it."""
    return cross_entropy(p_query.detach(), p_item)


def commitment(p_item: Tensor) -> Tensor:
    """Eq. 6: the entropy of each item's distribution [B, K], which draws it to one token; the mean of the batch."""
    return cross_entropy(p_item, p_item)


def balance(p_item: Tensor, adaptive: bool = True) -> Tensor:
    """Eq. 10: the cross-entropy of even use and the mean m of the items' distributions, −Σ_j sg(w_j)/K · log m_j.

    w_j = |log(1/K) − log m_j| + 1 is 1 for a token that is used as it should be; without `adaptive` (Eq. 7) for all.
    """
    _check(p_item)
    k = p_item.shape[1]
    log_use = p_item.mean(dim=0).clamp_min(SMALLEST).log()
    weight = (-torch.log(torch.tensor(float(k))) - log_use).abs() + 1 if adaptive else torch.ones_like(log_use)
    return -(weight.detach() * log_use).sum() / k


def memory(logits: Tensor | Sequence[Tensor], code: Tensor) -> Tensor:
    """Eq. 11: cross-entropy of the tokens that are already given, summed over levels; the mean of the batch.

    `logits`: one [B, K] a level, of a query or of its item; `code` [B, levels]. Without levels it is 0.
    """
    return code_cross_entropy(logits, code)


def cross_entropy(target: Tensor, p: Tensor) -> Tensor:
    """H(target, p) of distributions [B, K]; the mean of the batch."""
    _check(p)
    if target.shape != p.shape:
        raise ValueError(f"distributions of shapes {tuple(target.shape)} and {tuple(p.shape)}")
    return -(target * p.clamp_min(SMALLEST).log()).sum(dim=1).mean()


def _check(p: Tensor) -> None:
    if p.dim() != 2 or 0 in p.shape:
        raise ValueError(f"distributions must be [items, tokens], not {tuple(p.shape)}")


def ranking(query: Tensor, compared: Tensor, same: Tensor) -> Tensor:
    """URI, section 4.3: sampled softmax of inner products with the query [B, D]; of `compared` [B, 1 + M, D] the first
    is the right item, and `same` [B, M] marks negatives that are it after all."""
    if query.dim() != 2 or compared.dim() != 3 or compared.shape[::2] != query.shape:
        raise ValueError(f"queries {tuple(query.shape)} and items {tuple(compared.shape)} do not fit")
    scores = (compared @ query[:, :, None]).squeeze(2)
    return sampled_softmax(scores[:, 0], scores[:, 1:], same)
