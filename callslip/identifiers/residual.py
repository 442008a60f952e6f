"""Residual quantisation: each level codes the residual of the levels before it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from callslip.errors import BadSetting
from callslip.identifiers.kmeans import check_vectors, cluster_centres, nearest
from callslip.runtime.progress import track


class ResidualQuantizer:
    """k-means on the vectors, then k-means on the residuals, and so on, from coarse to fine; one codebook per level."""

    def __init__(self, length: int = 4, width: int = 256, seed: int = 0) -> None:
        if length < 1 or width < 1:
            raise BadSetting(f"invalid residual quantiser: length {length}, width {width}")
        self.length, self.width, self.seed = length, width, seed
        self.codebooks: list[np.ndarray] = []

    @property
    def dim(self) -> int:
        return self.codebooks[0].shape[1] if self.codebooks else 0

    def fit(self, vectors: np.ndarray) -> np.ndarray:
        """Learn the codebooks and return the codes of the vectors, int32 [N, length]."""
        vectors = check_vectors(vectors)
        if not len(vectors):
            raise BadSetting("no vectors to quantise")
        self.codebooks = []
        residual = vectors
        for level in track(range(self.length), "residual quantisation"):
            book = cluster_centres(residual, self.width, self.seed + level)
            self.codebooks.append(book)
            residual = residual - book[nearest(residual, book)]
        return self.assign(vectors)

    def assign(self, vectors: np.ndarray) -> np.ndarray:
        """Codes of vectors, greedily from the first level on, int32 [N, length]."""
        if not self.codebooks:
            raise BadSetting("the quantiser has not been fitted", "Call fit first.")
        residual = check_vectors(vectors, self.dim)
        codes = np.empty((len(residual), self.length), np.int32)
        for level, book in enumerate(self.codebooks):
            codes[:, level] = nearest(residual, book)
            residual = residual - book[codes[:, level]]
        return codes

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Reconstructed vectors of the codes, [N, D]; a prefix of the code gives a coarser reconstruction."""
        return np.sum([book[codes[:, level]] for level, book in enumerate(self.codebooks[: codes.shape[1]])], axis=0)

    def state(self) -> dict[str, np.ndarray]:
        """Everything needed to assign codes to new vectors, as arrays."""
        state = {f"codebook.{level}": book for level, book in enumerate(self.codebooks)}
        return {"settings": np.asarray([self.length, self.width, self.seed], np.int64), **state}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> ResidualQuantizer:
        maker = cls(*(int(value) for value in state["settings"]))
        maker.codebooks = [state[f"codebook.{level}"] for level in range(len(state) - 1)]
        return maker
