"""Runs the server: the socket, uvicorn, and the messages at start-up."""

from __future__ import annotations

import ctypes
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn

from callslip.errors import BadSetting
from callslip.server.app import create_app
from callslip.server.keys import is_loopback, keys_for
from callslip.server.limits import Limits
from callslip.server.protocol import protocol_for
from callslip.server.serving import serve_all


def serve(
    paths: Sequence[Path],
    *,
    host: str,
    port: int,
    keys: Path | None = None,
    names: tuple[str, ...] = (),
    limits: Limits | None = None,
    settings: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
    mount: Callable[[Any], Any] | None = None,
) -> None:
    """Serve indexes until a signal stops the server. Address, keys and folders are checked first."""
    limits = limits or Limits()
    known, where = keys_for(host, keys)  # checked before anything is opened
    allow_connections(limits)
    return_memory()
    listening = bound(host, port)
    try:
        served = serve_all(paths, settings)
        app = create_app(served, known, host=host, names=names, limits=limits, mount=mount)
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("callslip.server").setLevel(logging.INFO)
        listening.listen(1024)  # queue connections that arrive before uvicorn is ready, instead of refusing them
        shown = f"[{host}]" if ":" in host else host
        for name, one in served.items():
            say(f"serving {name}: {len(one.retriever):,} documents, {one.retriever.method}")
        say(f"open http://{shown}:{listening.getsockname()[1]}/")
        say(f"keys for writing: {where}")
        if not is_loopback(host):
            say("keys and documents are sent unencrypted: put a TLS proxy in front of this server")
        with suppress(KeyboardInterrupt):  # uvicorn finishes open requests, then raises it again
            uvicorn.Server(config(app, limits)).run(sockets=[listening])
        say("stopped")
    finally:
        listening.close()


def allow_connections(limits: Limits) -> None:
    """Raise the limit of open files to the maximum number of connections, as far as the system allows."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def return_memory() -> None:
    """Make glibc return the memory of large arrays to the system when they are freed.

    Adding a document creates a new array of all vectors. By default glibc raises its mmap threshold after the first few
    and keeps such blocks, in one arena per thread, and the process grows for hours.
    """
    threshold, arenas = -3, -8  # M_MMAP_THRESHOLD and M_ARENA_MAX
    with suppress(OSError, AttributeError, TypeError):  # not glibc: nothing to do
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(threshold, 4 * 1024 * 1024)
        mallopt(arenas, 2)


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to the address, or an error with the reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the socket's protocol is given; otherwise small responses are delayed by 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host.strip("[]"), port))
    except (OSError, OverflowError) as error:
        found.close()
        problem = getattr(error, "strerror", None) or error
        raise BadSetting(
            f"cannot listen on {host}, port {port}: {problem}", "Choose another --port or --host."
        ) from None
    return found


def config(app: Any, limits: Limits) -> uvicorn.Config:
    """uvicorn's configuration: our protocol, no access log (it would record queries), no Server header."""
    return uvicorn.Config(
        app,
        http=protocol_for(limits),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(limits.idle_seconds),
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=32 * 1024,
        backlog=1024,
    )
