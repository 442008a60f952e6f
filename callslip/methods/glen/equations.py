"""GLEN's equations. B texts, L levels, V words, D the width of embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from callslip.training.losses import code_cross_entropy

HARD = 1e-5
"""The temperature that annealing ends at."""


def keyword_loss(logits: Tensor | Sequence[Tensor], code: Tensor) -> Tensor:
    """Eq. 4: cross-entropy of the keywords, summed over levels; `logits` [B, L, V], `code` [B, L]."""
    return code_cross_entropy(logits, code)


def identifier_embedding(h: Tensor, embeddings: Tensor, temperature: float, support: Tensor | None = None) -> Tensor:
    """Eq. 6: r = softmax(h E^T / temperature) E, the code as an embedding, differentiable; [B, L, D].

    `h` [B, L, D], `embeddings` [V, D]. With `support` [B, L, S] the softmax runs over those words alone.
    """
    if h.dim() != 3 or embeddings.dim() != 2 or h.shape[-1] != embeddings.shape[-1]:
        raise ValueError(f"states {tuple(h.shape)} and embeddings {tuple(embeddings.shape)} do not fit")
    if temperature <= 0 or (support is not None and support.shape[:2] != h.shape[:2]):
        raise ValueError(f"a temperature of {temperature}, or words for other states than {tuple(h.shape)}")
    if support is None:
        return (h @ embeddings.T / temperature).softmax(-1) @ embeddings
    some = functional.embedding(support, embeddings)  # [B, L, S, D]
    share = ((some @ h.unsqueeze(-1)).squeeze(-1) / temperature).softmax(-1)
    return (share.unsqueeze(-2) @ some).squeeze(-2)


def relevance(h_query: Tensor, r_doc: Tensor) -> Tensor:
    """Eq. 6: rel(q, d), the sum over levels of q_t · r_t; [Bq, L, D] and [Bd, L, D] -> [Bq, Bd]."""
    if h_query.dim() != 3 or r_doc.dim() != 3 or h_query.shape[1:] != r_doc.shape[1:]:
        raise ValueError(f"states {tuple(h_query.shape)} and identifiers {tuple(r_doc.shape)} do not fit")
    return h_query.flatten(1) @ r_doc.flatten(1).T


def pairwise_ranking(relevance_matrix: Tensor, positives: Tensor) -> Tensor:
    """Eq. 5: cross-entropy of each query's document among all documents of the batch, [Bq, Bd]; mean over queries.

    `positives` [Bq] is the column of each query's document; or bool [Bq, Bd] marks all that answer the query: each of
    them is distinguished from those that do not, and their mean is the query's loss.
    """
    size = relevance_matrix.shape
    if positives.dtype != torch.bool:
        if relevance_matrix.dim() != 2 or positives.shape != size[:1]:
            raise ValueError(f"positives {tuple(positives.shape)} of relevances {tuple(size)}")
        return functional.cross_entropy(relevance_matrix, positives)
    if positives.shape != size or not bool(positives.any(dim=1).all()):
        raise ValueError(f"positives {tuple(positives.shape)} of relevances {tuple(size)}, at least one in each row")
    others = relevance_matrix.masked_fill(positives, -torch.inf).logsumexp(dim=1, keepdim=True)
    losses = torch.logaddexp(relevance_matrix, others) - relevance_matrix
    return (losses.masked_fill(~positives, 0).sum(dim=1) / positives.sum(dim=1)).mean()


def pointwise_retrieval(
    logits: Tensor | Sequence[Tensor], code: Tensor, w_query: Tensor, w_doc: Tensor, weight: float = 0.5
) -> Tensor:
    """Eq. 7: cross-entropy of the document's code given the query, plus `weight` times the cosine distance of the
    identifier weights w_t = h_t · e_(z_t); `logits` [B, L, V], `code`, `w_query` and `w_doc` [B, L]."""
    if not w_query.shape == w_doc.shape == code.shape:
        raise ValueError(f"weights {tuple(w_query.shape)} and {tuple(w_doc.shape)} of codes {tuple(code.shape)}")
    distance = 1 - functional.cosine_similarity(w_query, w_doc, dim=-1)
    return keyword_loss(logits, code) + weight * distance.mean()


def annealed_temperature(epoch: float) -> float:
    """Section 3.3.2: max(1e-5, exp(-epoch)), counted from 0."""
    return max(HARD, math.exp(-epoch))


def identifier_weights(h: Tensor, embeddings: Tensor, code: Tensor) -> Tensor:
    """Eq. 7: w_t = h_t · e_(z_t); [B, L, D] and codes [B, L] -> [B, L]."""
    if h.shape[:2] != code.shape:
        raise ValueError(f"states {tuple(h.shape)} of codes {tuple(code.shape)}")
    return (h * functional.embedding(code, embeddings)).sum(dim=-1)


def weight_cosine(w_query: np.ndarray, w_docs: np.ndarray) -> np.ndarray:
    """Eq. 9: cos(w^q, w^d), [n]; `w_query` is [L], or [n, L] where documents have different codes."""
    if w_docs.ndim != 2 or w_query.shape not in (w_docs.shape, w_docs.shape[1:]):
        raise ValueError(f"weights {w_query.shape} of the query and {w_docs.shape} of documents do not fit")
    length = np.linalg.norm(w_query, axis=-1) * np.linalg.norm(w_docs, axis=-1)
    return (w_query * w_docs).sum(axis=-1) / np.maximum(length, 1e-12)


def collision_order(w_query: Any, w_docs: Any) -> Any:
    """Eq. 9: documents of one bucket by the cosine of their identifier weights [n, L] with the query's [L], best
    first, ties by row. Tensors give a tensor, arrays an array."""
    order = np.argsort(-weight_cosine(np.asarray(w_query), np.asarray(w_docs)), kind="stable")
    return torch.from_numpy(order) if isinstance(w_docs, Tensor) else order
