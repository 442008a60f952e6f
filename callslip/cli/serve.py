"""callslip serve: serve indexes over HTTP, with an API and a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from callslip.cli import app, options
from callslip.errors import MissingExtra


@app.command()
def serve(
    indexes: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Saved indexes; the page searches several side by side.")
    ],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; any address but loopback needs --keys.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 8000,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys", help="Private file of API keys with their scopes, one per line: KEY search,write,admin."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="Host name that clients may use for this server; repeatable."),
    ] = None,
    queue: Annotated[
        int,
        typer.Option("--queue", min=1, help="Maximum number of queued queries; further ones get 503 with Retry-After."),
    ] = 64,
    deadline: Annotated[float, typer.Option("--deadline", min=0.01, help="Timeout of a search in seconds.")] = 10.0,
    mcp: Annotated[
        bool, typer.Option("--mcp", help="Also serve MCP tools over streamable HTTP at /mcp, for agents.")
    ] = False,
    set_: options.SearchSetOption = None,
    store: options.StoreOption = None,
) -> None:
    """Serve indexes over HTTP: a web page and an API. By default the server accepts local connections only."""
    from callslip.settings import parse_assignments

    try:
        from callslip.server.limits import Limits
        from callslip.server.run import serve as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in (
            "fastapi",
            "uvicorn",
            "pydantic",
            "starlette",
            "prometheus_client",
            "h11",
        ):
            raise MissingExtra("callslip serve", "serve") from None
        raise
    run(
        indexes,
        host=host,
        port=port,
        keys=keys,
        names=tuple(allow_host or ()),
        limits=Limits(queue=queue, deadline=deadline),
        settings=parse_assignments(set_ or []),
        say=options.say,
        mount=_mcp_app if mcp else None,
    )


def _mcp_app(tools: Any) -> Any:
    """MCP's application on the server's tools."""
    from callslip.adapters.mcp import http_app

    return http_app(tools)
