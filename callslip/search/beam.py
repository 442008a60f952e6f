"""Beam search over the trie of sorted codes: the model may only write codes that exist.

Batched over queries, on the model's device. A beam is a node of the trie, so its children are a range and no prefix
is ever walked again; only they are scored. A beam that writes END is finished: it is set aside and leaves its place
to another. Ties are broken by node, that is by code, so the same scores always give the same list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from callslip.model.scores import ChildScores, as_scores
from callslip.search.selection import best_candidates, log_sum
from callslip.search.trees import FreeTree, LevelMasks, Tree, tree_of

if TYPE_CHECKING:
    from callslip.identifiers.trie import Trie


class CodeModel(Protocol):
    """What search needs from a model: two verbs. Log-probabilities are a tensor [queries, beams, outputs of the
    level], whose last output is END where codes may be short, or an object that scores the children it is asked
    for. `advance` changes the state; exact search also wants `state.fork()`, a copy that can be advanced alone."""

    def start(self, queries: Any) -> tuple[Any, Tensor | ChildScores]: ...
    def advance(self, state: Any, parents: Tensor, tokens: Tensor) -> Tensor | ChildScores: ...


@dataclass
class Beams:
    """Finished beams of one query, best first."""

    nodes: np.ndarray  # [n] nodes of the trie's last level; -1 after an unconstrained search (`Trie.leaves_of`)
    scores: np.ndarray  # [n] log-probability of the whole code
    levels: np.ndarray  # [n, L] log-probability of each token; 0 after END
    codes: np.ndarray  # [n, L] the tokens, END (-1) after a short code

    def best(self, n: int) -> Beams:
        return Beams(self.nodes[:n], self.scores[:n], self.levels[:n], self.codes[:n])


@dataclass
class _Places:
    """Beams of all queries, [queries, beams]; node -1 marks a place with no beam."""

    node: Tensor
    total: Tensor
    gains: Tensor  # [queries, beams, level]
    tokens: Tensor  # [queries, beams, level]

    def take(self, order: Tensor) -> _Places:
        deep = order[:, :, None].expand(-1, -1, self.gains.shape[2])
        return _Places(
            self.node.gather(1, order),
            self.total.gather(1, order),
            self.gains.gather(1, deep),
            self.tokens.gather(1, deep),
        )

    def where(self, kept: Tensor) -> _Places:
        """The same places, empty where they are not kept."""
        empty = ~kept
        return _Places(
            self.node.masked_fill(empty, -1), self.total.masked_fill(empty, -torch.inf), self.gains, self.tokens
        )

    def first(self, n: int) -> _Places:
        return _Places(self.node[:, :n], self.total[:, :n], self.gains[:, :n], self.tokens[:, :n])


def beam_search(
    model: CodeModel,
    queries: Any,
    trie: Trie | FreeTree,
    beam: int,
    live: Sequence[LevelMasks | None] | None = None,
    *,
    renormalise: bool = False,
) -> list[Beams]:
    """The `beam` best codes for each query.

    `live` says which nodes may be entered, as `Trie.live` gives it: one mask for all queries, or one for each.
    `renormalise` makes the probabilities of the children that may be entered add up to 1 at every node. With a
    `FreeTree` instead of a trie the search is unconstrained, and may write codes that no document has.
    """
    with torch.inference_mode():
        state, first = model.start(queries)
        step = as_scores(first)
        tree = tree_of(trie, step.device, live, step.queries)
        places = _root(step)
        finished: list[_Places] = []
        for level in range(tree.length):
            last = level + 1 == tree.length
            places, parents = _grow(tree, level, places, step, beam, renormalise)
            if last or tree.may_end(level):
                ended, places, parents = _set_aside(places, parents, beam, last)
                finished.append(replace(ended, node=tree.leaf(level, ended.node)))
            if not places.node.shape[1]:  # all are finished, or a mask lets no code through
                finished.append(places)
                break
            step = as_scores(model.advance(state, parents, places.tokens[:, :, -1]))
        return _merged(finished, tree.length, beam)


def _root(step: ChildScores) -> _Places:
    size, device = step.queries, step.device
    empty = torch.zeros((size, 1, 0), device=device)
    return _Places(
        torch.zeros((size, 1), dtype=torch.int64, device=device), torch.zeros((size, 1), device=device), empty,
        empty.long(),
    )  # fmt: skip


def _grow(
    tree: Tree, level: int, places: _Places, step: ChildScores, beam: int, renormalise: bool
) -> tuple[_Places, Tensor]:
    """The best children of all beams of each query, and the place that each continues. Where a code may end here,
    up to `beam` more: those that end will not need a place."""
    size, before = places.node.shape
    owner, child, token = tree.expand(level, places.node)
    gain = step.of(owner, token)
    if renormalise:
        gain = gain - log_sum(gain, owner, size * before)[owner]
    score = places.total.reshape(-1)[owner] + gain
    wanted = 2 * beam if tree.may_end(level) and level + 1 < tree.length else beam
    values, index = best_candidates(score, child, owner // before if size > 1 else None, size, wanted)
    parents = owner[index] - torch.arange(0, size * before, before, device=owner.device)[:, None]
    node = tree.arrive(child, index)
    if size > 1:  # a query may have fewer candidates than another
        empty = values == -torch.inf
        parents, node = parents.masked_fill_(empty, 0), node.masked_fill_(empty, -1)
    deep = parents[:, :, None].expand(-1, -1, level)
    grown = _Places(
        node,
        values,
        torch.cat([places.gains.gather(1, deep), gain[index].unsqueeze(2)], dim=2),
        torch.cat([places.tokens.gather(1, deep), token[index].unsqueeze(2)], dim=2),
    )
    return grown, parents


def _set_aside(places: _Places, parents: Tensor, beam: int, last: bool) -> tuple[_Places, _Places, Tensor]:
    """Separate the beams that are finished (END within the best `beam`, or anything at the last level) from those
    that go on, of which the best `beam` are kept."""
    if last:
        return places, places.first(0), parents[:, :0]
    ending = places.tokens[:, :, -1] < 0
    ended = places.where(ending & (places.node >= 0)).first(beam)
    going = (places.node >= 0) & ~ending
    width = min(beam, int(going.sum(dim=1).max()) if going.numel() else 0)
    order = (~going).to(torch.int8).argsort(dim=1, stable=True)[:, :width]
    on = places.where(going).take(order)
    return ended, on, parents.gather(1, order)


def _merged(finished: list[_Places], length: int, beam: int) -> list[Beams]:
    """The beams that were finished at different levels, as one list for each query."""
    finished = [part for part in finished if part.node.shape[1]] or finished[:1]
    node, total = (torch.cat([getattr(part, name) for part in finished], dim=1) for name in ("node", "total"))
    codes = torch.cat([_filled(part.tokens, length, -1) for part in finished], dim=1)
    gains = torch.cat([_filled(part.gains, length, 0.0) for part in finished], dim=1)
    arrays = [tensor.cpu().numpy() for tensor in (node, total, gains, codes)]
    found = []
    for one in zip(*arrays, strict=True):
        real = np.flatnonzero(one[1] > -np.inf)
        if len(finished) > 1:
            real = real[np.lexsort((*one[3][real].T[::-1], -one[1][real]))]
        found.append(Beams(*(array[real[:beam]] for array in one)))
    return found


def _filled(values: Tensor, length: int, filler: float) -> Tensor:
    return torch.nn.functional.pad(values, (0, length - values.shape[2]), value=filler)
