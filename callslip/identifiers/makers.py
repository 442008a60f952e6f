"""Registry of code makers, which turn the documents' vectors into codes: those of an encoder or, for `partition-em`,
rows of the relation matrix of items and queries."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, Self

import numpy as np

from callslip.errors import UnknownName
from callslip.runtime import plugins


class CodeMaker(Protocol):
    """Learns codes from vectors (k-means, product quantisation, …), and assigns codes to new vectors."""

    def fit(self, vectors: np.ndarray) -> np.ndarray:
        """Fit vectors [N, dim], and return their codes, int32 [N, L]."""

    def assign(self, vectors: np.ndarray) -> np.ndarray:
        """Codes of other vectors, int32 [n, L]."""

    def state(self) -> dict[str, np.ndarray]:
        """The fitted state as arrays, to be saved."""

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> Self:
        """A fitted maker from a saved state."""


MAKERS: dict[str, str] = {
    "hierarchical-kmeans": "kmeans:HierarchicalKMeans",
    "product-quantization": "product:ProductQuantizer",
    "residual-quantization": "residual:ResidualQuantizer",
    "tied-residual": "tied:TiedQuantizer",
    "rqvae": "rqvae:RQVAE",
    "vqvae": "rqvae:VQVAE",
    "partition-em": "partition_em:PartitionEM",
}
"""Module and class of each maker; a module is imported only when its maker is used."""


def known_makers() -> list[str]:
    """Names of makers of an encoder's vectors whose shape is width, length and seed: ours, and those of other
    packages."""
    return [name for name in MAKERS if name not in ("rqvae", "partition-em")] + list(plugins.plugins(plugins.CODES))


def code_maker(name: str, **shape: Any) -> CodeMaker:
    """An unfitted code maker; `shape` are the arguments of its class: width, length, seed, …"""
    brought = {} if name in MAKERS else plugins.plugins(plugins.CODES)
    if name in brought:
        return brought[name].load()(**shape)
    if name not in MAKERS:
        raise UnknownName("code maker", name, {**MAKERS, **brought})
    module, _, cls = MAKERS[name].partition(":")
    return getattr(importlib.import_module(f"callslip.identifiers.{module}"), cls)(**shape)
