"""From codes to documents: the buckets of the beams, put in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from callslip.identifiers.table import Identifiers
    from callslip.search.beam import Beams

Ranking = Literal["bucket", "union"]


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


def order(rows: np.ndarray, beam: np.ndarray, similarity: np.ndarray, ranking: Ranking) -> np.ndarray:
    """The order of the candidates. `bucket`: the model's order of codes, similarity inside a bucket.
    `union`: similarity alone, over all buckets that the model named. Ties by row."""
    if ranking == "bucket":
        return np.lexsort((rows, -similarity, beam))
    return np.lexsort((rows, -similarity))
