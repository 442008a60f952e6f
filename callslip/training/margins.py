"""Teacher scores of selected documents, from a teacher that ranks all documents."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def products(queries: np.ndarray, documents: np.ndarray, rows: np.ndarray, block: int = 4096) -> np.ndarray:
    """Inner products of query i with the documents `rows[i]`: [n, c]."""
    found = np.empty(rows.shape, dtype=np.float32)
    for start in range(0, len(rows), block):  # in blocks, to bound memory
        some = slice(start, start + block)
        found[some] = np.einsum("nd,ncd->nc", queries[some], documents[rows[some]])
    return found


def scores_at(scores: Iterable[np.ndarray], text: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Scores of the documents `rows[i]` for the text `text[i]`, from one score vector per text: [n, c]."""
    found = np.empty(rows.shape, dtype=np.float32)
    examples = np.split(np.argsort(text, kind="stable"), np.cumsum(np.bincount(text))[:-1])
    for values, some in zip(scores, examples, strict=True):
        found[some] = values[rows[some]]
    return found
