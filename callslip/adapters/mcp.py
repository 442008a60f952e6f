"""MCP: an index as tools of a language model: `search`, `get_document` and `explain`.

`callslip mcp DIR` speaks over standard input and output; `callslip serve DIR --mcp` over streamable HTTP at /mcp,
behind the server's guard. The tools are whatever has these three methods: `IndexTools` here, the server's own there.
"""

from __future__ import annotations

from typing import Any, Protocol

from callslip import __version__
from callslip.errors import CallslipError, MissingExtra
from callslip.index.retriever import Retriever
from callslip.search.hits import Hit

try:
    from mcp.server import MCPServer
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp_types import ToolAnnotations
except ImportError:
    raise MissingExtra("callslip.adapters.mcp", "mcp") from None

CHARACTERS = 2000
"""Characters of a hit's text; `get_document` gives the whole."""
MOST = 100


class Tools(Protocol):
    """What the tools call."""

    async def search(self, query: str, k: int) -> list[Hit]: ...
    async def get_document(self, doc_id: str) -> dict[str, Any]: ...
    async def explain(self, query: str, doc_id: str) -> dict[str, Any]: ...


class IndexTools:
    """The tools on an index in this process."""

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever

    async def search(self, query: str, k: int) -> list[Hit]:
        return self.retriever.search(query, k)

    async def get_document(self, doc_id: str) -> dict[str, Any]:
        row = self.retriever.row_of().get(doc_id)
        if row is None:
            raise CallslipError(f"the index has no document {doc_id!r}", "Use a doc_id of a search's hits.")
        document, codes = self.retriever.documents.rows([row])[0], self.retriever.codes_by_row()
        code = None if codes is None else [int(token) for token in codes[row] if token >= 0]
        about = {"doc_id": document.doc_id, "title": document.title, "text": document.text}
        return about | {"metadata": dict(document.metadata), "code": code}

    async def explain(self, query: str, doc_id: str) -> dict[str, Any]:
        hits = self.retriever.search(query, min(1000, max(1, len(self.retriever))), explain=True)
        hit = next((hit for hit in hits if hit.doc_id == doc_id), None)
        held = await self.get_document(doc_id)
        reply = {"doc_id": doc_id, "method": self.retriever.method, "code": held["code"], "found": hit is not None}
        return reply if hit is None else reply | {"rank": hit.rank, "score": hit.score, "why": hit.why}


def mcp_server(tools: Tools, name: str = "callslip", about: str = "") -> MCPServer:
    """A server with the three tools; run it with `run("stdio")`, connect to it in memory, or mount its HTTP app."""
    about = about or "Search the documents, then read those that matter."
    server = MCPServer(name, instructions=about, version=__version__)
    reading = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    @server.tool(annotations=reading)
    async def search(query: str, k: int = 10) -> list[dict[str, Any]]:
        """Search the documents. Returns the best hits with doc_id, title, the beginning of the text, and code."""
        return [_told(hit) for hit in await tools.search(query, max(1, min(k, MOST)))]

    @server.tool(annotations=reading)
    async def get_document(doc_id: str) -> dict[str, Any]:
        """A whole document by its doc_id: title, text, metadata and code."""
        return await tools.get_document(doc_id)

    @server.tool(annotations=reading)
    async def explain(query: str, doc_id: str) -> dict[str, Any]:
        """Why a document has its rank for a query, or why it is not found."""
        return await tools.explain(query, doc_id)

    return server


def _told(hit: Hit) -> dict[str, Any]:
    code = None if hit.code is None else [token for token in hit.code if token >= 0]
    reply = {"rank": hit.rank, "doc_id": hit.doc_id, "score": hit.score, "title": hit.title}
    return reply | {"text": hit.text[:CHARACTERS], "code": code}


def http_app(tools: Tools, path: str = "/mcp") -> Any:
    """The tools over streamable HTTP, as an ASGI application without sessions. Whoever mounts it guards it: the Host
    header is checked there, by the names that the server has."""
    unguarded = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return mcp_server(tools).streamable_http_app(
        streamable_http_path=path, json_response=True, stateless_http=True, transport_security=unguarded
    )
