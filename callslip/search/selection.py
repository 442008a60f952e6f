"""Deterministic top-k selection of each query's candidates."""

from __future__ import annotations

import torch
from torch import Tensor

from callslip.errors import CallslipError


def best_candidates(score: Tensor, key: Tensor, query: Tensor | None, size: int, n: int) -> tuple[Tensor, Tensor]:
    """The n best candidates of each query, best first, ties by key: scores [size, m] and positions in `score`.
    Candidates are ordered by query; unused slots have score -inf and position 0."""
    if query is None:
        starts = None
        table, keys = score[None], key[None]
    else:
        counts = torch.bincount(query, minlength=size)
        starts = counts.cumsum(0) - counts
        widest = int(counts.max()) if len(query) else 0
        at = torch.arange(len(query), device=query.device) - starts[query] + query * widest
        table = score.new_full((size, widest), -torch.inf)
        table.view(-1)[at] = score
        keys = None
    most = min(n + 1, table.shape[1])
    values, index = torch.topk(table, most, dim=1)
    # Strictly descending scores have no ties to break, which is the case in nearly every search.
    if most < 2 or not bool((values[:, :-1] > values[:, 1:]).all()):
        check_numbers(values)
        if bool(((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)).any()):
            if keys is None:
                keys = key.new_full(table.shape, torch.iinfo(key.dtype).max)
                keys.view(-1)[at] = key
            by_key = keys.argsort(dim=1)
            order = table.gather(1, by_key).argsort(dim=1, descending=True, stable=True)
            index = by_key.gather(1, order)[:, :most]
            values = table.gather(1, index)
    values, index = values[:, :n], index[:, :n]
    if starts is not None:
        index = (index + starts[:, None]).masked_fill_(values == -torch.inf, 0)
    return values, index


def check_numbers(scores: Tensor) -> None:
    """Reject NaN scores, which would be sorted arbitrarily and go unnoticed."""
    if bool(scores.isnan().any()):
        raise CallslipError("the model's scores are NaN", "Its training diverged: fit again.")


def log_sum(gain: Tensor, owner: Tensor, count: int) -> Tensor:
    """log of the sum of exp(gain) over the candidates of each owner."""
    highest = gain.new_full((count,), -torch.inf).scatter_reduce_(0, owner, gain, "amax")
    highest = highest.masked_fill_(highest == -torch.inf, 0)  # all children of the owner are impossible
    total = gain.new_zeros(count).index_add_(0, owner, (gain - highest[owner]).exp())
    return total.masked_fill_(total == 0, 1).log() + highest
