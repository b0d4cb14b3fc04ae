"""Answers in JSON, and the answer for each error."""

from __future__ import annotations

import logging
from math import ceil

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from late.api import errors

logger = logging.getLogger("late.api")

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def json_of(value: object, status: int = 200) -> Response:
    """Return the answer that carries `value`."""
    body = msgspec.json.encode(value)
    return Response(body, status, headers=HEADERS, media_type="application/json")


def failed(error: Exception) -> Response:
    """Return the answer for an error, and log one of ours."""
    code = errors.code_of(error)
    if code is errors.UNEXPECTED:
        logger.error("a request failed: %s", type(error).__name__, exc_info=error)
    elif code.word == "unavailable":
        logger.warning("a request failed: %s", error)
    response = json_of(
        {"error": code.word, "message": errors.message_of(error, code)}, status=code.http
    )
    after_s = errors.retry_after_s(error, code)
    if after_s is not None:
        response.headers["Retry-After"] = str(max(1, ceil(after_s)))
    if code.http == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def no_route(request: Request, error: Exception) -> Response:
    """Answer for a path or a method that is not served."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    word = {404: "not_found", 405: "method_not_allowed"}.get(status, "bad_request")
    response = json_of({"error": word, "message": "no such path or method"}, status)
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response
