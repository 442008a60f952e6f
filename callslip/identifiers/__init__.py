"""Codes of documents: the sorted table, its trie, quality metrics, and code makers.

The table and its metrics need only NumPy. Code makers are imported lazily, so that this import stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from callslip.identifiers.doctor import Finding, diagnose, verdict
from callslip.identifiers.levels import levels_for
from callslip.identifiers.quality import (
    LevelQuality,
    Quality,
    average_partition_entropy,
    diversity,
    measure,
)
from callslip.identifiers.simple import atomic_codes, disambiguate, naive_codes, random_codes
from callslip.identifiers.table import END, Identifiers, code_to_text, text_to_code
from callslip.identifiers.trie import Trie

if TYPE_CHECKING:
    from callslip.identifiers.balancing import balanced_assignment, sinkhorn
    from callslip.identifiers.keywords import WordCodes, keyword_codes, text_codes, title_codes, url_codes
    from callslip.identifiers.kmeans import HierarchicalKMeans, constrained_kmeans
    from callslip.identifiers.partition_em import PartitionEM
    from callslip.identifiers.product import ProductQuantizer
    from callslip.identifiers.residual import ResidualQuantizer
    from callslip.identifiers.rqvae import RQVAE, VQVAE

_LATER = {
    "HierarchicalKMeans": "kmeans",
    "PartitionEM": "partition_em",
    "ProductQuantizer": "product",
    "RQVAE": "rqvae",
    "ResidualQuantizer": "residual",
    "VQVAE": "rqvae",
    "WordCodes": "keywords",
    "balanced_assignment": "balancing",
    "constrained_kmeans": "kmeans",
    "keyword_codes": "keywords",
    "sinkhorn": "balancing",
    "text_codes": "keywords",
    "title_codes": "keywords",
    "url_codes": "keywords",
}

__all__ = [
    "END",
    "RQVAE",
    "VQVAE",
    "Finding",
    "HierarchicalKMeans",
    "Identifiers",
    "LevelQuality",
    "PartitionEM",
    "ProductQuantizer",
    "Quality",
    "ResidualQuantizer",
    "Trie",
    "WordCodes",
    "atomic_codes",
    "average_partition_entropy",
    "balanced_assignment",
    "code_to_text",
    "constrained_kmeans",
    "diagnose",
    "disambiguate",
    "diversity",
    "keyword_codes",
    "levels_for",
    "measure",
    "naive_codes",
    "random_codes",
    "sinkhorn",
    "text_codes",
    "text_to_code",
    "title_codes",
    "url_codes",
    "verdict",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
