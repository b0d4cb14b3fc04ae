"""Read requests: their bodies, within bounds, and the moment at which a client goes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from starlette.requests import Request

from late.api import limits
from late.api.errors import BadRequest, TooLarge, Unsupported

JSON = "application/json"


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
