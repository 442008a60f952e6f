"""ASGI middleware that checks every request: Host and Origin, keys and scopes, sizes and timeouts; and sets the headers
of every response.

Rejected requests are answered here, before any parsing. Accepted requests have their body already received, within the
size limit.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from callslip.server.errors import ApiError, Busy, bytes_of
from callslip.server.keys import Keys, Scope, is_loopback
from callslip.server.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'none'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = [
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-store"),
]
CLIENT = "callslip.client"
"""Key of the client's identity in the ASGI scope."""
METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE"}
_JSON = re.compile(rb"application/json *(; *charset=\"?utf-8\"? *)?", re.IGNORECASE)


@dataclass(frozen=True)
class Rule:
    """Requirements of a route."""

    scope: Scope
    large: bool = False
    """Whether the larger body limit for documents applies."""
    infers: bool = False
    """Whether the route waits for the model, and gets 503 while the queue is full."""


class Hosts:
    """Accepted Host headers, against DNS rebinding: a page that rebinds its name to our address sends that name."""

    def __init__(self, host: str, names: Iterable[str] = ()) -> None:
        self._local = is_loopback(host)
        self._names = {"localhost", host.lower().strip("[]"), *(name.lower() for name in names)}

    def knows(self, header: bytes) -> bool:
        try:
            text = header.decode("ascii").lower()
        except UnicodeDecodeError:
            return False
        found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(:[0-9]{1,5})?", text)
        if not found:
            return False
        name = found[1].strip("[]")
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # An IP address cannot be rebound; on loopback, it must be a loopback address.
        return address.is_loopback or not self._local


class Guard:
    """Passes on permitted requests, and rejects the others."""

    def __init__(
        self,
        app: App,
        *,
        keys: Keys,
        hosts: Hosts,
        limits: Limits,
        rule_of: Callable[[str, str], Rule | None],
        full: Callable[[str], bool],
        seen: Callable[[MutableMapping[str, Any], int], None],
    ) -> None:
        self.app, self.keys, self.hosts, self.limits = app, keys, hosts, limits
        self.rule_of, self.full, self.seen = rule_of, full, seen

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        answered = 0

        async def answer(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = message["status"]
                given = {name for name, _ in message.get("headers", [])}
                message["headers"] = [*message.get("headers", []), *(h for h in HEADERS if h[0] not in given)]
            await send(message)

        try:
            body = await self._admitted(scope, receive)
            await self.app(scope, _replay(body, receive), answer)
        except ApiError as error:
            await _refuse(answer, error)
        finally:
            self.seen(scope, answered)

    async def _admitted(self, scope: MutableMapping[str, Any], receive: Receive) -> bytes:
        """Run all checks, cheapest first, and return the body; raises `ApiError` if one fails."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not self.hosts.knows(hosts[0]):
            raise ApiError(421, "unknown Host header", "Use the server's address, or start it with --allow-host.")
        method = scope["method"]
        if method not in METHODS:
            raise ApiError(405, "method not allowed")
        rule = self.rule_of(method, scope["path"])
        self._check_origin(headers, hosts[0], page=rule is not None and rule.scope == "open" and method == "GET")
        if rule is None:
            rule = Rule("search")  # only clients with the search scope may learn which paths exist
        key = self._check_key(headers, rule)
        # Clients are identified by key, or by address, which is the same for all behind a proxy.
        scope[CLIENT] = client = f"key {key}" if key else f"at {(scope.get('client') or ('',))[0]}"
        if method not in ("POST", "PUT"):
            return await self._body(receive, headers, 0)
        if rule.infers and self.full(client):
            raise Busy
        if not _JSON.fullmatch(headers.get(b"content-type", [b""])[0]):
            raise ApiError(415, "the Content-Type is not JSON", "Send Content-Type: application/json.")
        if headers.get(b"content-encoding", [b"identity"]) != [b"identity"]:
            raise ApiError(415, "compressed bodies are not supported", "Send the body uncompressed.")
        return await self._body(receive, headers, self.limits.write_body if rule.large else self.limits.body)

    def _check_origin(self, headers: dict[bytes, list[bytes]], host: bytes, page: bool) -> None:
        """Reject cross-site requests. A link to our page is allowed, and has no Origin header."""
        for origin in headers.get(b"origin", []):
            if origin.lower() not in (b"http://" + host.lower(), b"https://" + host.lower()):
                raise ApiError(403, "cross-site requests are not allowed")
        fetch = headers.get(b"sec-fetch-site", [b"none"])
        if fetch[0].lower() in (b"none", b"same-origin"):
            return
        if page and headers.get(b"sec-fetch-mode", [b""])[0] == b"navigate":
            return
        raise ApiError(403, "requests of other sites are refused")

    def _check_key(self, headers: dict[bytes, list[bytes]], rule: Rule) -> str | None:
        """The key of a request, after checking its scope; None if there is no key and none is needed."""
        if rule.scope == "open":
            return None
        given = headers.get(b"authorization", [])
        key = None
        if given:
            kind, _, key = given[0].decode("latin-1").partition(" ")
            if len(given) > 1 or kind.lower() != "bearer" or not key:
                raise ApiError(401, "malformed Authorization header", "Send Authorization: Bearer KEY.")
            key = key.strip().encode("latin-1").decode("utf-8", "surrogateescape")
        allowed = self.keys.allowed(key)
        if allowed is None:
            raise ApiError(401, "unknown API key", "Send Authorization: Bearer KEY with a key of this server.")
        if rule.scope not in allowed:
            if key is None:
                raise ApiError(401, f"this needs an API key for {rule.scope}", "Send Authorization: Bearer KEY.")
            raise ApiError(403, f"this API key lacks the scope {rule.scope}", "Use another key.")
        return key

    async def _body(self, receive: Receive, headers: dict[bytes, list[bytes]], most: int) -> bytes:
        length = headers.get(b"content-length", [b"0"])[0]
        if not length.isdigit() or int(length[:12]) > most:
            raise ApiError(413, f"the body has more than {most:,} bytes", "Send less at a time.")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "the connection was closed")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise ApiError(413, f"the body has more than {most:,} bytes", "Send less at a time.")
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, "timeout while receiving the body") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Replay the received body, then pass on further messages, such as a disconnect."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


async def _refuse(send: Send, error: ApiError) -> None:
    headers = [(b"content-type", b"application/json")]
    if error.status in (408, 413):
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    body = bytes_of(error.status, error.problem, error.remedy)
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
