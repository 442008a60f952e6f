"""callslip serve: the HTTP API and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from callslip.cli import app, options
from callslip.errors import MissingExtra


@app.command()
def serve(
    indexes: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Saved indexes; two are searched side by side.")
    ],
    host: Annotated[
        str, typer.Option("--host", help="The address to listen at; any but loopback needs --keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 8000,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", help="A private file of API keys, each with its scopes: KEY search,write,admin."),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A name that clients may call this server by; repeatable.")
    ] = None,
    queue: Annotated[
        int, typer.Option("--queue", min=1, help="Queries that may wait; others are told to come back.")
    ] = 64,
    deadline: Annotated[float, typer.Option("--deadline", min=0.01, help="Seconds until a search is given up.")] = 10.0,
    set_: options.SearchSetOption = None,
    store: options.StoreOption = None,
) -> None:
    """Serve indexes: a page for people, an API for programs. Reachable from this machine only, unless you say so."""
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
    )
