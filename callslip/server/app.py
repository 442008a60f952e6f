"""The ASGI application: the routes, the server state they share, and the guard around them."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from callslip import __version__
from callslip.errors import CallslipError, IndexCorrupt
from callslip.runtime.patience import Locked, patience
from callslip.server import responses
from callslip.server.errors import ApiError, Busy, TooLate, body_of
from callslip.server.guard import Guard, Hosts, Receive, Send
from callslip.server.inference import Inference, Job
from callslip.server.keys import Keys
from callslip.server.limits import Limits
from callslip.server.metrics import Metrics
from callslip.server.serving import Served

ERRORS = (400, 401, 403, 404, 405, 408, 413, 415, 421, 422, 503)
"""HTTP statuses whose response body is an error with a remedy."""
POLL = 1.0
"""Seconds between checks for a newer generation."""
log = logging.getLogger("callslip.server")

FIELDS = frozenset({
    "body", "query", "path", "text", "title", "metadata", "doc_id", "doc_ids", "documents", "index", "k", "beam",
    "filter", "explain", "characters", "history", "keep_history", "queries", "where", "where_not", "allow", "deny",
    "low", "high", "on_conflict", "prefix", "depth", "limit", "offset", "contains",
})  # fmt: skip
"""Names that an error message may repeat; any other text comes from the client."""


class JsonRequest(Request):
    """A request whose body is parsed as strict JSON: no NaN, no lone surrogates, bounded nesting."""

    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError:
            raise json.JSONDecodeError("not JSON", "", 0) from None


class JsonRoute(APIRoute):
    """A route whose requests are `JsonRequest`s."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handler


class Server:
    """Shared state of the routes: indexes, the inference thread, the writer thread, metrics."""

    def __init__(self, served: Mapping[str, Served], limits: Limits) -> None:
        self.served, self.limits = dict(served), limits
        self.first = next(iter(self.served))
        self.inference = Inference(self.retriever_of, limits, on_batch=lambda n, s: self.metrics.batch(n, s))
        self.metrics = Metrics(self.served, lambda: self.inference.queued)
        # Reading documents and metrics must not wait for a long write or for the model.
        self.writer = ThreadPoolExecutor(1, "callslip-writer")
        self.readers = ThreadPoolExecutor(2, "callslip-reader")
        self._writes = self._reads = 0

    def retriever_of(self, name: str) -> Any:
        return self.served[name].retriever

    def index(self, name: str | None) -> Served:
        """The index of a name, among those given at start-up; a request never opens an index."""
        found = self.served.get(self.first if name is None else name)
        if found is None:
            raise ApiError(404, "unknown index", "See /v1/indexes for the indexes of this server.")
        return found

    async def write(self, do: Callable[[], Any]) -> Any:
        """Run in the writer thread; raises `Busy` if its queue is full, or if the deadline passes in the queue. A write
        that has started is finished, but waits for locks of other processes only until the deadline."""
        if self._writes >= self.limits.writes:
            raise Busy

        def patiently() -> Any:
            with patience(self.limits.deadline):
                return do()

        self._writes += 1
        try:
            waiting = self.writer.submit(patiently)
            done = asyncio.wrap_future(waiting)
            await asyncio.wait([done], timeout=self.limits.deadline)
            if not done.done() and waiting.cancel():
                raise Busy
            return await done
        finally:
            self._writes -= 1

    async def read(self, do: Callable[[], Any]) -> Any:
        """Run in a reader thread, in parallel to the model: for codes, documents and metrics."""
        if self._reads >= self.limits.queue:
            raise Busy
        self._reads += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.readers, do)
        finally:
            self._reads -= 1

    async def answer(self, request: Request, job: Job) -> Any:
        """The result of a job of the inference thread; the job is cancelled if the client disconnects."""
        leaving = asyncio.ensure_future(request.receive())
        leaving.add_done_callback(lambda task: None if task.cancelled() else setattr(job, "left", True))
        began = time.monotonic()
        try:
            # The thread checks the deadline itself, between two levels; this timeout covers a slow level.
            async with asyncio.timeout(self.limits.deadline + 1):
                return await job.answer
        except TimeoutError:
            raise TooLate from None
        finally:
            leaving.cancel()
            self.metrics.seconds.observe(time.monotonic() - began)

    async def look_for_newer(self) -> None:
        """Switch to new generations as they appear; what the page shows of one is computed before a visitor waits."""
        for one in self.served.values():
            await self._count(one)
        while True:
            await asyncio.sleep(POLL)
            for one in self.served.values():
                try:
                    if await asyncio.to_thread(one.renew):
                        log.info("index %s: generation %s", one.name, one.retriever.living.generation)
                        await self._count(one)
                except Exception as error:  # keep the old one; the next check may succeed
                    log.warning("index %s: the new generation cannot be opened: %s", one.name, error)

    async def _count(self, one: Served) -> None:
        try:
            await asyncio.to_thread(one.facets)
        except Exception as error:  # whoever asks for them gets the error
            log.warning("index %s: its facets cannot be counted: %s", one.name, error)

    def stop(self) -> None:
        self.inference.stop()
        self.writer.shutdown(wait=True)
        self.readers.shutdown(wait=False, cancel_futures=True)


