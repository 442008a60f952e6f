"""Constrained beam search over the trie of sorted codes: the model can only write codes that exist.

Search is batched over queries and runs on the model's device. A beam is a node of the trie, so its children are a
range, prefixes are never traversed again, and only children are scored. A beam that writes END is finished: it is set
aside and frees its slot. Ties are broken by node, that is by code, so search is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from callslip.decoders.scores import ChildScores, DenseScores, as_scores
from callslip.errors import BadSetting
from callslip.search.beam_numpy import is_single, search_one
from callslip.search.observer import OBSERVER
from callslip.search.selection import best_candidates, log_sum
from callslip.search.trees import FreeTree, LevelMasks, Tree, TrieTree, check_fit, tree_of

if TYPE_CHECKING:
    from callslip.identifiers.trie import Trie


class CodeModel(Protocol):
    """The interface that search needs from a model. Log-probabilities are a tensor [queries, beams, outputs of the
    level], whose last output is END if codes may be short, or an object that scores the requested children. `advance`
    changes the state; exact search also needs `state.fork()`, an independent copy."""

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
    """Beams of all queries, [queries, beams]; node -1 marks an empty slot."""

    node: Tensor
    total: Tensor


@dataclass
class _Level:
    """The candidates chosen at a level, [queries, chosen], and which of them continue: back-pointers of the codes."""

    parents: Tensor  # slots of the previous level
    tokens: Tensor
    gains: Tensor
    onward: Tensor | None = None  # [queries, slots]: indices among the chosen; None if all continue


@dataclass
class _Ended:
    """Finished codes: their indices among the chosen of their level, with leaf node and score."""

    level: int
    chosen: Tensor
    leaf: Tensor
    total: Tensor


def beam_search(
    model: CodeModel,
    queries: Any,
    trie: Trie | FreeTree,
    beam: int,
    live: LevelMasks | Sequence[LevelMasks | None] | None = None,
    *,
    renormalise: bool | None = None,
) -> list[Beams]:
    """The `beam` best codes for each query.

    `live` restricts the nodes that may be visited: the masks of `Trie.live`, for all queries, or a list with one (or
    None) per query. `renormalise` normalises the probabilities over the allowed children of every node; None does so
    only if the model's scores are not log-probabilities. With a `FreeTree` instead of a trie the search is
    unconstrained, and may write codes that no document has.
    """
    if beam < 1:
        raise BadSetting(f"the beam size is {beam}", "Use at least 1.")
    if not len(queries):
        return []
    with torch.inference_mode():
        state, first = model.start(queries)
        step = as_scores(first)
        renormalise = not step.normalised if renormalise is None else renormalise
        tree = tree_of(trie, step.device, live, step.queries)
        check_fit(model, tree)
        watch = OBSERVER.get()
        if is_single(tree, step) and not renormalise:
            masks = cast(TrieTree, tree).one_mask()
            one = search_one(model.advance, state, cast(DenseScores, step), cast("Trie", trie), masks, beam, watch)
            return [Beams(*one)]
        zero = torch.zeros((step.queries, 1), device=step.device)
        places = _Places(zero.long(), zero)
        levels: list[_Level] = []
        ended: list[_Ended] = []
        for level in range(tree.length):
            last = level + 1 == tree.length
            places, chosen = _grow(tree, level, places, step, beam, renormalise)
            levels.append(chosen)
            if watch is not None:
                watch(level, places.node, places.total)
            if last or tree.may_end(level):
                finished, places = _set_aside(places, chosen, beam, last)
                finished.level, finished.leaf = level, tree.leaf(level, finished.leaf)
                ended.append(finished)
            if last or not places.node.shape[1]:  # all beams are finished, or the mask allows no code
                break
            parents, tokens = chosen.parents, chosen.tokens
            if chosen.onward is not None:
                parents, tokens = parents.gather(1, chosen.onward), tokens.gather(1, chosen.onward)
            step = as_scores(model.advance(state, parents, tokens))
        return _trace(levels, ended, tree.length, beam)


def _grow(
    tree: Tree, level: int, places: _Places, step: ChildScores, beam: int, renormalise: bool
) -> tuple[_Places, _Level]:
    """The best children of all beams of each query. If codes may end at this level, up to `beam` more, since finished
    beams need no slot."""
    size, before = places.node.shape
    owner, child, token = tree.expand(level, places.node)
    gain = step.of(owner, token)
    if renormalise:
        gain = gain - log_sum(gain, owner, size * before)[owner]
    score = places.total.reshape(-1)[owner] + gain if level else gain
    wanted = 2 * beam if tree.may_end(level) and level + 1 < tree.length else beam
    values, index = best_candidates(score, child, owner // before if size > 1 else None, size, wanted)
    parents, node = owner[index], tree.arrive(child, index)
    if size > 1:  # queries may have different numbers of candidates
        parents = parents - torch.arange(0, size * before, before, device=owner.device)[:, None]
        empty = values == -torch.inf
        parents, node = parents.masked_fill_(empty, 0), node.masked_fill_(empty, -1)
    return _Places(node, values), _Level(parents, token[index], gain[index])


def _set_aside(places: _Places, chosen: _Level, beam: int, last: bool) -> tuple[_Ended, _Places]:
    """Separate the finished beams (END within the best `beam`, or any token at the last level) from those that
    continue, of which the best `beam` are kept."""
    here = torch.arange(places.node.shape[1], device=places.node.device).expand_as(places.node)
    if last:
        return _Ended(0, here, places.node, places.total), places
    ending = (chosen.tokens < 0) & (places.node >= 0)
    ended = _Ended(
        0,
        here[:, :beam],
        places.node[:, :beam].masked_fill(~ending[:, :beam], -1),
        places.total[:, :beam].masked_fill(~ending[:, :beam], -torch.inf),
    )
    going = (places.node >= 0) & ~ending
    width = min(beam, int(going.sum(dim=1).max()) if going.numel() else 0)
    chosen.onward = (~going).to(torch.int8).argsort(dim=1, stable=True)[:, :width]
    node, total = (values.gather(1, chosen.onward) for values in (places.node, places.total))
    stays = going.gather(1, chosen.onward)
    return ended, _Places(node.masked_fill(~stays, -1), total.masked_fill(~stays, -torch.inf))


def _trace(levels: list[_Level], ended: list[_Ended], length: int, beam: int) -> list[Beams]:
    """Reconstruct codes and their scores per level by back-pointers; one list per query."""
    parts = [_trace_back(levels, one, length) for one in ended if one.leaf.shape[1]]
    if not parts:
        none = np.zeros((len(levels[0].tokens), 0), np.float32)
        parts = [
            (
                none.astype(np.int64),
                none,
                np.zeros((*none.shape, length), np.float32),
                np.zeros((*none.shape, length), int),
            )
        ]
    found = []
    whole = parts[0] if len(parts) == 1 else [np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)]
    for one in zip(*whole, strict=True):
        real = np.flatnonzero(one[1] > -np.inf)
        if len(parts) > 1:
            real = real[np.lexsort((*one[3][real].T[::-1], -one[1][real]))]
        found.append(Beams(*(array[real[:beam]] for array in one)))
    return found


def _trace_back(
    levels: list[_Level], ended: _Ended, length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    at = ended.chosen.cpu().numpy()
    query = np.arange(len(at))[:, None]
    gains = np.zeros((*at.shape, length), np.float32)
    codes = np.full((*at.shape, length), -1, np.int64)
    for level in range(ended.level, -1, -1):
        one = levels[level]
        gains[:, :, level] = one.gains.cpu().numpy()[query, at]
        codes[:, :, level] = one.tokens.cpu().numpy()[query, at]
        at = one.parents.cpu().numpy()[query, at]
        if level and (onward := levels[level - 1].onward) is not None:
            at = onward.cpu().numpy()[query, at]
    return ended.leaf.cpu().numpy(), ended.total.cpu().numpy(), gains, codes
