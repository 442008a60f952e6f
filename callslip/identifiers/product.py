"""Product quantisation: each subvector has its own k-means, which gives one token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from callslip.errors import BadSetting
from callslip.identifiers.kmeans import check_vectors, cluster_centres, nearest
from callslip.runtime.progress import track


class ProductQuantizer:
    """Level l codes the l-th subvector; levels are independent, so a token means the same after every prefix.

    If the dimension is not a multiple of `length`, the first subvectors have one dimension more.
    """

    def __init__(self, length: int = 4, width: int = 256, seed: int = 0) -> None:
        if length < 1 or width < 1:
            raise BadSetting(f"invalid product quantiser: length {length}, width {width}")
        self.length, self.width, self.seed = length, width, seed
        self.codebooks: list[np.ndarray] = []

    @property
    def dim(self) -> int:
        return sum(book.shape[1] for book in self.codebooks)

    def fit(self, vectors: np.ndarray) -> np.ndarray:
        """Learn the codebooks and return the codes of the vectors, int32 [N, length]."""
        vectors = check_vectors(vectors)
        if not len(vectors) or vectors.shape[1] < self.length:
            raise BadSetting(f"vectors of shape {vectors.shape} cannot be split into {self.length} subvectors")
        stretches = np.array_split(vectors, self.length, axis=1)
        self.codebooks = [
            cluster_centres(np.ascontiguousarray(part), self.width, self.seed + level)
            for level, part in enumerate(track(stretches, "product quantisation"))
        ]
        return self.assign(vectors)

    def assign(self, vectors: np.ndarray) -> np.ndarray:
        """Codes of vectors by the nearest centroid of each subvector, int32 [N, length]."""
        if not self.codebooks:
            raise BadSetting("the quantiser has not been fitted", "Call fit first.")
        vectors = check_vectors(vectors, self.dim)
        parts = np.array_split(vectors, self.length, axis=1)
        tokens = [nearest(np.ascontiguousarray(part), book) for part, book in zip(parts, self.codebooks)]
        return np.stack(tokens, axis=1).astype(np.int32)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Reconstructed vectors of the codes, [N, D]."""
        return np.concatenate([book[codes[:, level]] for level, book in enumerate(self.codebooks)], axis=1)

    def state(self) -> dict[str, np.ndarray]:
        """Everything needed to assign codes to new vectors, as arrays."""
        state = {f"codebook.{level}": book for level, book in enumerate(self.codebooks)}
        return {"settings": np.asarray([self.length, self.width, self.seed], np.int64), **state}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> ProductQuantizer:
        maker = cls(*(int(value) for value in state["settings"]))
        maker.codebooks = [state[f"codebook.{level}"] for level in range(len(state) - 1)]
        return maker
