"""MCP's tools: in memory, over standard input and output, and over streamable HTTP behind the server's guard."""

import asyncio
import sys
import threading
import time
from contextlib import contextmanager

import pytest

import callslip

pytest.importorskip("mcp", reason="the extra 'mcp' is not installed")
KEY = "k" * 32


@pytest.fixture(scope="module")
def saved(small_corpus, tmp_path_factory):
    path = tmp_path_factory.mktemp("mcp") / "index"
    settings = {"encoder": "scratch", "epochs": 2, "decoder_width": 16}
    callslip.fit(small_corpus, "dsi-semantic", path, settings=settings)
    return path


async def use(client, index):
    """What an agent does, against the index itself."""
    assert {tool.name for tool in (await client.list_tools()).tools} == {"search", "get_document", "explain"}
    found = await client.call_tool("search", {"query": "violin", "k": 3})
    hits = found.structured_content["result"]
    wanted = index.search("violin", 3)
    assert [hit["doc_id"] for hit in hits] == wanted.doc_ids and [hit["rank"] for hit in hits] == [1, 2, 3]
    assert hits[0]["code"] == list(wanted[0].code) and hits[0]["title"] == wanted[0].title
    document = (await client.call_tool("get_document", {"doc_id": "music/0"})).structured_content
    assert document["text"].startswith("The violin") and document["metadata"]["topic"] == "music" and document["code"]
    why = (await client.call_tool("explain", {"query": "violin", "doc_id": hits[0]["doc_id"]})).structured_content
    assert why["rank"] == 1 and why["found"] and why["method"] == "dsi-semantic"
    missing = await client.call_tool("get_document", {"doc_id": "none"})
    assert missing.is_error and "document" in missing.content[0].text


def test_in_memory(saved):
    from mcp import Client

    from callslip.adapters.mcp import IndexTools, mcp_server

    async def main():
        async with Client(mcp_server(IndexTools(callslip.load(saved)))) as client:
            await use(client, callslip.load(saved))
            tool = (await client.list_tools()).tools[0]
            assert tool.annotations.read_only_hint and "query" in tool.input_schema["properties"]

    asyncio.run(main())


def test_over_standard_input_and_output(saved):
    from mcp import Client, StdioServerParameters

    async def main():
        command = StdioServerParameters(command=sys.executable, args=["-m", "callslip", "mcp", str(saved)])
        async with Client(command) as client:
            await use(client, callslip.load(saved))

    asyncio.run(main())


@contextmanager
def serving(path, **options):
    """The real server, with MCP mounted."""
    uvicorn = pytest.importorskip("uvicorn")
    from callslip.adapters.mcp import http_app
    from callslip.server.app import create_app
    from callslip.server.keys import Keys
    from callslip.server.limits import Limits
    from callslip.server.run import bound, config
    from callslip.server.serving import serve_all

    keys = Keys({KEY: frozenset({"search"})}, anonymous=frozenset(options.get("anonymous", ())))
    limits = Limits()
    app = create_app(serve_all([path]), keys, limits=limits, mount=http_app)
    listening = bound("127.0.0.1", 0)
    listening.listen(16)
    server = uvicorn.Server(config(app, limits))
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


def test_over_http_behind_the_guard(saved):
    import httpx2
    from mcp import Client

    with serving(saved, anonymous=("search",)) as url:

        async def main():
            async with Client(f"{url}/mcp") as client:
                await use(client, callslip.load(saved))

        asyncio.run(main())
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with serving(saved) as url, httpx2.Client(trust_env=False) as plain:  # no anonymous search
        assert plain.post(f"{url}/mcp", json=body, headers=headers).status_code == 401
        with_key = headers | {"authorization": f"Bearer {KEY}"}
        assert plain.post(f"{url}/mcp", json=body, headers=with_key).status_code in (200, 400)
        assert plain.post(f"{url}/mcp", json=body, headers=with_key | {"host": "evil.example"}).status_code == 421
        assert plain.post(f"{url}/mcp", json=body, headers=with_key | {"origin": "http://evil"}).status_code == 403
        text = with_key | {"content-type": "text/plain"}
        assert plain.post(f"{url}/mcp", content="{}", headers=text).status_code == 415


def test_the_missing_extra_is_named(monkeypatch):
    import importlib

    from callslip.errors import MissingExtra

    for module, library in (("mcp", "mcp.server"), ("mteb", "mteb.models.model_meta"), ("langchain", "langchain_core")):
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(sys.modules, f"callslip.adapters.{module}", raising=False)
        if library == "langchain_core":
            monkeypatch.setitem(sys.modules, "langchain_core.callbacks", None)
        with pytest.raises(MissingExtra, match=rf"callslip\[{module}\]"):
            importlib.import_module(f"callslip.adapters.{module}")
