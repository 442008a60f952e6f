"""callslip mcp: an index as tools of a language model, over standard input and output."""

from __future__ import annotations

from typing import Annotated

import typer

from callslip.cli import app, options


@app.command()
def mcp(
    index: options.IndexArgument,
    name: Annotated[str, typer.Option("--name", help="Name of the server, as the agent sees it.")] = "callslip",
    set_: options.SearchSetOption = None,
    store: options.StoreOption = None,
) -> None:
    """Serve an index as MCP tools (search, get_document, explain) over standard input and output."""
    from callslip.adapters.mcp import IndexTools, mcp_server

    retriever = options.open_index(index, set_)
    options.say(f"serving {index} over MCP: {options.counted(len(retriever), 'document')}, {retriever.method}")
    mcp_server(IndexTools(retriever), name).run("stdio")
