"""Requests made from the OpenAPI document, good ones and bad ones: never a 500, every answer is one
that the document knows, and what the document forbids is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from late.api.http.openapi import document
from late.api.pull.deliveries import TakeRequest
from late.api.service import Service
from late.model.access.rights import Caller
from tests.unit.api_kit import served

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
    missing_required_header,
    unsupported_method,
]
schema = schemathesis.openapi.from_dict(document())


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API in a thread of its own: its clients here block."""
    patch = pytest.MonkeyPatch()
    take = Service.take

    async def at_once(self: Service, caller: Caller, ask: TakeRequest) -> Any:
        return await take(self, caller, msgspec.structs.replace(ask, wait_s=0.001))

    patch.setattr(Service, "take", at_once)
    folder = tmp_path_factory.mktemp("api")
    ready, found = threading.Event(), []

    async def serve() -> None:
        async with served(folder) as it:
            end = asyncio.Event()
            found.append((it.call.port, asyncio.get_running_loop(), end))
            ready.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(120)
    port, loop, end = found[0]
    yield f"http://127.0.0.1:{port}"
    loop.call_soon_threadsafe(end.set)
    thread.join(120)
    patch.undo()


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_no_request_is_too_strange(case: Any, base_url: str) -> None:
    case.call_and_validate(base_url=base_url, checks=CHECKS)
