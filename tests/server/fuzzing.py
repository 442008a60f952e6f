"""Requests made up from the API's own description, fitting it and not, against a server that runs."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def fuzz(url: str, key: str, cases: int, number: int = 0) -> Counter[tuple[str, int]]:
    """So many cases of every operation and mode; how often each status came. Any 5xx, undeclared status or answer that
    the description does not fit raises, with the request that caused it."""
    headers = {"Authorization": f"Bearer {key}"}
    schema = schemathesis.openapi.from_url(f"{url}/v1/openapi.json", headers=headers)
    seen: Counter[tuple[str, int]] = Counter()
    with requests.Session() as session:
        for found in schema.get_all_operations():
            operation = found.ok()
            for mode in GenerationMode:
                _try(operation, mode, cases, number, session, headers, seen)
    return seen


def _try(operation, mode, cases, number, session, headers, seen):
    @seed(number)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attempt(case):
        response = case.call(session=session, headers=headers, timeout=120)
        seen[operation.label, response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    with suppress(Unsatisfiable):  # an operation that takes nothing has nothing to get wrong
        attempt()
