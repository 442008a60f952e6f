"""LangChain: an index as a `BaseRetriever`, for chains and agents.

from callslip.adapters.langchain import CallslipRetriever
CallslipRetriever(index="my-index", k=4).invoke("how do I cancel an order?")
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from callslip.api import load
from callslip.errors import MissingExtra
from callslip.filters.filter import Filter
from callslip.index.retriever import Retriever

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import ConfigDict, field_validator
except ImportError:
    raise MissingExtra("callslip.adapters.langchain", "langchain") from None


class CallslipRetriever(BaseRetriever):
    """Searches an index; `k` and `filter` may also be given to `invoke`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: Any
    """A retriever, or the folder of a saved index."""
    k: int = 10
    filter: Filter | None = None

    @field_validator("index")
    @classmethod
    def _opened(cls, index: Any) -> Retriever:
        return load(index) if isinstance(index, (str, Path)) else index

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        return self._found(query, k, filter)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        return await asyncio.to_thread(self._found, query, k, filter)

    def _found(self, query: str, k: int | None, filter: Filter | None) -> list[Document]:
        hits = self.index.search(query, self.k if k is None else k, filter or self.filter)
        row_of = self.index.row_of()
        kept = self.index.documents.rows([row_of[hit.doc_id] for hit in hits])
        return [
            Document(
                id=hit.doc_id,
                page_content=hit.text,
                metadata={
                    **document.metadata,
                    "doc_id": hit.doc_id,
                    "title": hit.title,
                    "score": hit.score,
                    "rank": hit.rank,
                    "code": None if hit.code is None else list(hit.code),
                },
            )
            for hit, document in zip(hits, kept, strict=True)
        ]
