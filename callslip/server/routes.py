"""The routes under /v1, the web page, and the rule of each route; a route without a rule is always rejected."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from callslip import __version__
from callslip.corpus.documents import Document
from callslip.corpus.documents import Query as SearchQuery
from callslip.filters.filter import Filter
from callslip.identifiers.table import code_to_text, text_to_code
from callslip.index.retriever import Retriever
from callslip.search.hits import Hit
from callslip.server import explorer, health, limits, responses, schema
from callslip.server.app import Server
from callslip.server.errors import ApiError, TooLate
from callslip.server.explain import explain
from callslip.server.guard import CLIENT, Rule
from callslip.server.inference import Asked
from callslip.server.page import PAGE
from callslip.server.serving import Served
from callslip.server.tools import ServedTools

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/healthz"): Rule("open"),
    ("GET", "/metrics"): Rule("admin"),
    ("GET", "/v1/openapi.json"): Rule("search"),
    ("GET", "/v1/indexes"): Rule("search"),
    ("POST", "/v1/search"): Rule("search", infers=True),
    ("POST", "/v1/explain"): Rule("search", infers=True),
    ("GET", "/v1/documents/{doc_id:path}"): Rule("search"),
    ("GET", "/v1/documents"): Rule("search"),
    ("GET", "/v1/neighbours"): Rule("search"),
    ("GET", "/v1/facets"): Rule("search"),
    ("GET", "/v1/examples"): Rule("search"),
    ("PUT", "/v1/documents/{doc_id:path}"): Rule("write", large=True),
    ("DELETE", "/v1/documents/{doc_id:path}"): Rule("write"),
    ("POST", "/v1/documents"): Rule("write", large=True),
    ("POST", "/v1/documents/delete"): Rule("write"),
    ("POST", "/v1/learn"): Rule("write", large=True),
    ("GET", "/v1/codes"): Rule("search"),
    ("GET", "/v1/codes/documents"): Rule("search"),
    ("GET", "/v1/health"): Rule("search"),
    ("GET", "/v1/training"): Rule("search"),
    ("POST", "/v1/compact"): Rule("admin"),
    **{("GET", path): Rule("open") for path in PAGE},
}
MOUNTED = {("POST", "/mcp"): Rule("search", infers=True)}
"""Rules of routes that exist only if `create_app` mounts them."""
DOCUMENT = "/v1/documents/{doc_id:path}"


def rule_of(method: str, path: str) -> Rule | None:
    """The rule of a request, by method and path alone."""
    found = RULES.get((method, path)) or MOUNTED.get((method, path))
    if found is None and path.startswith("/v1/documents/"):
        found = RULES.get((method, DOCUMENT))
    return found


IndexParameter = Annotated[str | None, Query(max_length=256, description="Name of the index; by default the first.")]
NameParameter = Annotated[str, Path(min_length=1, max_length=limits.ID_CHARACTERS)]
PrefixParameter = Annotated[
    str, Query(max_length=512, pattern=r"^(\d{1,9}(-\d{1,9})*(-end)?)?$", description="Tokens joined by '-': 12-7.")
]


def add_routes(app: FastAPI, server: Server) -> None:
    """Add all routes."""
    _add_plain(app, server)
    _add_search(app, server)
    _add_documents(app, server)
    _add_codes(app, server)
    _add_overview(app, server)


def tools_of(server: Server) -> ServedTools:
    """The tools of an agent on the first index."""
    return ServedTools(server, _document)


def _add_plain(app: FastAPI, server: Server) -> None:
    def page(path: str) -> Any:
        async def send() -> Response:
            kind, contents = PAGE[path]
            return Response(contents, media_type=kind, headers={"Cache-Control": "no-cache"})

        return send

    for path in PAGE:
        app.add_api_route(path, page(path), include_in_schema=False)

    @app.get("/healthz", response_model=responses.Ready)
    async def healthz() -> Response:
        """Liveness check."""
        return JSONResponse({"status": "ok", "version": __version__})

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(await server.read(server.metrics.text), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/indexes", response_model=responses.IndexesAnswer)
    async def indexes() -> Response:
        """List the indexes of this server."""
        found = [health.facts(name, one.retriever) for name, one in server.served.items()]
        return JSONResponse({"indexes": found, "writable": True})

    @app.get("/v1/health", response_model=responses.HealthAnswer)
    async def health_of(index: IndexParameter = None) -> Response:
        """The diagnosis of an index's codes, with metrics and plots."""
        one = server.index(index)
        return JSONResponse(await server.read(one.health))

    @app.get("/v1/training", response_model=responses.TrainingAnswer)
    async def training(index: IndexParameter = None) -> Response:
        """The training log, one record per epoch."""
        return JSONResponse({"records": health.records(server.index(index).retriever)})

    @app.post("/v1/compact", response_model=responses.ChangeAnswer)
    async def compact(body: schema.CompactRequest) -> Response:
        """Write a new generation without the deleted documents. Searches continue, except for a brief pause."""
        one = server.index(body.index)
        await server.write(lambda: one.change(lambda retriever: retriever.compact()))
        return JSONResponse(_changed(one.name, one.retriever, 0, 0))


