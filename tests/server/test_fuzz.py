"""The API never answers 5xx, and always as it says it does. `benchmarks/server_fuzz.py` runs many more cases."""

from __future__ import annotations

import shutil

import pytest
from server.conftest import ALL, running

pytest.importorskip("schemathesis")


def test_no_request_breaks_it(folder, words_folder, tmp_path):
    from server.fuzzing import fuzz

    with running([folder, shutil.copytree(words_folder, tmp_path / "words")]) as server:
        seen = fuzz(server.url, ALL, cases=8)
        with server.client() as client:
            assert client.get("/healthz").status_code == 200
    assert sum(seen.values()) >= 150
    for operation in ("POST /v1/search", "POST /v1/documents", "PUT /v1/documents/{doc_id}", "GET /v1/codes"):
        assert seen[operation, 200] and seen[operation, 422], operation  # both what is answered and what is refused
    assert all(status < 500 for _, status in seen)
