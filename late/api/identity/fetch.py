"""Requests to an identity provider: bounded in time and size, over verified TLS."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from late.api import limits
from late.api.errors import Unavailable
from late.concurrency import in_thread
from late.errors import ConfigError

TIMEOUT_S = 5.0
"""The longest time of a request, from its start to the end of the answer."""
BYTES = 512 * 1024
_PART = 16 * 1024
AWAY = "the identity provider does not answer: try again in a moment"


_NO_ANSWER = (OSError, http.client.HTTPException)
"""The second one: what has answered does not speak HTTP, or broke off in the middle."""


class ProviderRefused(Unavailable):
    """The provider has answered with an error."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to a host that nobody has named, and to plain HTTP."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def check_url(url: str, name: str) -> str:
    """Return the URL of a provider; raises `ConfigError` unless it is HTTPS, or on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        host = ""
    safe = host and (parts.scheme == "https" or (parts.scheme == "http" and limits.loopback(host)))
    if not safe or parts.username is not None or parts.fragment or not url.isprintable():
        raise ConfigError(f"{name} {url[:120]!r}: https://..., or http:// on this machine")
    return url


async def fetch(
    url: str, *, form: dict[str, str] | None = None, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Get a JSON object, or post a form and get one.

    Raises:
        Unavailable: there was no answer in time, or it is no such object. The reason is chained.
        ProviderRefused: the status is an error.
    """
    try:
        check_url(url, "an address of the provider")
        async with asyncio.timeout(TIMEOUT_S + 1):
            body = await in_thread(_fetch, url, form, headers or {})
        found = msgspec.json.decode(body)
        if not isinstance(found, dict):
            raise TypeError("not an object")
        return found
    except urllib.error.HTTPError as error:
        with error:
            raise ProviderRefused(AWAY) from error
    except (*_NO_ANSWER, ValueError, TypeError, RecursionError, ConfigError) as error:
        raise Unavailable(AWAY) from error


def _fetch(url: str, form: dict[str, str] | None, headers: dict[str, str]) -> bytes:
    data = None if form is None else urlencode(form).encode()
    # `check_url` lets only HTTP through. # nosec B310
    request = urllib.request.Request(url, data, {"Accept": "application/json", **headers})
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if request.type == "https":
        # Reading the certificates of the machine takes longer than all else here.
        context = ssl.create_default_context()
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    ends = time.monotonic() + TIMEOUT_S
    parts, size = [], 0
    with opener.open(request, timeout=TIMEOUT_S) as answer:
        # The time-out is for each read, so a provider that drips is ended here.
        while part := answer.read1(_PART):
            size += len(part)
            if size > BYTES or time.monotonic() > ends:
                raise TimeoutError("the answer is too long, or came too slowly")
            parts.append(part)
    return b"".join(parts)
