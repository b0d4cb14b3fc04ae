"""The example of a service with FastAPI: an order and its task commit together."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import NullPool, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from late import tracing
from late.testing import drain
from tests.servers import drop_database, migrated_database, postgres_url
from tests.support import sqlite

SHOP = Path(__file__).resolve().parents[2] / "examples" / "fastapi" / "shop.py"
ORDER = {"email": "ada@example.org", "cents": 100}


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """Load the module of the example on an empty database."""
    admin = postgres_url() if request.param == "postgresql" else None
    if request.param == "postgresql" and admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    if admin is None:
        url = sqlite.database(tmp_path / "shop.db")
    else:
        url = migrated_database(admin).replace("postgresql:", "postgresql+psycopg:")
    monkeypatch.setenv("SHOP_URL", url)
    monkeypatch.syspath_prepend(SHOP.parent)
    spec = importlib.util.spec_from_file_location("shop", SHOP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "shop", module)
    # Connections are kept by no pool, since every life of the service and the worker has a loop.
    unpooled = partial(create_async_engine, poolclass=NullPool)
    monkeypatch.setattr("sqlalchemy.ext.asyncio.create_async_engine", unpooled)
    spec.loader.exec_module(module)
    yield module
    if admin is not None:
        drop_database(admin, url)


async def ask(
    shop: ModuleType, *requests: tuple[str, str, object], headers: dict[str, str] | None = None
) -> list[httpx.Response]:
    """Send requests to the service, one after the other, within one of its lives."""
    transport = httpx.ASGITransport(app=shop.app, raise_app_exceptions=False)
    async with (
        shop.app.router.lifespan_context(shop.app),
        httpx.AsyncClient(transport=transport, base_url="http://shop", headers=headers) as client,
    ):
        return [await client.request(verb, path, json=body) for verb, path, body in requests]


def test_an_order_is_paid_once(shop: ModuleType) -> None:
    placed, missing = asyncio.run(ask(shop, ("POST", "/orders", ORDER), ("GET", "/orders/9", None)))
    assert (placed.status_code, missing.status_code) == (201, 404)
    drain(shop.queue)
    (order,) = asyncio.run(ask(shop, ("GET", f"/orders/{placed.json()['order']}", None)))
    assert order.json() == {"order": 1, "cents": 100, "paid": 1}


def test_an_order_whose_commit_fails_is_not_created(shop: ModuleType) -> None:
    def refuse(_: Session) -> None:
        raise RuntimeError("no commit")

    event.listen(Session, "before_commit", refuse)
    try:
        (placed,) = asyncio.run(ask(shop, ("POST", "/orders", ORDER)))
    finally:
        event.remove(Session, "before_commit", refuse)
    assert placed.status_code == 500
    assert drain(shop.queue) == {}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Keep the spans of the service and of the worker, instead of sending them."""
    kept, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    tracing.enable(provider)
    yield kept
    tracing.disable()
    provider.shutdown()


CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""A context of a caller, as a header."""


def test_an_attempt_belongs_to_the_request_and_to_its_caller(
    shop: ModuleType, spans: InMemorySpanExporter
) -> None:
    asyncio.run(ask(shop, ("POST", "/orders", ORDER), headers={"traceparent": CALLER}))
    drain(shop.queue)
    found = spans.get_finished_spans()
    (attempt,) = [span for span in found if span.name == "process payments"]
    assert attempt.parent is not None
    of_id = {span.context.span_id: span for span in found}
    above = of_id[attempt.parent.span_id]
    while above.parent is not None and above.parent.span_id in of_id:
        above = of_id[above.parent.span_id]
    assert above.name == "POST /orders"
    assert above.kind == trace.SpanKind.SERVER
    assert f"{attempt.context.trace_id:032x}" == CALLER.split("-")[1]
    assert "ada@example.org" not in "".join(span.to_json() for span in found)


def test_the_service_sends_its_spans_if_it_is_told_to(
    shop: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(trace, "set_tracer_provider", told.append)
    asyncio.run(ask(shop))
    assert told == []
    monkeypatch.setenv("LATE_OTEL", "1")
    asyncio.run(ask(shop))
    (provider,) = told
    assert isinstance(provider, TracerProvider)
    provider.shutdown()
