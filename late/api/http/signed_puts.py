"""The route of signed URLs: it puts the one kind of task that a URL is for."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request

from late.api import limits, schemas
from late.api.access.auth import Access
from late.api.errors import BadRequest, NotFound, TooLarge, Unauthenticated
from late.api.http.requests import body_of, kind_of, query_of
from late.api.http.signed_urls import EXPIRES_S_MAX, SignedPut, is_signed
from late.api.schemas import Accepted
from late.api.service import Service
from late.errors import KeyConflict
from late.model import validation as validate
from late.model.access import tokens
from late.model.access.rights import Caller

NOT_SERVED = "no signed URLs are taken here: late serve --signed-urls"
AHEAD_S = 300
"""The clock of the signer may be this far ahead of the database's."""
USED_S = 3_600
"""A single use is remembered for this time after the URL has expired."""


async def put(service: Service, request: Request, *, served: bool) -> Accepted:
    """Put the task of a signed URL.

    Raises:
        NotFound: `served` is False.
        Unauthenticated: the URL was not signed so, its time is over, or its token's is.
        Forbidden: the token is not one to enqueue into this queue.
        KeyConflict: it was for one use, and has been used.
        TooMany, BadRequest, TooLarge, Unsupported: see `Access.admit` and `body_of`.
    """
    if not served:
        raise NotFound(NOT_SERVED)
    asked = query_of(request, SignedPut)
    queue = validate.queue(request.path_params["queue"])
    address = "" if request.client is None else request.client.host
    access = service.access
    caller = admit(access, asked, queue, address)
    payload = await _payload(request, asked)
    access.check(caller)
    left_s = asked.expires - access.now_us / 1_000_000
    made = schemas.Put(name=asked.name, queue=queue, payload=payload)
    if asked.once is not None:
        made.unique_key = f"url.{tokens.hash_of(f'{asked.token}.{asked.once}')}"
        made.unique_for_s = left_s + USED_S
        made.on_conflict = "reject"
    try:
        (accepted,) = await service.put(caller, [made])
    except KeyConflict:
        raise KeyConflict("this URL was for one use, and has been used") from None
    return accepted


def admit(access: Access, asked: SignedPut, queue: str, address: str) -> Caller:
    """Return the caller whose token signed the URL.

    Raises:
        Unauthenticated, TooMany: see `put`. A wrong signature counts as a failed sign-in.
        BadRequest: the URL is valid for too long, or a name is none.
    """
    validate.name(asked.name, "task name")
    if asked.once is not None:
        validate.name(asked.once, "once")
    token = access.token(asked.token)
    # A token of a certificate has no secret, and what is kept in its place is known to everybody.
    has_secret = token is not None and token.digest != tokens.CERTIFICATE
    digest = token.digest if token is not None and has_secret else None
    if token is None or not is_signed(digest, queue, asked):
        access.failures.add("http", address, "" if token is None else token.name)
        raise Unauthenticated("this URL is not signed by a token that is valid here")
    caller = tokens.caller(token)
    # Whoever has the URL must not use up the requests of who signed it.
    access.paced(msgspec.structs.replace(caller, name=f"url:{token.name}"))
    left_s = asked.expires - access.now_us / 1_000_000
    if left_s <= 0 or not token.live(access.now_us):
        raise Unauthenticated("this URL is not valid any more")
    if left_s > EXPIRES_S_MAX + AHEAD_S:
        raise BadRequest(f"expires: a URL is valid for {EXPIRES_S_MAX} seconds at most")
    return caller


async def _payload(request: Request, asked: SignedPut) -> dict[str, Any]:
    if asked.payload is None:
        most = limits.BODY_BYTES if asked.max_bytes is None else asked.max_bytes
        body = await body_of(request, min(most, limits.BODY_BYTES))
        return schemas.parse(body, dict[str, Any])
    try:
        await body_of(request, 0, [kind_of(request)])
    except TooLarge:
        raise BadRequest("this URL has its payload: send no body") from None
    return schemas.parse(asked.payload.encode(), dict[str, Any])
