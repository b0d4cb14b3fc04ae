"""A check, for people, that a target can be reached from here. It sends no task."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from late.errors import ConfigError
from late.handler.classify import clean
from late.model.targets import GrpcTarget, HttpTarget, Target, Tls


async def probe(target: Target) -> str | None:
    """Return why `target` cannot be reached, or None.

    Every endpoint of a gRPC target must be up. The `probe` of an HTTP target must answer; without
    one a connection must be possible, with TLS if it uses that. A wrong secret is not noticed.
    """
    try:
        if isinstance(target, GrpcTarget):
            return await _grpc(target)
        return await _http(target)
    except ConfigError as error:
        return clean(str(error))


async def _grpc(target: GrpcTarget) -> str | None:
    from late.dispatcher.push.grpc_caller import GrpcCaller

    caller = GrpcCaller(target, rng=random.Random())
    await caller.start()
    endpoints = caller.endpoints
    assert endpoints is not None
    try:
        async with asyncio.timeout(target.connect_s):
            # Its endpoints tell nobody of the last one that came up.
            while not endpoints.all_up:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        return endpoints.why()
    finally:
        await caller.close()
    return None


async def _http(target: HttpTarget) -> str | None:
    from late.dispatcher.push.http_caller import HttpCaller, tls_context

    caller = HttpCaller(target)
    await caller.start()  # For its secrets.
    try:
        async with asyncio.timeout(target.connect_s):
            if target.probe is not None:
                status = await caller.status_of(target.probe)
                return None if status < 400 else f"GET {target.probe} answers {status}"
            await _connect(target, tls_context)
    except TimeoutError:
        return f"no answer within {target.connect_s:g} s"
    except OSError as error:
        return clean(str(error))
    finally:
        await caller.close()
    return None


async def _connect(target: HttpTarget, tls_context: Callable[[Tls], ssl.SSLContext]) -> None:
    parts = urlsplit(target.url)
    tls = tls_context(target.tls or Tls()) if parts.scheme == "https" else None
    _, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or (443 if tls else 80),
        ssl=tls,
        server_hostname=target.tls.server_name if tls and target.tls else None,
    )
    writer.close()
