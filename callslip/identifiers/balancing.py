"""Balanced assignment of tokens: soft by Sinkhorn iterations, hard by a capacity for each token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.errors import BadSetting

if TYPE_CHECKING:
    import torch

LOGARITHMIC = 5
"""Number of iterations in log space before those on the transport plan itself."""


def sinkhorn(scores: torch.Tensor, epsilon: float = 1.0, iterations: int = 100) -> torch.Tensor:
    """Diag(u) exp(S / epsilon) Diag(v): rows sum to 1 and columns to B / K, [B, K] in float64.

    Works in log space, so a small epsilon neither overflows nor divides by zero. Rows are scaled last and
    are exact; columns converge. Gradients flow through all iterations.
    """
    import torch

    scores = torch.as_tensor(scores)
    if scores.ndim != 2 or 0 in scores.shape:
        raise BadSetting(f"scores must be [documents, tokens], not {tuple(scores.shape)}")
    if epsilon <= 0 or iterations < 1:
        raise BadSetting(f"Sinkhorn needs epsilon > 0 and at least one iteration, not {epsilon} and {iterations}")
    log_plan = scores.double() / epsilon
    for _ in range(iterations):
        # Columns are scaled to 1 instead of B / K: scaling the rows next cancels any common factor.
        log_plan = log_plan - torch.logsumexp(log_plan, dim=0, keepdim=True)
        log_plan = log_plan - torch.logsumexp(log_plan, dim=1, keepdim=True)
    return log_plan.exp()


def column_potentials(scores: torch.Tensor, iterations: int = 100) -> torch.Tensor:
    """Column potentials of Sinkhorn, [K] in float64: the row-wise softmax of `scores` plus the potentials equals
    `sinkhorn(scores)`, at the cost of matrix-vector products.

    A few iterations in log space bring the potentials close to the solution: the resulting plan has rows that sum to 1
    and columns that nearly do, so the remaining iterations work on the plan itself without over- or underflow.
    """
    import torch

    scores = scores.double()
    share = -torch.logsumexp(scores, dim=0)
    early = min(iterations, LOGARITHMIC)
    for _ in range(early - 1):
        rows = torch.logsumexp(scores + share, dim=1, keepdim=True)
        share = -torch.logsumexp(scores - rows, dim=0)
    rest = iterations - early
    if rest > 0:
        plan = (scores + share).softmax(dim=1)
        v = torch.ones_like(share)
        for _ in range(rest):
            u = 1 / (plan @ v).clamp_min(1e-300)
            v = 1 / (plan.t() @ u).clamp_min(1e-300)
        share = share + v.log()
    return share


def balanced_assignment(p: Any, capacity: int | None = None) -> np.ndarray:
    """Assign one token to each item, and at most `capacity` items (N / K rounded up by default) to a token;
    [N].

    The greedy algorithm visits (item, token) pairs from the highest probability down, breaks ties by item and then
    token, and gives an item the first token that is not full. This implementation avoids visiting all N x K pairs:
    until a token fills up, every item gets its best open token, so each round runs until the next token is full.
    """
    p = np.asarray(p.detach().cpu() if hasattr(p, "detach") else p, dtype=np.float64)
    if p.ndim != 2 or p.shape[1] < 1 or np.isnan(p).any():
        raise BadSetting(f"probabilities must be [items, tokens] without NaN, not of shape {p.shape}")
    n, k = p.shape
    room = np.full(k, -(-n // k) if capacity is None else int(capacity))
    if room.sum() < n:
        raise BadSetting(f"{k} tokens of capacity {capacity} cannot hold {n} items", f"Allow {-(-n // k)} or more.")
    assigned = np.full(n, -1, np.int64)
    open_tokens = np.flatnonzero(room > 0)
    waiting = np.arange(n)
    best = open_tokens[p[:, open_tokens].argmax(axis=1)] if n else waiting
    while len(waiting):
        order = np.lexsort((waiting, -p[waiting, best]))
        waiting, best = waiting[order], best[order]
        by_token = np.argsort(best, kind="stable")
        first = np.searchsorted(best[by_token], open_tokens)
        fills = first + room[open_tokens] - 1  # position in by_token of the item that fills each token
        last = np.append(first[1:], len(by_token))
        full = fills < last
        stop = int(by_token[fills[full]].min()) + 1 if full.any() else len(waiting)
        assigned[waiting[:stop]] = best[:stop]
        room -= np.bincount(best[:stop], minlength=k)
        waiting, best = waiting[stop:], best[stop:]
        open_tokens = np.flatnonzero(room > 0)
        again = room[best] == 0
        if again.any():
            best[again] = open_tokens[p[np.ix_(waiting[again], open_tokens)].argmax(axis=1)]
    return assigned
