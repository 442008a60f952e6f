"""uvicorn's HTTP protocol with a timeout for the request head, and a limit on open connections.

uvicorn has no timeout for the request head, so slow clients (Slowloris) could hold connections forever. Here there is a
timeout; and when there are too many connections, the one that has waited longest for its head is closed, never one
that is being served.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from callslip.server.limits import Limits


def protocol_for(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol class of a server."""
    waiting: OrderedDict[Any, None] = OrderedDict()  # connections without a complete head, oldest first
    open_connections: set[Any] = set()

    class Patient(H11Protocol):
        head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            open_connections.add(self)
            self._await_head()
            if len(open_connections) > limits.connections:
                oldest = next(iter(waiting))
                oldest.give_up()

        def connection_lost(self, exc: Exception | None) -> None:
            open_connections.discard(self)
            self._head_came()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._head_came()
            elif self.head_timer is None:  # the first bytes of the next request on this connection
                self._await_head()

        def on_response_complete(self) -> None:
            self._head_came()
            super().on_response_complete()
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                waiting[self] = None  # idle; uvicorn's keep-alive timeout applies

        def _await_head(self) -> None:
            self.head_timer = self.loop.call_later(limits.head_seconds, self.give_up)
            waiting[self] = None

        def _head_came(self) -> None:
            waiting.pop(self, None)
            if self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None

        def give_up(self) -> None:
            """Close a connection whose request head timed out."""
            self._head_came()
            open_connections.discard(self)
            if self.transport is not None and not self.transport.is_closing():
                self.transport.abort()

    return Patient
