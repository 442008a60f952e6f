"""Callslip: a generative retrieval engine.

    import callslip
    index = callslip.fit("my-documents/", out="my-index")
    callslip.load("my-index").search("how do I cancel an order?", k=10)

Names are imported when they are first used, so that `import callslip` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from callslip.api import codes, compare, evaluate, fit, learn, load
    from callslip.corpus.documents import Corpus, Document, Query
    from callslip.corpus.load import load_corpus
    from callslip.errors import CallslipError
    from callslip.filters.filter import Filter
    from callslip.filters.globs import Glob
    from callslip.filters.ranges import Range
    from callslip.index.retriever import Retriever
    from callslip.methods.hybrid import Hybrid
    from callslip.search.hits import Hit, Hits

_WHERE = {
    "codes": "callslip.api",
    "fit": "callslip.api",
    "learn": "callslip.api",
    "load": "callslip.api",
    "evaluate": "callslip.api",
    "compare": "callslip.api",
    "load_corpus": "callslip.corpus.load",
    "Corpus": "callslip.corpus.documents",
    "Document": "callslip.corpus.documents",
    "Query": "callslip.corpus.documents",
    "Filter": "callslip.filters.filter",
    "Hit": "callslip.search.hits",
    "Hits": "callslip.search.hits",
    "Hybrid": "callslip.methods.hybrid",
    "Glob": "callslip.filters.globs",
    "Range": "callslip.filters.ranges",
    "Retriever": "callslip.index.retriever",
    "CallslipError": "callslip.errors",
}

__all__ = [
    "CallslipError",
    "Corpus",
    "Document",
    "Filter",
    "Glob",
    "Hit",
    "Hits",
    "Hybrid",
    "Query",
    "Range",
    "Retriever",
    "__version__",
    "codes",
    "compare",
    "evaluate",
    "fit",
    "learn",
    "load",
    "load_corpus",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'callslip' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
