"""Read requests: their bodies, within bounds, their queries, and the moment a client goes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import datetime
from typing import TypeVar

import msgspec
from starlette.requests import Request

from late.api import limits
from late.api.errors import BadRequest, TooLarge, Unsupported

JSON = "application/json"
T = TypeVar("T", bound=msgspec.Struct)


def kind_of(request: Request) -> str:
    """Return the content type of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def body_of(request: Request, most: int, kinds: Collection[str] = (JSON,)) -> bytes:
    """Read the body, up to `most` bytes and within a limited time.

    Raises:
        TooLarge: the body has more bytes.
        Unsupported: its content type is none of `kinds`.
        BadRequest: a part of it, or the whole, did not come in time.
    """
    if kind_of(request) not in kinds:
        # This also refuses forms of strange web pages, which can send none of these types.
        raise Unsupported(f"send {' or '.join(kinds)}")
    said = request.headers.get("content-length", "")
    if said.isdigit() and int(said) > most:
        raise TooLarge(f"the body is above {most} bytes")
    parts: list[bytes] = []
    size = 0
    chunks = request.stream()
    ends = asyncio.get_running_loop().time() + limits.BODY_S
    while True:
        try:
            left_s = ends - asyncio.get_running_loop().time()
            async with asyncio.timeout(min(limits.HEADER_S, left_s)):
                part = await anext(chunks, None)
        except TimeoutError:
            raise BadRequest("the body did not come in time") from None
        if part is None:
            return b"".join(parts)
        size += len(part)
        if size > most:
            raise TooLarge(f"the body is above {most} bytes")
        parts.append(part)


async def gone(request: Request) -> None:
    """Wait until the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def query_of(request: Request, kind: type[T]) -> T:
    """Read the query of a request.

    Raises:
        BadRequest: a parameter is unknown, given twice, or not of its type.
    """
    pairs = request.query_params.multi_items()
    given = dict(pairs)
    if len(given) != len(pairs):
        raise BadRequest("a parameter is given twice")
    try:
        found = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)[:200]) from None
    # The conversion takes the text "null" for nothing, and a filter would be left out unseen.
    if any(getattr(found, name) is None for name in given):
        raise BadRequest("leave a parameter out instead of null")
    # It takes numbers for times, too.
    for name, text in given.items():
        if isinstance(getattr(found, name), datetime) and "T" not in text.upper():
            raise BadRequest(f"{name}: a time such as 2026-05-01T12:00:00Z")
    return found