def _add_search(app: FastAPI, server: Server) -> None:
    @app.post("/v1/search", response_model=responses.SearchAnswer, responses={504: {"model": responses.ErrorAnswer}})
    async def search(body: schema.SearchRequest, request: Request) -> Response:
        """Search with one query, or with a batch of queries."""
        began = time.monotonic()
        one = server.index(body.index)
        asked = Asked(one.name, body.k, body.beam, body.explain, body.keep_history)
        filter = await _ready(server, one, body.filter)
        job = server.inference.put(asked, body.made(), filter, client=request.scope[CLIENT])
        lists = await server.answer(request, job)
        words, tree = explorer.vocabulary_of(one.retriever), explorer.tree_levels(one.retriever)
        results = [
            {
                "hits": [_hit(hit, body, words, tree) for hit in hits],
                "unsure": hits.unsure,
                "confidence": hits.confidence,
            }
            for hits in lists
        ]
        seconds = round(time.monotonic() - began, 4)
        return JSONResponse({"index": one.name, "results": results, "seconds": seconds})

    @app.post("/v1/explain", response_model=responses.ExplainAnswer, responses={504: {"model": responses.ErrorAnswer}})
    async def explained(body: schema.ExplainRequest, request: Request) -> Response:
        """Explain the rank of a document for a query, level by level, and where it fell out of the beam."""
        one = server.index(body.index)
        query = SearchQuery("0", body.query, tuple(body.history))
        filter = await _ready(server, one, body.filter)
        job = server.inference.put(
            call=lambda: explain(one.retriever, query, body.doc_id, body.k, body.beam, filter, body.keep_history),
            client=request.scope[CLIENT],
        )
        reply = {"index": one.name} | await server.answer(request, job)
        if reply["levels"]:
            words = await server.read(lambda: one.explorer.words(one.retriever, [x["token"] for x in reply["levels"]]))
            for level, found in zip(reply["levels"], words, strict=True):
                level["words"] = found
        return JSONResponse(reply)


async def _ready(server: Server, one: Served, given: schema.FilterModel | None) -> Filter | None:
    """Compute and cache a filter's mask outside the inference thread, which also reports invalid filters early."""
    if given is None:
        return None
    filter, retriever = given.made(), one.retriever
    try:
        async with asyncio.timeout(server.limits.deadline):
            await server.read(lambda: retriever.living.read(lambda: retriever.rows.mask(filter)))
    except TimeoutError:
        raise TooLate from None
    return filter


def _hit(hit: Hit, body: schema.SearchRequest, words: Any, tree: int | None) -> dict[str, Any]:
    reply = {
        "rank": hit.rank,
        "doc_id": hit.doc_id,
        "score": hit.score,
        "title": hit.title,
        "text": hit.text[: body.characters],
        "truncated": len(hit.text) > body.characters,
        "code": None if hit.code is None else [token for token in hit.code if token >= 0],
        "code_text": code_to_text(hit.code or (), words, tree),
    }
    return reply | {"why": hit.why} if body.explain else reply


