"""Exact search: the best codes overall, without the pruning of a beam.

If the model's scores do not depend on earlier tokens, one pass over the levels scores every code. Otherwise the trie is
searched depth first, most likely children first, with branch and bound: a code is never more likely than its prefix, so
a branch that cannot improve on the results so far is skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from callslip.decoders.scores import ChildScores, as_scores
from callslip.errors import BadSetting
from callslip.search.beam import Beams, CodeModel
from callslip.search.observer import OBSERVER
from callslip.search.selection import best_candidates, check_numbers, log_sum
from callslip.search.trees import LevelMasks, check_fit, tree_of

if TYPE_CHECKING:
    from callslip.identifiers.trie import Trie


def table_search(
    tables: list[Tensor], trie: Trie, n: int, live: LevelMasks | None = None, *, leaves: np.ndarray | None = None
) -> list[Beams]:
    """The n best codes by the sum over levels of a table's entries, exactly.

    `tables[l]` is [queries, outputs of level l]; if codes may be short, the last output is END. With `leaves`, the
    codes of all leaves as [leaves, L], none of them short, a query costs only L gathers.
    """
    found = []
    for query in range(len(tables[0])):
        gains = [table[query].cpu().numpy() for table in tables]
        totals = _leaf_totals(gains, trie) if leaves is None else _gathered(gains, leaves)
        if live is not None:
            totals[~live[-1]] = -np.inf
        scores, index = best_candidates(torch.from_numpy(totals), torch.arange(len(totals)), None, 1, n)
        kept = index[0][scores[0] > -torch.inf].numpy()
        codes = trie.codes_of(kept) if leaves is None else leaves[kept].astype(np.int64)
        ended = np.concatenate([np.zeros((len(codes), 1), bool), codes[:, :-1] < 0], axis=1)
        levels = np.stack([gain[codes[:, level]] for level, gain in enumerate(gains)], axis=1)
        found.append(Beams(kept, totals[kept], np.where(ended, 0, levels), codes))
    return found


def _gathered(gains: list[np.ndarray], leaves: np.ndarray) -> np.ndarray:
    totals = gains[0][leaves[:, 0]]
    for level, gain in enumerate(gains[1:], start=1):
        totals = totals + gain[leaves[:, level]]
    return totals


def _leaf_totals(gains: list[np.ndarray], trie: Trie) -> np.ndarray:
    """The total score of every code: each level adds to its parents' totals, so shared prefixes are summed once."""
    totals = np.zeros(1, np.float32)
    for level, (gain, tokens) in enumerate(zip(gains, map(np.asarray, trie.tokens), strict=True)):
        own = gain[tokens]  # END (-1) is the last output
        if level:
            parents = trie.parents(level)
            totals = totals[parents]
            if tokens.dtype != np.uint8:
                own = np.where((tokens < 0) & (trie.tokens[level - 1][parents] < 0), 0, own)  # the code ended earlier
        totals = totals + own
    return totals


def exact_search(
    model: CodeModel,
    query: Any,
    trie: Trie,
    n: int,
    live: LevelMasks | None = None,
    *,
    renormalise: bool | None = None,
    chunk: int = 64,
) -> Beams:
    """The n best codes for one query (a batch of one), without a beam's pruning.

    Scores that are not log-probabilities are normalised at each node, as all are with `renormalise`. At most `chunk`
    nodes are advanced at once, so memory does not grow with the corpus.
    """
    if n < 1 or len(query) != 1:
        raise BadSetting(f"{n} codes requested for {len(query)} queries", "Request at least one code for one query.")
    with torch.inference_mode():
        state, first = model.start(query)
        step = as_scores(first)
        renormalise = not step.normalised if renormalise is None else renormalise
        search = _DepthFirst(model, trie, n, live, renormalise, chunk, step.device)
        zero = torch.zeros((1, 0), device=step.device)
        search.visit(0, state, zero.new_zeros(1).long(), zero.new_zeros(1), zero, zero.long(), step)
        return search.best


class _DepthFirst:
    def __init__(
        self,
        model: CodeModel,
        trie: Trie,
        n: int,
        live: LevelMasks | None,
        renormalise: bool,
        chunk: int,
        device: torch.device,
    ) -> None:
        self.model, self.n, self.renormalise, self.chunk = model, n, renormalise, chunk
        self.watch = OBSERVER.get()
        self.tree = tree_of(trie, device, live, 1)
        check_fit(model, self.tree)
        length = trie.length
        self.best = Beams(
            np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros((0, length), np.float32),
            np.zeros((0, length), np.int64),
        )  # fmt: skip

    @property
    def bar(self) -> float:
        """Lower bound: a prefix less likely than this cannot lead to one of the n best; with tolerance for rounding."""
        return float(self.best.scores[-1]) - 1e-5 if len(self.best.scores) == self.n else -np.inf

    def visit(
        self, level: int, state: Any, node: Tensor, total: Tensor, gains: Tensor, tokens: Tensor, step: ChildScores
    ) -> None:
        """Visit all children of some nodes of the previous level, and recurse."""
        owner, child, token = self.tree.expand(level, node[None])
        gain = step.of(owner, token)
        if self.renormalise:
            gain = gain - log_sum(gain, owner, len(node))[owner]
        totals = total[owner] + gain
        check_numbers(totals)
        possible = totals > -torch.inf  # as in beam search, impossible codes are not returned
        gains = torch.cat([gains[owner], gain[:, None]], dim=1)
        tokens = torch.cat([tokens[owner], token[:, None]], dim=1)
        last = level + 1 == self.tree.length
        done = torch.ones_like(token, dtype=torch.bool) if last else token < 0
        ended = done & possible
        if bool(ended.any()):
            self.keep(self.tree.leaf(level, child[ended]), totals[ended], gains[ended], tokens[ended])
        on = (~done & possible & (totals >= self.bar)).nonzero().view(-1)
        on = on[totals[on].argsort(descending=True, stable=True)]
        for at in range(0, len(on), self.chunk):
            some = on[at : at + self.chunk]
            some = some[totals[some] >= self.bar]  # the bound may have risen since
            if not len(some):
                break
            if self.watch is not None:
                self.watch(level, child[some][None], totals[some][None])
            forked = state.fork()
            following = as_scores(self.model.advance(forked, owner[some][None], token[some][None]))
            self.visit(level + 1, forked, child[some], totals[some], gains[some], tokens[some], following)

    def keep(self, leaf: Tensor, total: Tensor, gains: Tensor, tokens: Tensor) -> None:
        more = self.tree.length - gains.shape[1]
        gains = torch.nn.functional.pad(gains, (0, more))
        tokens = torch.nn.functional.pad(tokens, (0, more), value=-1)
        mine = (self.best.nodes, self.best.scores, self.best.levels, self.best.codes)
        theirs = (leaf, total, gains, tokens)
        nodes, scores, levels, codes = (np.concatenate([a, b.cpu().numpy()]) for a, b in zip(mine, theirs, strict=True))
        order = np.lexsort((nodes, -scores))[: self.n]
        self.best = Beams(nodes[order], scores[order], levels[order], codes[order])
