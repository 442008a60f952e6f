"""Safe by default: who may do what, from where, and how much of it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.conftest import ADMIN, SEARCH, WRITE, running

from callslip.errors import CallslipError
from callslip.server.guard import Hosts
from callslip.server.keys import Keys, is_loopback, keys_for, own_keys, read_keys
from callslip.server.limits import Limits
from callslip.server.routes import RULES, rule_of
from callslip.server.run import bound

BODIES = {
    "/v1/search": {"query": "nickel"},
    "/v1/explain": {"query": "nickel", "doc_id": "fruit/1"},
    "/v1/documents": {"documents": [{"doc_id": "matrix", "text": "x"}], "on_conflict": "replace"},
    "/v1/documents/delete": {"doc_ids": ["matrix"]},
    "/v1/documents/{doc_id:path}": {"text": "x"},
    "/v1/compact": {},
}


class TestWhoMayDoWhat:
    def test_every_route_has_a_rule_and_every_rule_a_route(self, served):
        routes = {
            (method, route.path) for route in served.app.fastapi.routes for method in (route.methods or ()) - {"HEAD"}
        }
        assert routes == set(RULES)

    @pytest.mark.parametrize("anonymous", [("search",), ()], ids=["loopback", "elsewhere"])
    def test_every_route_with_every_credential(self, anonymous, folder):
        """401 without a key that would do, 403 with one that will not, else whatever the route says."""
        credentials = {"none": None, "wrong": "x" * 32, "search": SEARCH, "write": WRITE, "admin": ADMIN}
        seen = 0
        with (
            running([folder], anonymous=anonymous, host="127.0.0.1" if anonymous else "0.0.0.0") as server,
            server.client() as client,
        ):
            for (method, path), rule in RULES.items():
                for name, key in credentials.items():
                    headers = {} if key is None else {"authorization": f"Bearer {key}"}
                    body = BODIES.get(path) if method in ("POST", "PUT") else None
                    where = path.replace("{doc_id:path}", "matrix")
                    answer = client.request(method, where, json=body, headers=headers)
                    if rule.scope == "open" or rule.scope == name or (rule.scope in anonymous and name != "wrong"):
                        assert answer.status_code not in (401, 403), (method, path, name)
                        assert answer.status_code < 500
                    else:
                        assert answer.status_code == (401 if name in ("none", "wrong") else 403), (method, path, name)
                    seen += 1
        assert seen == len(RULES) * len(credentials)

    def test_paths_that_do_not_exist_are_hidden_from_strangers(self, folder):
        with running([folder], anonymous=(), host="0.0.0.0") as server, server.client() as client:
            assert client.get("/v1/nothing").status_code == 401
            assert client.get("/docs").status_code == 401

    @pytest.mark.parametrize("value", ["Basic abc", "Bearer", f"bearer{WRITE}", f"Token {WRITE}"])
    def test_a_key_comes_as_bearer(self, anybody, value):
        answer = anybody.delete("/v1/documents/fruit/1", headers={"authorization": value})
        assert answer.status_code == 401

    def test_no_cookies_and_no_cross_origin_permission(self, anybody):
        for answer in (anybody.get("/"), anybody.post("/v1/search", json={"query": "nickel"})):
            names = set(answer.headers)
            assert "set-cookie" not in names and not any(name.startswith("access-control") for name in names)
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "server" not in names


class TestFromWhere:
    @pytest.mark.parametrize(
        "host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "localhost@evil", "[::1"]
    )
    def test_foreign_hosts_are_refused(self, anybody, host):
        for path in ("/", "/healthz", "/v1/indexes"):
            assert anybody.get(path, headers={"host": host}).status_code in (400, 421)

    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8000", "127.8.8.8"])
    def test_this_machine_goes_by_several_names(self, anybody, host):
        assert anybody.get("/v1/indexes", headers={"host": host}).status_code == 200

    def test_elsewhere_numbers_and_given_names_are_known(self):
        hosts = Hosts("0.0.0.0", ("search.example",))
        assert hosts.knows(b"10.1.2.3:8000") and hosts.knows(b"Search.example") and hosts.knows(b"[fe80::1]")
        assert not hosts.knows(b"evil.example") and not hosts.knows(b"search.example.evil")

    @given(st.binary(max_size=40))
    def test_any_host_header_gets_an_answer(self, header):
        assert Hosts("127.0.0.1").knows(header) in (True, False)

    @pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost", ""])
    def test_foreign_origins_are_refused(self, writer, origin):
        """Even with a key: a page elsewhere that has learned it must not use it through the user's browser."""
        search = writer.post("/v1/search", json={"query": "nickel"}, headers={"origin": origin})
        write = writer.put("/v1/documents/evil", json={"text": "x"}, headers={"origin": origin})
        assert (search.status_code, write.status_code) == (403, 403)
        assert writer.get("/v1/documents/evil").status_code == 404

    def test_our_own_page_may_ask(self, served, anybody):
        answer = anybody.post("/v1/search", json={"query": "nickel"}, headers={"origin": served.url})
        assert answer.status_code == 200

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_what_a_browser_fetches_for_another_site_is_refused(self, anybody, site):
        assert anybody.get("/v1/indexes", headers={"sec-fetch-site": site}).status_code == 403
        followed = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
        assert anybody.get("/", headers=followed).status_code == 200  # somebody followed a link
        assert anybody.get("/v1/indexes", headers=followed).status_code == 403

    @pytest.mark.parametrize(
        "kind",
        [
            None,
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/json, x",
        ],
    )
    def test_only_json_is_read(self, anybody, kind):
        """A form or a simple request of another site can have no other kinds than these."""
        headers = {} if kind is None else {"content-type": kind}
        answer = anybody.post("/v1/search", content=json.dumps({"query": "nickel"}), headers=headers)
        assert answer.status_code == 415

    def test_methods_that_nobody_needs(self, anybody):
        for method in ("OPTIONS", "TRACE", "PATCH", "CONNECT", "BREW"):
            assert anybody.request(method, "/v1/search").status_code in (400, 405)