def _add_documents(app: FastAPI, server: Server) -> None:
    @app.post("/v1/documents", response_model=responses.ChangeAnswer, responses={409: {"model": responses.ErrorAnswer}})
    async def add(body: schema.AddRequest) -> Response:
        """Add documents, all or none. When the response arrives, they are searchable and durable."""
        one = server.index(body.index)
        documents = [new.made() for new in body.documents]
        if len({document.doc_id for document in documents}) < len(documents):
            raise ApiError(409, "duplicate doc_id", "Give every document its own doc_id.")
        replace = body.on_conflict == "replace"
        return JSONResponse(await server.write(lambda: one.change(lambda r: _put(one.name, r, documents, replace))))

    @app.post("/v1/documents/delete", response_model=responses.ChangeAnswer)
    async def delete_some(body: schema.DeleteRequest) -> Response:
        """Delete documents, all or none."""
        one = server.index(body.index)
        return JSONResponse(await server.write(lambda: one.change(lambda r: _delete(one.name, r, body.doc_ids))))

    @app.post("/v1/learn", response_model=responses.LearnAnswer, responses={409: {"model": responses.ErrorAnswer}})
    async def learn(body: schema.LearnRequest) -> Response:
        """Remember which documents answered which queries, all or none, without training. For an index of a log,
        `query` is a user, known or new, and `doc_ids` are the items that this user had next, oldest first, which are
        counted. When the response arrives, searches find by it, and it is durable."""
        one = server.index(body.index)
        answers = body.made()
        return JSONResponse(await server.write(lambda: one.change(lambda r: _learn(one.name, r, answers))))

    @app.get(DOCUMENT, response_model=responses.DocumentAnswer)
    async def get(doc_id: NameParameter, index: IndexParameter = None) -> Response:
        """Get a document and its code."""
        one = server.index(index)
        return JSONResponse(await server.read(lambda: _document(one.name, one.retriever, doc_id)))

    @app.put(DOCUMENT, response_model=responses.ChangeAnswer)
    async def put(doc_id: NameParameter, body: schema.NewText, index: IndexParameter = None) -> Response:
        """Add a document, or replace the one with the same doc_id."""
        one = server.index(index)
        if not doc_id.strip() or "\0" in doc_id:
            raise ApiError(422, "invalid doc_id")
        new = [body.made(doc_id)]
        return JSONResponse(await server.write(lambda: one.change(lambda r: _put(one.name, r, new, True))))

    @app.delete(DOCUMENT, response_model=responses.ChangeAnswer)
    async def delete(doc_id: NameParameter, index: IndexParameter = None) -> Response:
        """Delete a document. The weights of a trained model may still encode it until the next fit."""
        one = server.index(index)
        return JSONResponse(await server.write(lambda: one.change(lambda r: _delete(one.name, r, [doc_id]))))


def _put(name: str, retriever: Retriever, documents: list[Document], replace: bool) -> dict[str, Any]:
    retriever.refresh(now=True)
    known = sum(document.doc_id in retriever.row_of() for document in documents)
    if known and not replace:
        raise ApiError(409, "a document with this doc_id already exists", "Use on_conflict=replace, or PUT.")
    retriever.update(documents)
    return _changed(name, retriever, len(documents), len(documents) - known)


def _delete(name: str, retriever: Retriever, doc_ids: list[str]) -> dict[str, Any]:
    retriever.refresh(now=True)
    if any(doc_id not in retriever.row_of() for doc_id in doc_ids):
        raise ApiError(404, "unknown document", "It may already have been deleted; check the doc_id.")
    retriever.delete(doc_ids)
    return _changed(name, retriever, len(set(doc_ids)), 0)


def _learn(name: str, retriever: Retriever, answers: dict[str, list[str]]) -> dict[str, Any]:
    retriever.refresh(now=True)
    known = retriever.row_of()
    if any(doc_id not in known for doc_ids in answers.values() for doc_id in doc_ids):
        raise ApiError(404, "unknown document", "It may already have been deleted; check the doc_ids.")
    done = retriever.learn_answers(answers)
    reply = {"queries": done.queries, "answers": done.answers, "remembered": done.remembered}
    return {"index": name, **reply, "version": retriever.living.version}


def _changed(name: str, retriever: Retriever, changed: int, created: int) -> dict[str, Any]:
    return {"index": name, "changed": changed, "created": created, "version": retriever.living.version}


def _document(name: str, retriever: Retriever, doc_id: str) -> dict[str, Any]:
    def read() -> dict[str, Any]:
        row = retriever.row_of().get(doc_id)
        if row is None:
            raise ApiError(404, "unknown document", "It may have been deleted; check the doc_id.")
        document = retriever.documents.rows([row])[0]
        code, text = _code(retriever, row)
        return {
            "index": name,
            "doc_id": document.doc_id,
            "title": document.title,
            "text": document.text,
            "metadata": dict(document.metadata),
            "code": code,
            "code_text": text,
        }

    return retriever.living.read(read, now=True)


