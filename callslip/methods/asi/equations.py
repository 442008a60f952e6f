"""The equations of ASI and ASI++. B texts of a batch, L levels, K tokens of each, D the size of vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from callslip.training.losses import code_cross_entropy

LEAST_PROBABILITY = 1e-9
NEAREST = 1e-6
"""Lower bound of squared distances and variances: two equal texts, or a constant dimension, would outweigh all
others."""


def code_distance(p: Tensor, r: Tensor) -> Tensor:
    """Squared Euclidean distances of probabilities [B, L, K], summed over levels, [B]. At most 2 L; between codes,
    twice the number of levels where they differ."""
    _check_probabilities(p, r)
    return (p - r).square().sum(dim=(1, 2))


def discrete_contrastive(p_query: Tensor, p_doc: Tensor, margin: float = 3.0, known: Tensor | None = None) -> Tensor:
    """Eq. 1: the code of query i must be nearer to that of document i than to that of any other document of the batch,
    by a margin. The mean over all pairs i ≠ j of max(0, D(q_i, d_i) − D(q_i, d_j) + margin), but for those where
    `known` [B, B] says that document j answers query i as well."""
    _check_probabilities(p_query, p_doc)
    _check_known(known, len(p_query))
    q, d = p_query.flatten(1), p_doc.flatten(1)
    away = q.square().sum(dim=1)[:, None] + d.square().sum(dim=1) - 2 * q @ d.t()
    hinge = (away.diagonal()[:, None] - away + margin).clamp_min(0)
    return _mean_of_others(hinge, known)


def generation_loss(logits: Tensor | Sequence[Tensor], code: Tensor) -> Tensor:
    """Eq. 2: cross-entropy of the document's code, summed over levels; the mean of the batch."""
    return code_cross_entropy(logits, code)


def distribution_density(p: Tensor, as_printed: bool = False) -> Tensor:
    """Eq. 5: a text must not be sure of what its neighbours, the others of the batch, are coded as.

    The reverse cross-entropy of row i against row j is, per level, the mean of −log p_i over all tokens but that of j;
    it is summed over levels and averaged over j. Row i weighs 1 minus its mean distance from the codes of the others
    (a share of the largest); `as_printed` takes the distance itself.
    """
    _check_probabilities(p, p)
    size, length, width = p.shape
    if size < 2:
        return p.sum() * 0.0
    code = p.argmax(dim=2)
    # How many of the batch have each token, and from it what is said of all pairs: no [B, B] array is made.
    counts = functional.one_hot(code, width).to(p.dtype).sum(dim=0)
    with torch.no_grad():
        same = counts.gather(1, code.t()).t() - 1  # others that share the token, [B, L]
        distance = 1 - same.sum(dim=1) / (length * (size - 1))
    logs = p.clamp_min(LEAST_PROBABILITY).log()
    own = logs.gather(2, code[:, :, None]).squeeze(2)
    neighbours = ((logs * counts).sum(dim=2) - own) / (size - 1)  # mean over j of log p_i at the token of j
    reverse = -(logs.sum(dim=2) - neighbours).sum(dim=1) / max(1, width - 1)
    return ((distance if as_printed else 1 - distance) * reverse).mean()


def bottleneck(
    e_query: Tensor, e_doc: Tensor, gamma: float = 0.05, temperature: float = 1.0, known: Tensor | None = None
) -> Tensor:
    """Eq. 6: each query's own document among those of the batch, by inner products of unit vectors [B, D], and gamma
    times the mean inverse squared distance between documents and between queries. Documents j that answer query i as
    well, `known` [B, B], are not among them."""
    if e_query.shape != e_doc.shape or e_query.dim() != 2:
        raise ValueError(f"vectors of shapes {tuple(e_query.shape)} and {tuple(e_doc.shape)}")
    _check_known(known, len(e_query))
    own = torch.arange(len(e_query), device=e_query.device)
    scores = e_query @ e_doc.t() / temperature
    if known is not None:
        scores = scores.masked_fill(known & _others(scores), -torch.inf)
    matching = functional.cross_entropy(scores, own)
    if not gamma:
        return matching
    return matching + gamma * (_crowding(e_doc) + _crowding(e_query))


def information_bottleneck(mean: Tensor, log_variance: Tensor, beta: float = 0.01) -> Tensor:
    """Eq. 9: beta times the divergence of each text's Gaussian from one that all share, whose moments are those of the
    batch's means. `mean`, `log_variance` [B, D]; summed over D, the mean of the batch."""
    if mean.shape != log_variance.shape or mean.dim() != 2:
        raise ValueError(f"moments of shapes {tuple(mean.shape)} and {tuple(log_variance.shape)}")
    with torch.no_grad():
        centre, spread = mean.mean(dim=0), mean.var(dim=0, correction=0).clamp_min(NEAREST)
    ratio = (log_variance.exp() + (mean - centre).square()) / spread
    return beta * 0.5 * (spread.log() - log_variance + ratio - 1).sum(dim=1).mean()


def criteria_weight(epochs_done: float, start: float = 0.01, end: float = 0.25) -> float:
    """λ: from `start` to `end` over the first epoch."""
    return start + (end - start) * min(1.0, epochs_done)


def _crowding(e: Tensor) -> Tensor:
    squares = e.square().sum(dim=1)
    apart = (squares[:, None] + squares - 2 * e @ e.t()).fill_diagonal_(1.0)
    return _mean_of_others(1 / apart.clamp_min(NEAREST))


def _mean_of_others(pairs: Tensor, left_out: Tensor | None = None) -> Tensor:
    """The mean of a square array without its diagonal and what is left out; 0 if there is nothing else."""
    others = _others(pairs) if left_out is None else _others(pairs) & ~left_out
    return (pairs * others).sum() / others.sum().clamp_min(1)


def _others(pairs: Tensor) -> Tensor:
    """All places of a square array but those of its diagonal."""
    return ~torch.eye(len(pairs), dtype=torch.bool, device=pairs.device)


def _check_known(known: Tensor | None, size: int) -> None:
    if known is not None and known.shape != (size, size):
        raise ValueError(f"known answers are [{size}, {size}], not {tuple(known.shape)}")


def _check_probabilities(p: Tensor, r: Tensor) -> None:
    if p.shape != r.shape or p.dim() != 3:
        raise ValueError(f"probabilities are [B, L, K], not {tuple(p.shape)} and {tuple(r.shape)}")