class TestHowMuch:
    @pytest.mark.parametrize(
        "change",
        [{"query": "x" * 2049}, {"k": 101}, {"k": 0}, {"k": "5"}, {"k": True}, {"beam": 129}, {"characters": 20001},
         {"query": " "}, {"queries": []}, {"queries": [{"text": "x"}] * 65, "query": None}, {"history": ["x"] * 257},
         {"history": ["y" * 513]}, {"filter": {"where": {str(n): 1 for n in range(17)}}}, {"unknown": 1},
         {"filter": {"allow": ["x"] * 4097}}, {"filter": {"where": {"a": {"b": {}}}}}, {"index": "x" * 257}],
    )  # fmt: skip
    def test_caps(self, anybody, change):
        body = {key: value for key, value in ({"query": "nickel"} | change).items() if value is not None}
        answer = anybody.post("/v1/search", json=body)
        assert answer.status_code == 422, answer.text

    @pytest.mark.parametrize(
        "raw",
        [r'{"query": "\ud800"}', '{"query": "x", "k": NaN}', '{"query": "x", "k": 1e400}',
         '{"query": "x", "k": Infinity}',
         "[" * 100_000, '{"a":' * 5000, "", "nul", "[]", '"x"', '{"query": "x"} {}', '{"query": "SECRET", "k": []}',
         '{"query": "x", "SECRET": 1}', '{"query": "x", "k": ' + "9" * 5000 + "}",
         '{"query": "x", "filter": {"where": {"SECRET": {"low": 1e400}}}}'],
    )  # fmt: skip
    def test_what_cannot_be_read_is_never_repeated(self, anybody, raw):
        answer = anybody.post("/v1/search", content=raw, headers={"content-type": "application/json"})
        assert answer.status_code == 422
        assert "SECRET" not in answer.text and "1e400" not in answer.text
        assert set(answer.json()) == {"error"}

    def test_bytes_that_are_no_text(self, anybody):
        answer = anybody.post(
            "/v1/search", content=b'{"query": "\xff\xfe"}', headers={"content-type": "application/json"}
        )
        assert answer.status_code == 422

    @pytest.mark.parametrize(
        "metadata", ['{"a": NaN}', '{"a": 1e999}', '{"a": "\\udc00"}', '{"a":' * 40 + "1" + "}" * 40]
    )
    def test_metadata_is_checked_all_the_way_down(self, writer, metadata):
        raw = f'{{"text": "x", "metadata": {metadata}}}'
        answer = writer.put("/v1/documents/odd", content=raw, headers={"content-type": "application/json"})
        assert answer.status_code == 422
        assert writer.get("/v1/documents/odd").status_code == 404

    def test_large_bodies_are_refused_before_they_are_read(self, folder):
        with running([folder], limits=Limits(body=1000, write_body=5000)) as server, server.client(WRITE) as client:
            assert client.post("/v1/search", json={"query": "x" * 1000}).status_code == 413
            assert client.put("/v1/documents/a", json={"text": "x" * 4000}).status_code == 200
            assert client.put("/v1/documents/a", json={"text": "x" * 5000}).status_code == 413
            kind = {"content-type": "application/json"}

            def pieces():  # without a length: it must be counted as it comes
                for _ in range(20):
                    yield b" " * 500

            assert client.post("/v1/search", content=pieces(), headers=kind).status_code == 413
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as bare:
                bare.sendall(
                    b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 99999999999999999999\r\n\r\n"
                )
                assert b" 413 " in bare.recv(100)

    def test_strings_of_clients_are_no_paths(self, anybody):
        for path in ("/..%2f..%2fetc/passwd", "/v1/documents/..%2f..%2fmanifest.json", "/%2e%2e/x", "//etc/passwd"):
            answer = anybody.get(path)
            assert answer.status_code in (400, 404, 421), path
            assert "root:" not in answer.text and "sha256" not in answer.text

    def test_odd_names_of_documents_are_data(self, writer):
        for name in ("..", "a/../b", "%00", "a?b#c", "<script>", "‮rtl", "name with spaces"):
            body = {"documents": [{"doc_id": name, "text": "odd"}], "on_conflict": "replace"}
            assert writer.post("/v1/documents", json=body).status_code == 200, name
            assert writer.post("/v1/documents/delete", json={"doc_ids": [name]}).status_code == 200


