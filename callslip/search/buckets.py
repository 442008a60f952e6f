"""From codes to documents: the buckets of the beams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from callslip.identifiers.table import Identifiers
    from callslip.search.beam import Beams


def candidates(beams: Beams, identifiers: Identifiers, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of all documents in the buckets of the beams, and for each the number of its beam."""
    bounds = identifiers.trie().documents[-1]
    first, last = bounds[beams.nodes].astype(np.int64), bounds[beams.nodes + 1].astype(np.int64)
    counts = last - first
    beam = np.repeat(np.arange(len(counts)), counts)
    position = np.repeat(first, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = identifiers.rows[position]
    if mask is not None:
        kept = mask[rows]
        rows, beam = rows[kept], beam[kept]
    return rows, beam
