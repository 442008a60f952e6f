"""The guard at the door: Host and Origin, keys and scopes, sizes and deadlines, and the headers of every answer.

Plain ASGI around the application. A request that does not pass is answered here, before anything of it is parsed; one
that does has its whole body, which was counted while it came in.
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
"""Where a request's scope says whose it is."""
METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE"}
_JSON = re.compile(rb"application/json *(; *charset=\"?utf-8\"? *)?", re.IGNORECASE)


@dataclass(frozen=True)
class Rule:
    """What a route asks of a request."""

    scope: Scope
    large: bool = False
    """Whether its body may be as large as documents are."""
    infers: bool = False
    """Whether it waits for the model, and is refused while too many do."""


class Hosts:
    """Names under which this server may be called. A page that rebinds its own name to our address sends that name."""

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
        # A number cannot be rebound; where only this machine can call, it must be this machine's.
        return address.is_loopback or not self._local


class Guard:
    """Lets requests pass that may, and answers the others itself."""

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
        """The body of a request that passes all checks, cheapest first; raises `ApiError` for one that does not."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        hosts = headers.get(b"host", [])
        if len(hosts) != 1 or not self.hosts.knows(hosts[0]):
            raise ApiError(421, "this server does not go by that name", "Call it by its address, or --allow-host.")
        method = scope["method"]
        if method not in METHODS:
            raise ApiError(405, "this method is not used here")
        rule = self.rule_of(method, scope["path"])
        self._check_origin(headers, hosts[0], page=rule is not None and rule.scope == "open" and method == "GET")
        if rule is None:
            rule = Rule("search")  # which paths exist is told only to those who may search
        key = self._check_key(headers, rule)
        # Whoever has a key is known by it; others by their address, of which a proxy has one for all.
        scope[CLIENT] = client = f"key {key}" if key else f"at {(scope.get('client') or ('',))[0]}"
        if method not in ("POST", "PUT"):
            return await self._body(receive, headers, 0)
        if rule.infers and self.full(client):
            raise Busy
        if not _JSON.fullmatch(headers.get(b"content-type", [b""])[0]):
            raise ApiError(415, "the body is not declared as JSON", "Send Content-Type: application/json.")
        if headers.get(b"content-encoding", [b"identity"]) != [b"identity"]:
            raise ApiError(415, "the body is compressed", "Send it as it is.")
        return await self._body(receive, headers, self.limits.write_body if rule.large else self.limits.body)

    def _check_origin(self, headers: dict[bytes, list[bytes]], host: bytes, page: bool) -> None:
        """Refuse what another site's page sends. A link to our page is welcome; it carries no Origin."""
        for origin in headers.get(b"origin", []):
            if origin.lower() not in (b"http://" + host.lower(), b"https://" + host.lower()):
                raise ApiError(403, "requests of other sites are refused")
        fetch = headers.get(b"sec-fetch-site", [b"none"])
        if fetch[0].lower() in (b"none", b"same-origin"):
            return
        if page and headers.get(b"sec-fetch-mode", [b""])[0] == b"navigate":
            return
        raise ApiError(403, "requests of other sites are refused")

    def _check_key(self, headers: dict[bytes, list[bytes]], rule: Rule) -> str | None:
        """The key of a request that may do what it asks for; None if it has none and needs none."""
        if rule.scope == "open":
            return None
        given = headers.get(b"authorization", [])
        key = None
        if given:
            kind, _, key = given[0].decode("latin-1").partition(" ")
            if len(given) > 1 or kind.lower() != "bearer" or not key:
                raise ApiError(401, "the key cannot be read", "Send Authorization: Bearer KEY.")
            key = key.strip().encode("latin-1").decode("utf-8", "surrogateescape")
        allowed = self.keys.allowed(key)
        if allowed is None:
            raise ApiError(401, "the key is not known", "Send Authorization: Bearer KEY with a key of this server.")
        if rule.scope not in allowed:
            if key is None:
                raise ApiError(401, f"this needs a key for {rule.scope}", "Send Authorization: Bearer KEY.")
            raise ApiError(403, f"this key is not for {rule.scope}", "Use another key.")
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
            raise ApiError(408, "the body did not come in time") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body at once, then whatever comes: that the client is gone."""
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
