"""MTEB: any method as a model of `mteb.evaluate`, for all its retrieval and reranking tasks.

    import mteb
    from callslip.adapters.mteb import MTEBModel
    mteb.evaluate(MTEBModel("bm25"), mteb.get_task("SciFact"))

Scores are minus the rank: MTEB sorts by score, and ties within a bucket must not change our order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callslip import __version__
from callslip.api import fit
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import BadSetting, MissingExtra
from callslip.filters.filter import Filter
from callslip.index.retriever import Retriever

try:
    from mteb.models.model_meta import ModelMeta
except ImportError:
    raise MissingExtra("callslip.adapters.mteb", "mteb") from None


class MTEBModel:
    """A method that MTEB fits on each task's corpus, or an index that is fitted already (MTEB's `SearchProtocol`)."""

    def __init__(self, method: str | type[Retriever] | Retriever, settings: Mapping[str, Any] | None = None) -> None:
        self.method, self.settings = method, settings
        self.retriever = method if isinstance(method, Retriever) else None
        name = method if isinstance(method, str) else getattr(method, "method", None) or method.__name__  # type: ignore[union-attr]
        about = {"name": f"callslip/{name}", "revision": __version__, "open_weights": True, "license": "apache-2.0"}
        self.mteb_model_meta = ModelMeta.create_empty(about | {"framework": [], "modalities": ["text"]})

    def index(self, corpus: Any, **options: Any) -> None:
        """Fit the method on a task's corpus; an index that is fitted must hold it."""
        documents = [Document(str(row["id"]), row.get("text") or "", row.get("title") or "") for row in corpus]
        if isinstance(self.method, Retriever):
            known = self.method.row_of()
            missing = [document.doc_id for document in documents if document.doc_id not in known]
            if missing:
                raise BadSetting(f"the index lacks {len(missing):,} documents of the task, such as {missing[0]!r}")
            return
        self.retriever = fit(Corpus(documents), self.method, settings=self.settings)

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **options: Any
    ) -> dict[str, dict[str, float]]:
        """The hits of each query, with minus the rank as score."""
        if self.retriever is None:
            raise BadSetting("nothing is indexed yet", "MTEB calls index() before search().")
        asked = [Query(str(row["id"]), _text(row)) for row in queries]
        filters = None
        if top_ranked is not None:  # reranking: each query has candidates of its own
            filters = [Filter(allow=frozenset(map(str, top_ranked[query.query_id]))) for query in asked]
        found = self.retriever.search_batch(asked, top_k, filters, texts=False)
        return {
            query.query_id: {hit.doc_id: -float(hit.rank) for hit in hits}
            for query, hits in zip(asked, found, strict=True)
        }


def _text(row: Mapping[str, Any]) -> str:
    """A query's text: a conversation is its turns, one a line."""
    text = row.get("text") or row.get("query") or ""
    return text if isinstance(text, str) else "\n".join(str(turn) for turn in text)
