"""MCP: an agent's tools on an index, called by a client in the same process. Needs callslip[mcp].

For a real agent, name the command in its configuration: `callslip mcp my-index`.
"""

import asyncio

from mcp import Client

import callslip
from callslip.adapters.mcp import IndexTools, mcp_server


async def main() -> None:
    server = mcp_server(IndexTools(callslip.fit("demo", "bm25")))
    async with Client(server) as client:
        print("tools:", ", ".join(tool.name for tool in (await client.list_tools()).tools))
        found = await client.call_tool("search", {"query": "read a file line by line", "k": 3})
        hits = found.structured_content["result"]
        for hit in hits:
            print(hit["rank"], hit["doc_id"], hit["title"])
        document = await client.call_tool("get_document", {"doc_id": hits[0]["doc_id"]})
        print("characters:", len(document.structured_content["text"]))
        why = await client.call_tool("explain", {"query": "read a file", "doc_id": hits[0]["doc_id"]})
        print("rank:", why.structured_content.get("rank"))


asyncio.run(main())