class Application:
    """The ASGI application: FastAPI behind the guard, and the server state of its routes."""

    def __init__(self, guard: Guard, server: Server, fastapi: FastAPI) -> None:
        self.guard, self.server, self.fastapi = guard, server, fastapi

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await self.guard(scope, receive, send)


def create_app(
    served: Mapping[str, Served],
    keys: Keys,
    *,
    host: str = "127.0.0.1",
    names: tuple[str, ...] = (),
    limits: Limits | None = None,
    mount: Callable[[Any], Any] | None = None,
) -> Application:
    """Create the ASGI application: FastAPI behind the guard. `mount` makes another application of the server's tools,
    such as MCP's, whose routes are added to the others."""
    from callslip.server.routes import add_routes, rule_of, tools_of

    limits = limits or Limits()
    server = Server(served, limits)
    mounted = None if mount is None else mount(tools_of(server))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watcher = asyncio.create_task(server.look_for_newer())
        async with nullcontext() if mounted is None else mounted.router.lifespan_context(mounted):
            yield
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
        await asyncio.to_thread(server.stop)

    app = FastAPI(
        title="Callslip",
        version=__version__,
        description="Generative retrieval: search with a model that writes the codes of documents.",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # the docs pages load scripts from the internet
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses={status: {"model": responses.ErrorAnswer} for status in ERRORS},
    )
    app.router.route_class = JsonRoute
    add_routes(app, server)
    if mounted is not None:
        app.router.routes.extend(mounted.routes)
    _handle_errors(app)

    def seen(scope: Mapping[str, Any], status: int) -> None:
        route = getattr(scope.get("route"), "path", "other")
        server.metrics.requests.labels(route, str(status)).inc()

    guard = Guard(
        app,  # type: ignore[arg-type]
        keys=keys,
        hosts=Hosts(host, names),
        limits=limits,
        rule_of=rule_of,
        full=server.inference.full,
        seen=seen,
    )
    return Application(guard, server, app)


def _handle_errors(app: FastAPI) -> None:
    def answer(status: int, problem: str, remedy: str = "", where: Any = None, headers: Any = None) -> JSONResponse:
        return JSONResponse(body_of(status, problem, remedy, where), status, headers=headers)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        """The location and type of the error, without any part of the request."""
        assert isinstance(error, RequestValidationError)
        where = [
            {"at": [part for part in one["loc"] if isinstance(part, int) or part in FIELDS], "problem": one["type"]}
            for one in error.errors()[:8]
        ]
        return answer(422, "the request does not match the API's schema", "See /v1/openapi.json.", where)

    async def api(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        headers = None if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return answer(error.status, error.problem, error.remedy, headers=headers)

    async def ours(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, CallslipError)
        if isinstance(error, Locked):
            return answer(503, "another process is writing to the index", error.remedy, headers={"Retry-After": "5"})
        if isinstance(error, IndexCorrupt):
            log.error("%s", error)
            return answer(500, "the index is corrupt", "See the server's log, and run callslip check.")
        return answer(400, error.problem, error.remedy)

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        problem = {404: "not found", 405: "method not allowed"}
        return answer(error.status_code, problem.get(error.status_code, "bad request"))

    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        log.error("internal error", exc_info=error)
        return answer(500, "internal server error", "See the server's log.")

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(ApiError, api)
    app.add_exception_handler(CallslipError, ours)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unforeseen)
