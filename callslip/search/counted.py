"""A code model that begins at prior probabilities of items: the score of a code is its prior times the model's, to the
power of a trust.

Codes are kept sorted, so the items below a prefix are a slice, and the prior probability of a prefix is a difference of
one cumulative sum: no prefix is ever walked.
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


@dataclass
class CountedState:
    """The model's state, the cumulative prior of each query, [B, N + 1], and the nodes of its beams, [B, beams]."""

    inner: Any
    cumulative: np.ndarray
    nodes: np.ndarray
    written: int = 0

    def fork(self) -> CountedState:
        inner = None if self.inner is None else self.inner.fork()
        return CountedState(inner, self.cumulative, self.nodes, self.written)


class PrefixSums:
    """Prior probabilities of the nodes of a trie."""

    def __init__(self, identifiers: Identifiers) -> None:
        trie = identifiers.trie()
        self.rows, self.length = identifiers.rows, trie.length
        self.documents = [trie.documents(level) for level in range(trie.length)]
        self.below = [offsets.all() for offsets in trie.below]
        self.tokens = [tokens.astype(np.int64) for tokens in trie.tokens]
        self._spans = [int(tokens.max(initial=0)) + 2 for tokens in self.tokens]
        # Nodes of a level are sorted by parent and token, so one search finds the child of any node by its token.
        self._keys = [trie.parents(level) * self._spans[level] + self.tokens[level] + 1 for level in range(trie.length)]

    def cumulative(self, log_weights: np.ndarray) -> np.ndarray:
        """Sums of the prior over the documents before each sorted position, [B, N + 1]; the last is 1."""
        weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))[:, self.rows]
        sums = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights, axis=1, dtype=np.float64)], axis=1)
        return sums / sums[:, -1:]

    def log_mass(self, cumulative: np.ndarray, level: int, query: np.ndarray, node: np.ndarray) -> np.ndarray:
        """log p0 of nodes of a level, each for its query."""
        bounds = self.documents[level]
        return np.log(np.maximum(cumulative[query, bounds[node + 1]] - cumulative[query, bounds[node]], 1e-300))

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


class CountedWriter:
    """Has the two operations of search. A trust of 0 leaves the model out, so that codes are ranked by the prior."""

    def __init__(self, model: Any, prior: LogWeights, identifiers: Identifiers, trust: float) -> None:
        self.model, self.prior, self.trust = model, prior, trust
        self.sums = PrefixSums(identifiers)
        self.length, self.with_end = self.sums.length, bool(model.with_end)

    def start(self, queries: Any) -> tuple[CountedState, Tensor]:
        """log p0(token) + trust · log-probability of the first level, [B, 1, outputs]."""
        inner, scores = self.model.start(queries) if self.trust else (None, None)
        sums = self.sums.cumulative(self.prior(queries))
        state = CountedState(inner, sums, np.zeros((len(sums), 1), np.int64))
        return state, self._scores(state, scores)

    def advance(self, state: CountedState, parents: Tensor, tokens: Tensor) -> Tensor:
        """Append one token to each beam: the same of the next level, given each beam's prefix, [B, beams, outputs]."""
        scores = self.model.advance(state.inner, parents, tokens) if self.trust else None
        before = np.take_along_axis(state.nodes, parents.cpu().numpy(), axis=1)
        state.nodes = self.sums.child(state.written, before, tokens.cpu().numpy())
        state.written += 1
        return self._scores(state, scores)

    def _scores(self, state: CountedState, scores: Tensor | None) -> Tensor:
        level, (queries, beams) = state.written, state.nodes.shape
        nodes, query = state.nodes.reshape(-1), np.repeat(np.arange(queries), beams)
        owner, child = self.sums.children(level, nodes)
        found = self.sums.log_mass(state.cumulative, level, query[owner], child)
        if level:
            found -= self.sums.log_mass(state.cumulative, level - 1, query, nodes)[owner]
        outputs = self.model.widths[level] + int(self.with_end)
        prior = np.full((len(nodes), outputs), -np.inf, np.float32)
        prior[owner, self.sums.tokens[level][child]] = found  # END (-1) is the last output
        dense = torch.from_numpy(prior.reshape(queries, beams, outputs))
        device = next(self.model.parameters()).device
        return dense.to(device) if scores is None else dense.to(device) + self.trust * scores
