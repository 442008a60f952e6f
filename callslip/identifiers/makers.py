"""Makers of codes: what turns the documents' vectors into codes, by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np

from callslip.errors import UnknownName


class CodeMaker(Protocol):
    """Makes codes of vectors (k-means, product quantisation, …), and codes new vectors by what it learned."""

    def fit(self, vectors: np.ndarray) -> np.ndarray:
        """Learn from vectors [N, dim], and return their codes, int32 [N, L]."""

    def assign(self, vectors: np.ndarray) -> np.ndarray:
        """Codes of other vectors, int32 [n, L]."""

    def state(self) -> dict[str, np.ndarray]:
        """What was learned, for a file."""

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> Self:
        """A maker that learned this."""


MAKERS: dict[str, str] = {
    "hierarchical-kmeans": "kmeans:HierarchicalKMeans",
    "product-quantization": "product:ProductQuantizer",
    "residual-quantization": "residual:ResidualQuantizer",
    "rqvae": "rqvae:RQVAE",
}
"""Where the class of each maker is. A module is imported only when its maker is asked for."""


def code_maker(name: str, **shape: Any) -> CodeMaker:
    """A maker of codes that has learned nothing yet; `shape` goes to its class: width, length, seed, …"""
    if name not in MAKERS:
        raise UnknownName("maker of codes", name, MAKERS)
    module, _, cls = MAKERS[name].partition(":")
    return getattr(importlib.import_module(f"callslip.identifiers.{module}"), cls)(**shape)
