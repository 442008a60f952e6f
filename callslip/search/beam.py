"""Beam search over the trie of sorted codes: the model may only write codes that exist.

Batched over queries. A beam is a node of the trie, so its children are a range and no prefix is ever walked
again. Ties are broken by node, that is by code, so the same scores always give the same list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from callslip.identifiers.trie import Trie


class CodeModel(Protocol):
    """What search needs from a model: two verbs."""

    def start(self, queries: Any) -> tuple[Any, Tensor]: ...
    def advance(self, state: Any, parents: Tensor, tokens: Tensor) -> Tensor: ...


@dataclass
class Beams:
    """Finished beams of one query, best first: leaf nodes of the trie, their scores, and the score of each level."""

    nodes: np.ndarray  # [n] nodes of the last level
    scores: np.ndarray  # [n] log-probability of the whole code
    levels: np.ndarray  # [n, L] log-probability of each token


def beam_search(
    model: CodeModel, queries: Tensor, trie: Trie, beam: int, live: list[np.ndarray] | None = None
) -> list[Beams]:
    """The `beam` best codes for each query. `live`, one boolean array per level, says which nodes may be entered."""
    import torch

    with torch.inference_mode():
        state, scores = model.start(queries)
        size = len(queries)
        node = np.zeros((size, 1), dtype=np.int64)  # the root; -1 marks a place with no beam
        total = np.zeros((size, 1), dtype=np.float64)
        history = np.zeros((size, 1, 0), dtype=np.float64)
        for level in range(trie.length):
            step = scores.double().cpu().numpy()
            children = _children(trie, level, node, live)
            node, parents, tokens, gained, total = _select(trie, level, node, total, step, children, beam)
            history = np.concatenate(
                [np.take_along_axis(history, parents[:, :, None], axis=1), gained[:, :, None]], axis=2
            )
            if level + 1 < trie.length:
                device = scores.device
                scores = model.advance(state, torch.from_numpy(parents).to(device), torch.from_numpy(tokens).to(device))
    return [Beams(n[n >= 0], t[n >= 0], h[n >= 0]) for n, t, h in zip(node, total, history, strict=True)]


def _children(trie: Trie, level: int, node: np.ndarray, live: list[np.ndarray] | None) -> tuple[np.ndarray, np.ndarray]:
    """For all beams, flattened: the place of the beam that each child continues, and the child's node."""
    places = np.flatnonzero(node.ravel() >= 0)
    parents = node.ravel()[places]
    if level == 0:
        first, last = np.zeros(len(places), dtype=np.int64), np.full(len(places), len(trie.tokens[0]), dtype=np.int64)
    else:
        bounds = trie.children[level - 1]
        first, last = bounds[parents].astype(np.int64), bounds[parents + 1].astype(np.int64)
    counts = last - first
    owner = np.repeat(places, counts)
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    child = np.repeat(first, counts) + offsets
    if live is not None:
        kept = live[level][child]
        owner, child = owner[kept], child[kept]
    return owner, child


def _select(
    trie: Trie,
    level: int,
    node: np.ndarray,
    total: np.ndarray,
    step: np.ndarray,
    children: tuple[np.ndarray, np.ndarray],
    beam: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The best `beam` children of each query: nodes, the beams they continue, tokens, their own and total scores."""
    size, before = node.shape
    owner, child = children
    query, place = np.divmod(owner, before)
    token = trie.tokens[level][child].astype(np.int64)
    ended = token < 0
    gain = step[query, place, token]  # END is -1, and the model's last output
    if ended.any() and level > 0:
        # What follows an END is END again, which costs nothing: the code was finished before.
        already = np.zeros(len(child), dtype=bool)
        already[ended] = trie.tokens[level - 1][node.ravel()[owner[ended]]] < 0
        gain = np.where(already, 0.0, gain)
    score = total[query, place] + gain
    order = np.lexsort((child, -score, query))
    rank = np.arange(len(order)) - np.searchsorted(query[order], query[order], side="left")
    kept = order[rank < beam]
    seat = rank[rank < beam]
    width = int(seat.max()) + 1 if len(seat) else 1

    def seated(values: np.ndarray, empty: float, kind: Any) -> np.ndarray:
        table = np.full((size, width), empty, dtype=kind)
        table[query[kept], seat] = values[kept]
        return table

    return (
        seated(child, -1, np.int64),
        seated(place, 0, np.int64),
        seated(token, 0, np.int64),
        seated(gain, 0.0, np.float64),
        seated(score, -np.inf, np.float64),
    )
