"""Candidates of a search: a model's best codes, by beam search or exactly, and the documents in their buckets."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from callslip.identifiers.table import Identifiers
    from callslip.identifiers.trie import Trie
    from callslip.search.beam import Beams, CodeModel
    from callslip.search.trees import LevelMasks

ROWS = 4096
"""Maximum number of beams advanced at once; more would take memory without gaining speed."""


def best_codes(
    model: CodeModel,
    queries: Any,
    trie: Trie,
    n: int,
    live: LevelMasks | None = None,
    *,
    exact: bool = False,
) -> list[Beams]:
    """The n best codes for each query (a tensor of vectors). A model with a `table`, whose scores do not depend on
    earlier tokens, is searched exactly at the cost of a lookup."""
    import torch

    from callslip.search.beam import beam_search
    from callslip.search.exact import exact_search, table_search

    found: list[Beams] = []
    with torch.inference_mode():
        if exact and not hasattr(model, "table"):
            for number in range(len(queries)):
                found.append(exact_search(model, queries[number : number + 1], trie, n, live))
            return found
        size = max(1, ROWS // n)
        masks = None if live is None else [live]
        for start in range(0, len(queries), size):
            some = queries[start : start + size]
            if exact:
                found += table_search(model.table(some), trie, n, live)  # type: ignore[attr-defined]
            else:
                found += beam_search(model, some, trie, n, masks)
    return found


def candidates(beams: Beams, identifiers: Identifiers, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of all documents in the buckets of the beams, with the index of each one's beam. All buckets are included;
    truncation is left to the ranking."""
    bounds = identifiers.trie().below[-1]
    known = np.flatnonzero(beams.nodes >= 0)  # an unconstrained search may write codes that no document has
    leaves = beams.nodes[known]
    first, last = bounds[leaves], bounds[leaves + 1]
    counts = last - first
    beam = np.repeat(known, counts)
    position = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    rows = identifiers.rows_at(position)
    if mask is not None:
        kept = mask[rows]
        rows, beam = rows[kept], beam[kept]
    return rows, beam


def sizes(beams: Beams, identifiers: Identifiers, alive: np.ndarray) -> np.ndarray:
    """Bucket size of each beam, counting only documents that are `alive` (by row); at least 1. Filters are ignored:
    hiding documents must not make the others more likely."""
    _, beam = candidates(beams, identifiers, alive)
    return np.maximum(np.bincount(beam, minlength=len(beams.nodes)), 1)


def arbitrary(rows: np.ndarray, doc_ids: Sequence[str]) -> np.ndarray:
    """A number for each row by which documents that nothing ranks are ordered: arbitrary, but always the same for a
    doc_id, so that neither the order of the corpus nor a compaction matters."""
    return np.array([zlib.crc32(doc_ids[row].encode("utf-8", "surrogatepass")) for row in rows.tolist()], np.float64)


def merged(
    rows: np.ndarray, beam: np.ndarray, scores: np.ndarray | None, similarity: np.ndarray, limit: int | None = None
) -> tuple[np.ndarray, int]:
    """The order of the candidates: by score, or by the rank of their beam if there are no scores; then by similarity,
    then by row. In each bucket, documents beyond the `limit` most similar come after all others, so that a large bucket
    cannot fill the list. Also returns the number of candidates within their bucket's limit."""
    first = beam if scores is None else -scores
    order = np.lexsort((rows, -similarity, first))
    if limit is None:
        return order, len(order)
    inside = np.lexsort((rows, -similarity, beam))
    starts = np.searchsorted(beam[inside], beam[inside])
    place = np.empty(len(rows), np.int64)
    place[inside] = np.arange(len(rows)) - starts  # rank within the bucket
    beyond = place[order] >= limit
    return order[np.argsort(beyond, kind="stable")], int((~beyond).sum())
