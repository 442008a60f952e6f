"""Listening: the socket, uvicorn, and what is said at the start."""

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
) -> None:
    """Serve indexes until a signal ends it. Whatever is wrong with address, keys or folders is said first."""
    limits = limits or Limits()
    known, where = keys_for(host, keys)  # before anything is opened
    allow_connections(limits)
    return_memory()
    listening = bound(host, port)
    try:
        served = serve_all(paths, settings)
        app = create_app(served, known, host=host, names=names, limits=limits)
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("callslip.server").setLevel(logging.INFO)
        listening.listen(1024)  # whoever comes as soon as we have said where waits a moment, and is not turned away
        shown = f"[{host}]" if ":" in host else host
        for name, one in served.items():
            say(f"serving {name}: {len(one.retriever):,} documents, {one.retriever.method}")
        say(f"open http://{shown}:{listening.getsockname()[1]}/")
        say(f"keys for writing: {where}")
        if not is_loopback(host):
            say("keys and documents cross the network as they are: put a proxy with TLS before this server")
        with suppress(KeyboardInterrupt):  # uvicorn has answered what was under way, and raises it again
            uvicorn.Server(config(app, limits)).run(sockets=[listening])
        say("stopped")
    finally:
        listening.close()


def allow_connections(limits: Limits) -> None:
    """Ask the system for as many open files as there may be connections; a smaller number is no reason to stop."""
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
    """Let glibc give large arrays back when they are dropped.

    An added document makes a new array of all vectors. By default glibc learns from the first few to keep such blocks,
    in an arena for each thread, and the process grows for hours.
    """
    threshold, arenas = -3, -8  # M_MMAP_THRESHOLD and M_ARENA_MAX
    with suppress(OSError, AttributeError, TypeError):  # another C library: nothing is lost
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(threshold, 4 * 1024 * 1024)
        mallopt(arenas, 2)


def bound(host: str, port: int) -> socket.socket:
    """A socket at that address, or an error that says what is wrong with it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio lets small answers go at once (TCP_NODELAY) only where the protocol is named; else each waits 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host.strip("[]"), port))
    except (OSError, OverflowError) as error:
        found.close()
        problem = getattr(error, "strerror", None) or error
        raise BadSetting(
            f"cannot listen at {host}, port {port}: {problem}", "Choose another --port or --host."
        ) from None
    return found


def config(app: Any, limits: Limits) -> uvicorn.Config:
    """uvicorn as we want it: our protocol, no access log (it would hold what people search for), no server name."""
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