class TestHowLong:
    def read_all(self, connection):
        data = b""
        while part := connection.recv(65536):
            data += part
        return data

    def test_small_answers_do_not_wait_for_company(self):
        """asyncio sets TCP_NODELAY on connections of sockets that name their protocol, and on no others."""
        with bound("127.0.0.1", 0) as listening:
            assert listening.proto == socket.IPPROTO_TCP

    def test_a_slow_head_is_cut_off(self, folder):
        with running([folder], limits=Limits(head_seconds=0.3)) as server:
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as slow:
                slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
                with contextlib.suppress(ConnectionResetError):
                    assert self.read_all(slow) == b""
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as second:  # the second request, too
                second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b""
                while not answer.endswith(b"}"):
                    answer += second.recv(65536)
                assert b" 200 " in answer
                second.sendall(b"GET /hea")
                with contextlib.suppress(ConnectionResetError):
                    assert self.read_all(second) == b""

    def test_a_slow_body_is_cut_off(self, folder):
        with (
            running([folder], limits=Limits(body_seconds=0.3)) as server,
            socket.create_connection(("127.0.0.1", server.port), timeout=10) as slow,
        ):
            slow.sendall(
                b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b'Content-Length: 50\r\n\r\n{"query"'
            )
            assert b"408" in self.read_all(slow).split(b"\r\n")[0]

    def test_when_there_are_too_many_connections_the_oldest_gives_way(self, folder):
        with running([folder], limits=Limits(connections=5)) as server:
            slow = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(20)]
            with server.client() as client:
                assert client.get("/healthz").status_code == 200
            slow[0].settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert slow[0].recv(1) == b""
            for one in slow:
                one.close()

    def test_health_is_told_while_the_model_works(self, folder):
        """The event loop never computes: with a search that does not end, the server still answers."""
        with running([folder], limits=Limits(queue=2, deadline=1.0)) as server, server.client() as client:
            inference = server.app.server.inference
            held = inference.retriever_of
            inference.retriever_of = lambda name: time.sleep(1.5) or held(name)
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(1) as pool:
                stuck = pool.submit(lambda: server.client().post("/v1/search", json={"query": "nickel"}))
                time.sleep(0.2)
                assert client.get("/healthz").status_code == 200 and not stuck.done()
                assert stuck.result().status_code == 504
            inference.retriever_of = held
            assert client.post("/v1/search", json={"query": "nickel"}).status_code == 200

    def test_a_search_is_given_up_when_its_client_leaves(self, folder):
        with running([folder]) as server:
            inference = server.app.server.inference
            held, jobs, going = inference.retriever_of, [], threading.Event()
            put = inference.put
            inference.put = lambda *args, **more: jobs.append(put(*args, **more)) or jobs[-1]
            inference.retriever_of = lambda name: going.wait(10) and held(name)
            body = b'{"query": "nickel"}'
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as leaving:
                leaving.sendall(
                    b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
                )
                while not jobs:
                    time.sleep(0.01)
                assert not jobs[0].left
            end = time.monotonic() + 10
            while not jobs[0].left and time.monotonic() < end:
                time.sleep(0.01)
            assert jobs[0].left
            going.set()


