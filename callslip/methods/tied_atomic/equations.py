"""The two objectives of Tied-Atomic. B examples of a batch, M negatives of each, D the width of states."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from callslip.errors import BadSetting


def contrastive(
    h_query: Tensor, h_positive: Tensor, h_negatives: Tensor, temperature: float = 1.0, known: Tensor | None = None
) -> Tensor:
    """Eq. 2's softmax over the documents of the batch instead of all: the cross-entropy of each query's own document.

    `h_query`, `h_positive` [B, D]; `h_negatives` [B, M, D]. The documents are the B positives and all B·M negatives.
    `known` [B, B + B·M] marks those that answer the query too: they are left out, the query's own positive never.
    """
    _check_states(h_query, h_positive)
    size, width = h_query.shape
    if h_negatives.ndim != 3 or h_negatives.shape[::2] != (size, width):
        raise BadSetting(f"negatives of shape {list(h_negatives.shape)}", f"They must be [{size}, M, {width}].")
    documents = torch.cat([h_positive, h_negatives.flatten(0, 1)])
    scores = h_query @ documents.T / temperature
    own = torch.arange(size, device=scores.device)
    if known is not None:
        if known.shape != scores.shape:
            raise BadSetting(f"known answers of shape {list(known.shape)}", f"They must be {list(scores.shape)}.")
        others = known.bool().clone()
        others[own, own] = False
        scores = scores.masked_fill(others, -torch.inf)
    return functional.cross_entropy(scores, own)


def margin_mse(h_query: Tensor, h_positive: Tensor, h_negative: Tensor, teacher_margin: Tensor) -> Tensor:
    """MarginMSE: mean squared error of q·d⁺ − q·d⁻ against the teacher's margin. States [B, D], margins [B]."""
    _check_states(h_query, h_positive)
    _check_states(h_query, h_negative)
    if teacher_margin.shape != h_query.shape[:1]:
        raise BadSetting(f"margins of shape {list(teacher_margin.shape)}", f"They must be [{len(h_query)}].")
    margin = (h_query * (h_positive - h_negative)).sum(dim=-1)
    return functional.mse_loss(margin, teacher_margin)


def _check_states(h_query: Tensor, h_document: Tensor) -> None:
    if h_query.ndim != 2 or not len(h_query) or h_query.shape != h_document.shape:
        raise BadSetting(
            f"states of queries {list(h_query.shape)} and documents {list(h_document.shape)}",
            "Both must be [B, D], with at least one row.",
        )
