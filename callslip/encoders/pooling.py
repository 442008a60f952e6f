"""Pooling of a transformer's token states to one vector per text."""

from __future__ import annotations

from typing import Any

import torch

from callslip.encoders.pretrained import POOLINGS


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """One vector per row of `states` [b, t, d]; padding (mask 0) is ignored."""
    if pooling == "cls":
        return states[:, 0]
    weights = mask.unsqueeze(-1).to(states.dtype)
    if pooling == "mean":
        return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
    if pooling == "max":
        return states.masked_fill(weights == 0, float("-inf")).amax(dim=1)
    if pooling == "lasttoken":
        last = (mask.sum(dim=1) - 1).clamp(min=0).to(torch.int64)
        return states.gather(1, last[:, None, None].expand(-1, 1, states.shape[-1])).squeeze(1)
    raise ValueError(f"pooling {pooling!r} is not one of {POOLINGS}")


class PooledModel(torch.nn.Module):
    """A transformer, its pooling and the modules after it as one module, so that all are exported."""

    def __init__(self, model: Any, pooling: str, after: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.pooling, self.after = model, pooling, after

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.pooled(self.states(input_ids, attention_mask), attention_mask)

    def states(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The states of all tokens, [b, t, d]."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    def pooled(self, states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The vector of each text, given the states of its tokens; not yet a unit vector."""
        vectors = pool(states, attention_mask, self.pooling)
        return vectors if self.after is None else self.after(vectors)


class WithStates(torch.nn.Module):
    """A pooled model that gives the states of the tokens beside the vectors, from one pass."""

    def __init__(self, model: PooledModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.model.states(input_ids, attention_mask)
        return self.model.pooled(states, attention_mask), states


class Projection(torch.nn.Module):
    """A linear layer after the pooling. A product of matrices, since the quantiser fails on the Gemm node that a
    `Linear` of single vectors is exported to."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(outputs, inputs))
        self.bias = torch.nn.Parameter(torch.zeros(outputs))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors @ self.weight.T + self.bias


class Normalised(torch.nn.Module):
    """Unit vectors, between two other modules."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(vectors, dim=-1)
