"""The three tools of an agent (search, read, explain) on a served index, through the model's one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from callslip.corpus.documents import Query
from callslip.errors import CallslipError
from callslip.search.hits import Hit
from callslip.server.errors import ApiError, TooLate
from callslip.server.explain import explain
from callslip.server.inference import Asked

if TYPE_CHECKING:
    from callslip.server.app import Server

CLIENT = "tools"
"""All agents are one client to the queue: they share its places with the others."""
DEPTH = 100


class ServedTools:
    """What MCP's tools call when they are mounted in the server."""

    def __init__(self, server: Server, document: Callable[[str, Any, str], dict[str, Any]]) -> None:
        self.server, self.document = server, document

    async def search(self, query: str, k: int) -> list[Hit]:
        asked = Asked(self.server.index(None).name, k, None, False)
        return (await self._answer(queries=[Query("0", query)], asked=asked))[0]

    async def get_document(self, doc_id: str) -> dict[str, Any]:
        one = self.server.index(None)
        return await self._told(self.server.read(lambda: self.document(one.name, one.retriever, doc_id)))

    async def explain(self, query: str, doc_id: str) -> dict[str, Any]:
        one = self.server.index(None)
        return await self._answer(call=lambda: explain(one.retriever, Query("0", query), doc_id, DEPTH, None, None))

    async def _answer(self, **work: Any) -> Any:
        async def waiting() -> Any:
            async with asyncio.timeout(self.server.limits.deadline + 1):
                return await self.server.inference.put(client=CLIENT, **work).answer

        return await self._told(waiting())

    async def _told(self, work: Any) -> Any:
        """An error of the API as one that a tool may show."""
        try:
            return await work
        except TimeoutError:
            raise CallslipError(TooLate().problem) from None
        except ApiError as error:
            raise CallslipError(error.problem, error.remedy) from None
