"""Vectors of items without texts, from the users who interacted with them."""

from __future__ import annotations

import numpy as np

from callslip.corpus.sequences import Sequences

SVD_DIM = 64
"""Dimensions of the vectors."""


def interaction_vectors(sequences: Sequences, count: int, seed: int = 0) -> np.ndarray:
    """Unit rows of a truncated SVD of the item-user matrix, [count, dim]."""
    from scipy.sparse import csr_matrix
    from sklearn.utils.extmath import randomized_svd

    owner = np.repeat(np.arange(len(sequences)), np.diff(sequences.bounds))
    users = csr_matrix((np.ones(len(owner), np.float32), (sequences.items, owner)), shape=(count, len(sequences)))
    users.data[:] = 1  # repeated interactions count once
    found, weights, _ = randomized_svd(users, min(SVD_DIM, *users.shape), random_state=seed)
    vectors = np.zeros((count, SVD_DIM), np.float32)
    vectors[:, : found.shape[1]] = found * weights
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
