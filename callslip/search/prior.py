"""A code model that begins at prior probabilities of documents, or of the items of a log: the score of a code is the
prior of its best document times the model's probability, to the power of a trust.

The prior of a prefix is that of the best document below it. Without trust in the model, a beam of n codes therefore
holds the n best documents of the prior: no prefix that leads to one of them is ever pruned. (With the sum over the
documents below, full branches would push out those that hold one good document.) Codes are kept sorted, so the
documents below a prefix are a slice, and all maxima of a level are one pass over those of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from callslip.identifiers.table import Identifiers

LogWeights = Callable[[Any], np.ndarray]
"""Queries -> log prior of every item, by row and up to a constant of each query, [B, N]."""
LEAST = -690.0
"""Least log prior, so that differences stay finite."""


@dataclass
class PriorState:
    """The model's state, log priors of the nodes of each level, [B, nodes], and the nodes of beams, [B, beams]."""

    inner: Any
    best: list[np.ndarray]
    nodes: np.ndarray
    written: int = 0

    def fork(self) -> PriorState:
        inner = None if self.inner is None else self.inner.fork()
        return PriorState(inner, self.best, self.nodes, self.written)


class PrefixPriors:
    """Prior probabilities of the nodes of a trie."""

    def __init__(self, identifiers: Identifiers) -> None:
        trie = identifiers.trie()
        self.rows, self.length = identifiers.rows, trie.length
        self.below = [offsets.all() for offsets in trie.below]
        self.tokens = [tokens.astype(np.int64) for tokens in trie.tokens]
        self._spans = [int(tokens.max(initial=0)) + 2 for tokens in self.tokens]
        # Nodes of a level are sorted by parent and token, so one search finds the child of any node by its token.
        self._keys = [trie.parents(level) * self._spans[level] + self.tokens[level] + 1 for level in range(trie.length)]

    def best(self, log_weights: np.ndarray) -> list[np.ndarray]:
        """The log prior of the best item below every node, [B, nodes] for each level."""
        top = log_weights.max(axis=1, keepdims=True)
        total = top + np.log(np.exp(log_weights - top).sum(axis=1, keepdims=True))
        found = np.maximum(log_weights - total, LEAST)[:, self.rows]
        levels = []
        for bounds in reversed(self.below):
            found = np.maximum.reduceat(found, bounds[:-1], axis=1)
            levels.append(found)
        return levels[::-1]

    def child(self, level: int, parent: np.ndarray, token: np.ndarray) -> np.ndarray:
        """The node of a level below each parent by its token. Any node stands for a child that there is not."""
        found = np.searchsorted(self._keys[level], parent * self._spans[level] + token + 1)
        return np.minimum(found, len(self._keys[level]) - 1)

    def children(self, level: int, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The children, at `level`, of nodes of the level before: the index of the parent, and the child."""
        if level == 0:
            count = len(self.tokens[0])
            return np.repeat(np.arange(len(nodes)), count), np.tile(np.arange(count), len(nodes))
        first, last = self.below[level - 1][nodes], self.below[level - 1][nodes + 1]
        counts = last - first
        owner = np.repeat(np.arange(len(nodes)), counts)
        return owner, np.arange(len(owner)) + np.repeat(last - np.cumsum(counts), counts)


class PriorWriter:
    """Has the two operations of search. A trust of 0 leaves the model out, so that codes are ranked by the prior."""

    def __init__(self, model: Any, prior: LogWeights, identifiers: Identifiers, trust: float) -> None:
        self.model, self.prior, self.trust = model, prior, trust
        self.priors = PrefixPriors(identifiers)
        self.length, self.with_end = self.priors.length, bool(model.with_end)

    def start(self, queries: Any) -> tuple[PriorState, Tensor]:
        """log p0(token) + trust · log-probability of the first level, [B, 1, outputs]."""
        inner, scores = self.model.start(queries) if self.trust else (None, None)
        weights = self.prior(queries)
        state = PriorState(inner, self.priors.best(weights), np.zeros((len(weights), 1), np.int64))
        return state, self._scores(state, scores)

    def advance(self, state: PriorState, parents: Tensor, tokens: Tensor) -> Tensor:
        """Append one token to each beam: the same of the next level, given each beam's prefix, [B, beams, outputs]."""
        scores = self.model.advance(state.inner, parents, tokens) if self.trust else None
        before = np.take_along_axis(state.nodes, parents.cpu().numpy(), axis=1)
        state.nodes = self.priors.child(state.written, before, tokens.cpu().numpy())
        state.written += 1
        return self._scores(state, scores)

    def _scores(self, state: PriorState, scores: Tensor | None) -> Tensor:
        level, (queries, beams) = state.written, state.nodes.shape
        nodes, query = state.nodes.reshape(-1), np.repeat(np.arange(queries), beams)
        owner, child = self.priors.children(level, nodes)
        found = state.best[level][query[owner], child]
        if level:
            found = found - state.best[level - 1][query, nodes][owner]
        outputs = self.model.widths[level] + int(self.with_end)
        prior = np.full((len(nodes), outputs), -np.inf, np.float32)
        prior[owner, self.priors.tokens[level][child]] = found  # END (-1) is the last output
        dense = torch.from_numpy(prior.reshape(queries, beams, outputs))
        device = next(self.model.parameters()).device
        return dense.to(device) if scores is None else dense.to(device) + self.trust * scores
