"""What makes codes of vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

import numpy as np


class CodeMaker(Protocol):
    """Makes codes of vectors (k-means, product quantisation, …), and codes new vectors by what it learned."""

    def fit(self, vectors: np.ndarray) -> np.ndarray: ...
    def assign(self, vectors: np.ndarray) -> np.ndarray: ...
    def state(self) -> dict[str, np.ndarray]: ...
    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> Self: ...