class TestKeys:
    def test_short_keys_and_unknown_scopes_are_refused(self, tmp_path):
        for content in (
            "short search\n",
            f"{'k' * 32} everything\n",
            f"{'k' * 31} search\n",
            "# nothing\n",
            f"{'k' * 32}\n",
        ):
            path = tmp_path / "keys"
            path.write_text(content)
            path.chmod(0o600)
            with pytest.raises(CallslipError):
                keys_for("0.0.0.0", path)

    def test_files_that_others_may_read_are_refused(self, tmp_path):
        path = tmp_path / "keys"
        path.write_text(f"{'k' * 32} search\n")
        path.chmod(0o640)
        with pytest.raises(CallslipError, match="chmod 600"):
            read_keys(path)

    def test_a_key_is_made_for_oneself_alone(self, tmp_path):
        path, keys = own_keys(tmp_path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(keys.values()) == [{"search", "write", "admin"}]
        assert all(len(key) >= 43 for key in keys)
        assert own_keys(tmp_path) == (path, keys)

    def test_scopes_are_those_of_the_key(self):
        keys = Keys({"k" * 32: frozenset({"write"})}, anonymous=frozenset({"search"}))
        assert keys.allowed(None) == {"search"}
        assert keys.allowed("k" * 32) == {"search", "write"}
        assert keys.allowed("k" * 33) is keys.allowed("") is keys.allowed("é") is None

    @pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost", "127.1.2.3"])
    def test_loopback(self, host):
        assert is_loopback(host)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.nip.io", ""])
    def test_not_loopback(self, host):
        assert not is_loopback(host)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
    def test_another_address_without_keys_ends_with_2(self, host, tmp_path):
        program = "import sys; sys.argv = ['callslip', *sys.argv[1:]]; from callslip.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program, "serve", str(tmp_path), "--host", host],
            capture_output=True, text=True, check=False, env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 2
        assert "API key" in done.stderr and "Traceback" not in done.stderr


def test_rules_are_found_for_documents_of_any_name():
    assert rule_of("PUT", "/v1/documents/a/b").scope == "write"
    assert rule_of("GET", "/v1/documents/delete").scope == "search"
    assert rule_of("POST", "/v1/documents/a") is None
    assert rule_of("GET", "/secret") is None
