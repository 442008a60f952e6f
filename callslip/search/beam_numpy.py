"""Beam search for a single query on a CPU, in NumPy, with the same results as `beam.py`.

A step of a small decoder takes about a millisecond, and the thirty torch calls of `beam.py` on a few hundred candidates
a third of that. This version handles codes of equal length and log-probabilities of whole levels; `beam.py` handles the
rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from callslip.decoders.scores import DenseScores
from callslip.search.selection import check_numbers
from callslip.search.trees import TrieTree

if TYPE_CHECKING:
    from callslip.decoders.scores import ChildScores
    from callslip.identifiers.trie import Trie
    from callslip.search.observer import Watch
    from callslip.search.trees import LevelMasks, Tree

STEEP = 4.0
"""Minimum difference in log-probability between the first and the middle beam to expand the last level in halves."""
FEW = 8
"""Minimum size of half a beam to be worth a separate call."""

Advance = Callable[[Any, Tensor, Tensor], Any]


@dataclass
class _Level:
    """The best of a level, best first, [n] each."""

    nodes: np.ndarray
    totals: np.ndarray
    parents: np.ndarray  # slots of the previous level
    tokens: np.ndarray
    gains: np.ndarray

    def part(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Parents and tokens of a range of slots, as the model expects them."""
        some = slice(start, stop)
        return torch.from_numpy(self.parents[some])[None], torch.from_numpy(self.tokens[some])[None]


def is_single(tree: Tree, step: ChildScores) -> bool:
    """Whether this is a single query on a CPU, and all codes of the trie have the same length."""
    return (
        step.queries == 1
        and isinstance(step, DenseScores)
        and step.device.type == "cpu"
        and isinstance(tree, TrieTree)
        and not any(tree.trie.ends)
    )


def search_one(
    advance: Advance,
    state: Any,
    first: DenseScores,
    trie: Trie,
    live: LevelMasks | None,
    beam: int,
    watch: Watch | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The `beam` best codes: leaf nodes, scores, scores by level and codes, as `Beams` holds them."""
    values = first.values.numpy()[0]
    levels: list[_Level] = []
    for level in range(trie.length):
        before = levels[-1] if levels else None
        if before is None:
            grown = _grow(trie, live, 0, None, values, beam)
        elif level + 1 == trie.length and _is_steep(before.totals):
            grown = _grow_by_halves(advance, state, trie, live, before, beam)
        else:
            values = _written(advance, state, before, 0, len(before.nodes))
            grown = _grow(trie, live, level, before, values, beam)
        levels.append(grown)
        if watch is not None:
            watch(level, torch.from_numpy(grown.nodes)[None], torch.from_numpy(grown.totals)[None])
        if not len(grown.nodes):  # the mask allows no code
            break
    return _trace(levels, trie.length)


def _grow(
    trie: Trie, live: LevelMasks | None, level: int, before: _Level | None, values: np.ndarray, beam: int
) -> _Level:
    """The best children of the first slots of a level, one for each row of `values` [slots, outputs]."""
    if before is None:
        child = np.arange(len(trie.tokens[0]))
        owner = np.zeros_like(child)
    else:
        node = before.nodes[: len(values)]
        start, stop = trie.below[level - 1][np.stack([node, node + 1])]
        counts = stop - start
        owner = np.repeat(np.arange(len(node)), counts)
        child = np.arange(len(owner)) + (stop - counts.cumsum())[owner]
    if live is not None:
        kept = live[level][child]
        owner, child = owner[kept], child[kept]
    token = trie.tokens[level][child].astype(np.int64)
    gain = values[owner, token]
    total = gain if before is None else before.totals[owner] + gain
    best = _best(total, child, beam)
    return _Level(child[best], total[best], owner[best], token[best], gain[best])


def _best(total: np.ndarray, child: np.ndarray, n: int) -> np.ndarray:
    """Indices of the n highest totals, in descending order, ties by node."""
    most = min(n + 1, len(total))
    if len(total) > 8 * most:  # NaN sorts as highest, and is detected below
        some = np.argpartition(total, -most)[-most:]
        order = some[total[some].argsort()[::-1]]
    else:
        order = total.argsort()[::-1][:most]
    values = total[order]
    if most < 2 or not (values[:-1] > values[1:]).all():
        check_numbers(torch.from_numpy(values))
        order = np.lexsort((child, -total))
    return order[:n]


def _is_steep(totals: np.ndarray) -> bool:
    """Whether the worse half of the beams is so unlikely that it will rarely be needed."""
    half = len(totals) // 2
    return half >= FEW and float(totals[0] - totals[half]) > STEEP


def _grow_by_halves(
    advance: Advance, state: Any, trie: Trie, live: LevelMasks | None, before: _Level, beam: int
) -> _Level:
    """Expand the last level, better half of the beams first. A code is never more likely than its prefix, so beams of
    the worse half that score below the worst code kept so far are not advanced at all."""
    level, half = trie.length - 1, len(before.nodes) // 2
    first = _written(advance, state.fork(), before, 0, half)
    grown = _grow(trie, live, level, before, first, beam)
    least = grown.totals[-1] if len(grown.totals) == beam else -np.inf
    upto = half + int((before.totals[half:] >= least - 1e-5).sum())  # tolerance for rounding
    if upto == half:
        return grown
    rest = _written(advance, state, before, half, upto)
    return _grow(trie, live, level, before, np.concatenate([first, rest]), beam)


def _written(advance: Advance, state: Any, before: _Level, start: int, stop: int) -> np.ndarray:
    """The next level's log-probabilities for a range of slots, [slots, outputs]."""
    scores: np.ndarray = advance(state, *before.part(start, stop)).numpy()[0]
    return scores


def _trace(levels: list[_Level], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reconstruct codes and their scores per level by back-pointers."""
    last = levels[-1]
    at = np.flatnonzero(last.totals > -np.inf)
    nodes, totals = last.nodes[at], last.totals[at]
    gains, codes = np.empty((len(at), length), np.float32), np.empty((len(at), length), np.int64)
    for level in reversed(range(len(levels))):  # fewer than `length` only if no code was found
        one = levels[level]
        gains[:, level], codes[:, level] = one.gains[at], one.tokens[at]
        at = one.parents[at]
    return nodes, totals, gains, codes
