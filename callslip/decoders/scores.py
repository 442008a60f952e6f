"""Scores of a level, as `start` and `advance` return them if a tensor of log-probabilities would be too large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class ChildScores(Protocol):
    """Scores of one level for every beam, computed for the requested children."""

    @property
    def normalised(self) -> bool:
        """Whether the scores are log-probabilities."""

    @property
    def queries(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    def of(self, owner: Tensor, token: Tensor) -> Tensor:
        """Scores of `token` after the beam at flat index `owner`; END is -1."""


@dataclass
class DenseScores:
    """Log-probabilities of all outputs of the level, [queries, beams, outputs]; the last output may be END."""

    values: Tensor
    normalised: bool = True

    @property
    def queries(self) -> int:
        return self.values.shape[0]

    @property
    def device(self) -> torch.device:
        return self.values.device

    def of(self, owner: Tensor, token: Tensor) -> Tensor:
        outputs = self.values.shape[-1]
        # remainder maps END (-1) to the last output
        return self.values.reshape(-1).take(token.remainder(outputs).add_(owner, alpha=outputs))


@dataclass
class SparseScores:
    """Logits of a large vocabulary, computed only for the requested children.

    The logits are not normalised, so the search normalises over the children.
    """

    hidden: Tensor  # [queries, beams, width]
    table: Tensor  # [vocabulary, width]; the last row may be END
    normalised: bool = False

    @property
    def queries(self) -> int:
        return self.hidden.shape[0]

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    def of(self, owner: Tensor, token: Tensor) -> Tensor:
        size = len(self.table)
        states = self.hidden.flatten(0, 1)
        # Gathering a row costs about four times as much as a row of a matrix product.
        if 4 * len(token) > len(states) * size:
            return DenseScores((states @ self.table.t())[:, None]).of(owner, token)
        token = token.remainder(size)
        chunk = max(1, 2**22 // states.shape[1])
        parts = [
            torch.linalg.vecdot(states[owner[at : at + chunk]], self.table[token[at : at + chunk]])
            for at in range(0, len(token), chunk)
        ]
        return torch.cat(parts) if parts else states.new_zeros(0)


def as_scores(scores: Tensor | ChildScores) -> ChildScores:
    return DenseScores(scores) if isinstance(scores, Tensor) else scores