def _code(retriever: Retriever, row: int) -> tuple[list[int] | None, str]:
    import numpy as np

    part = explorer.coded(retriever)
    if part is None:
        return None, ""
    identifiers = part.identifiers  # type: ignore[attr-defined]
    code = identifiers.code_at(int(np.flatnonzero(identifiers.rows == row)[0]))
    return list(code), code_to_text(code, explorer.vocabulary_of(retriever), explorer.tree_levels(retriever))


def _add_codes(app: FastAPI, server: Server) -> None:
    none: dict[int | str, dict[str, Any]] = {409: {"model": responses.ErrorAnswer}}

    @app.get("/v1/codes", response_model=responses.TreeAnswer, responses=none)
    async def children(
        index: IndexParameter = None,
        prefix: PrefixParameter = "",
        depth: Annotated[int, Query(ge=1, le=2)] = 1,
        limit: Annotated[int, Query(ge=1, le=256)] = 64,
    ) -> Response:
        """The children of a prefix: tokens, number of documents below each, and their characteristic words."""
        one, tokens = server.index(index), _tokens(prefix)
        return JSONResponse(await server.read(lambda: one.explorer.children(one.retriever, tokens, depth, limit)))

    @app.get("/v1/codes/documents", response_model=responses.BucketAnswer, responses=none)
    async def bucket(
        index: IndexParameter = None,
        prefix: PrefixParameter = "",
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> Response:
        """The documents below a prefix; for a complete code, those of its bucket."""
        one, tokens = server.index(index), _tokens(prefix)
        return JSONResponse(await server.read(lambda: one.explorer.documents(one.retriever, tokens, offset, limit)))


def _add_overview(app: FastAPI, server: Server) -> None:
    none: dict[int | str, dict[str, Any]] = {409: {"model": responses.ErrorAnswer}}

    @app.get("/v1/neighbours", response_model=responses.NeighboursAnswer, responses=none)
    async def neighbours(
        doc_id: Annotated[str, Query(min_length=1, max_length=limits.ID_CHARACTERS)],
        index: IndexParameter = None,
        limit: Annotated[int, Query(ge=1, le=50)] = 10,
    ) -> Response:
        """The documents whose codes share the longest prefixes with that of a document."""
        one = server.index(index)
        found = await server.read(lambda: one.explorer.neighbours(one.retriever, doc_id, limit))
        return JSONResponse({"index": one.name} | found)

    @app.get("/v1/documents", response_model=responses.ListAnswer)
    async def listed(
        index: IndexParameter = None,
        contains: Annotated[str, Query(max_length=256, description="A text in the title or doc_id.")] = "",
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> Response:
        """Documents in the order in which they were added. With `contains`, the first 20,000 are looked through, and
        `complete` tells whether these are all; the document with this doc_id and those that begin with the text come
        first."""
        one = server.index(index)
        return JSONResponse({"index": one.name} | await server.read(lambda: one.listed(contains, offset, limit)))

    @app.get("/v1/facets", response_model=responses.FacetsAnswer)
    async def facets(index: IndexParameter = None) -> Response:
        """Metadata fields with at most 24 values, and the number of documents of each value, for filters."""
        one = server.index(index)
        return JSONResponse({"index": one.name} | await server.read(one.facets))

    @app.get("/v1/examples", response_model=responses.ExamplesAnswer)
    async def examples(index: IndexParameter = None) -> Response:
        """Queries to begin with: titles or first sentences of documents, never what others have asked. For an index
        that reads histories, short histories of items that several users of the log had, without the users' names."""
        one = server.index(index)
        found = {"queries": await server.read(one.examples), "histories": await server.read(one.histories)}
        return JSONResponse({"index": one.name} | found)


def _tokens(prefix: str) -> tuple[int, ...]:
    """A prefix as tokens; "end" is the end of a short code."""
    whole, end, _ = prefix.partition("-end")
    tokens = text_to_code(whole)
    if len(tokens) > limits.PREFIX_TOKENS or any(token > 2**31 - 1 for token in tokens):
        raise ApiError(404, "no code has this prefix")
    return (*tokens, -1) if end else tokens
