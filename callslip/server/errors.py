"""HTTP errors: one format for all, which never repeats any part of the request."""

from __future__ import annotations

import json
from typing import Any

from callslip.errors import CallslipError

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    409: "conflict",
    413: "too_large",
    415: "not_json",
    421: "wrong_host",
    422: "invalid",
    431: "too_large",
    500: "internal",
    503: "busy",
    504: "deadline",
}


class ApiError(CallslipError):
    """An HTTP error response."""

    def __init__(self, status: int, problem: str, remedy: str = "", *, retry_after: int | None = None) -> None:
        super().__init__(problem, remedy)
        self.status, self.retry_after = status, retry_after


class Busy(ApiError):
    """The queue is full."""

    def __init__(self) -> None:
        super().__init__(503, "the queue is full", "Try again in a second.", retry_after=1)


class TooLate(ApiError):
    """The deadline passed before there was a result."""

    def __init__(self) -> None:
        super().__init__(504, "the search timed out", "Use a smaller k, beam or batch.")


def body_of(status: int, problem: str, remedy: str = "", where: list[Any] | None = None) -> dict[str, Any]:
    """The JSON of an error."""
    error: dict[str, Any] = {"code": CODES.get(status, "error"), "message": problem}
    if remedy:
        error["remedy"] = remedy
    if where:
        error["where"] = where
    return {"error": error}


def bytes_of(status: int, problem: str, remedy: str = "") -> bytes:
    return json.dumps(body_of(status, problem, remedy)).encode()
