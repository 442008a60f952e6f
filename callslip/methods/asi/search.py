"""ASI's search: the paper writes freely, and drops codes that no document has."""

from __future__ import annotations

from typing import Any

import numpy as np

from callslip.identifiers.trie import Trie
from callslip.search.beam import Beams, beam_search
from callslip.search.trees import FreeTree


def free_search(model: Any, queries: Any, trie: Trie, beam: int, live: list[np.ndarray] | None = None) -> list[Beams]:
    """The best codes of an unconstrained beam, without those that no (live) document has."""
    found = []
    for beams in beam_search(model, queries, FreeTree(model.widths), beam):
        leaves = trie.leaves_of(beams.codes)
        known = leaves >= 0
        if live is not None:
            known[known] = live[-1][leaves[known]]
        found.append(Beams(leaves[known], beams.scores[known], beams.levels[known], beams.codes[known]))
    return found
