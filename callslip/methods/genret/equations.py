"""GenRet's equations. B documents of a batch, D the model's width, K tokens of a level, T the level that is learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from callslip.identifiers.kmeans import constrained_kmeans
from callslip.identifiers.levels import group_means
from callslip.training.losses import code_cross_entropy

CLUSTERED = 20_000
"""Maximum number of documents that a codebook is made from: a transport problem of more takes minutes and gigabytes."""


def reconstruction(z: Tensor, d: Tensor, same_prefix: Tensor) -> Tensor:
    """Eq. 6 and 8 at the level that is learned: which document of the same prefix does row z_i of the codebook mean?

    `z`, `d` [B, D]; `same_prefix` [B, B] tells which documents share the earlier tokens. Softmax over them of
    z_i · sg(d_j), target j = i; the mean over the batch.
    """
    size = len(z)
    if z.shape != d.shape or z.dim() != 2 or same_prefix.shape != (size, size):
        raise ValueError(f"{tuple(z.shape)}, {tuple(d.shape)} and {tuple(same_prefix.shape)} do not fit")
    own = torch.eye(size, dtype=torch.bool, device=z.device)
    scores = (z @ d.detach().t()).masked_fill(~(same_prefix.bool() | own), -torch.inf)
    return functional.cross_entropy(scores, torch.arange(size, device=z.device))


def straight_through(d: Tensor, codebook: Tensor, token: Tensor) -> Tensor:
    """The codebook's row of each token [B, D]; backward, its gradient goes to d and to that row alike."""
    if d.dim() != 2 or codebook.dim() != 2 or d.shape[1] != codebook.shape[1] or token.shape != d.shape[:1]:
        raise ValueError(f"{tuple(d.shape)}, {tuple(codebook.shape)} and {tuple(token.shape)} do not fit")
    return codebook[token] + d - d.detach()


def commitment(logits: Tensor | Sequence[Tensor], code: Tensor) -> Tensor:
    """Eq. 9: cross-entropy of the document's own tokens, summed over the levels up to T; the mean of the batch."""
    return code_cross_entropy(logits, code)


def retrieval(h_query: Tensor, h_doc: Tensor, logits: Tensor | Sequence[Tensor], code: Tensor) -> Tensor:
    """Eq. 10: each query's own document among those of the batch, by products of states of level T [B, D], and the
    cross-entropy of its document's tokens, summed over the levels up to T; means of the batch."""
    if h_query.shape != h_doc.shape or h_query.dim() != 2:
        raise ValueError(f"states of shapes {tuple(h_query.shape)} and {tuple(h_doc.shape)}")
    ranking = functional.cross_entropy(h_query @ h_doc.t(), torch.arange(len(h_query), device=h_query.device))
    return ranking + code_cross_entropy(logits, code)


def reassigned(scores: Tensor, shares: Tensor, epsilon: float = 1.0) -> Tensor:
    """Section 3.3.2: H* = Diag(u) exp(H/ε) Diag(v), in place of H in the softmax of Eq. 3. `scores` are H, [B, K], and
    `shares` the values of H* by Sinkhorn; u and v are constants, so that the gradient is that of exp(H/ε)."""
    if scores.shape != shares.shape or scores.dim() != 2:
        raise ValueError(f"scores {tuple(scores.shape)} and shares {tuple(shares.shape)} do not fit")
    return shares.detach().to(scores.dtype) * ((scores - scores.detach()) / epsilon).exp()


def initial_codebook(states: np.ndarray, groups: np.ndarray, k: int, seed: int = 0) -> np.ndarray:
    """Section 3.3.2: k centroids [k, D] of states [N, D], each freed from the mean of its group (documents of one
    prefix) and given that of all, by k-means whose clusters are neither tiny nor huge."""
    centred = states - group_means(states, groups)[groups] + states.mean(axis=0)
    if len(centred) > CLUSTERED:
        centred = centred[np.random.default_rng(seed).choice(len(centred), CLUSTERED, replace=False)]
    n = len(centred)
    if n <= k:  # a token for each, and others that no state is near to
        rng = np.random.default_rng(seed)
        more = centred[rng.integers(0, n, k - n)] + rng.normal(0, centred.std() + 1e-3, (k - n, states.shape[1]))
        return np.concatenate([centred, more]).astype(np.float32)
    least, most = min(n // (2 * k), k // 4), max(2 * k, -(-2 * n // k))
    return constrained_kmeans(centred, k, least, most, seed)[1]
