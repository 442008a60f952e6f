"""Teacher scores of selected documents, from a teacher that ranks all documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def products(queries: np.ndarray, documents: np.ndarray, rows: np.ndarray, block: int = 4096) -> np.ndarray:
    """Inner products of query i with the documents `rows[i]`: [n, c]."""
    found = np.empty(rows.shape, dtype=np.float32)
    for start in range(0, len(rows), block):  # in blocks, to bound memory
        some = slice(start, start + block)
        found[some] = np.einsum("nd,ncd->nc", queries[some], documents[rows[some]])
    return found


def scores_at(scores: Iterable[np.ndarray | csr_array], text: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Scores of the documents `rows[i]` for the text `text[i]`: [n, c]. `scores` has a vector per text, or sparse
    blocks of several texts, [block, N]."""
    found = np.empty(rows.shape, dtype=np.float32)
    examples = np.split(np.argsort(text, kind="stable"), np.cumsum(np.bincount(text))[:-1])
    first = 0
    for block in scores:
        table = block[None] if isinstance(block, np.ndarray) else block
        some = np.concatenate(examples[first : first + table.shape[0]])
        wanted = table[(text[some] - first)[:, None], rows[some]]
        found[some] = wanted if isinstance(wanted, np.ndarray) else wanted.toarray()
        first += table.shape[0]
    if first != len(examples):
        raise ValueError(f"there are scores for {first} texts, not {len(examples)}")
    return found
