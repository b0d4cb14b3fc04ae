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
from sqlalchemy import NullPool, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from late.schema import migrate
from late.testing import drain
from tests.servers import drop_database, fresh_database, postgres_url

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
    url = f"sqlite:///{tmp_path / 'shop.db'}" if admin is None else fresh_database(admin)
    url = url.replace("postgresql:", "postgresql+psycopg:")
    migrate.upgrade(url)
    monkeypatch.setenv("SHOP_URL", url)
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


async def ask(shop: ModuleType, *requests: tuple[str, str, object]) -> list[httpx.Response]:
    """Send requests to the service, one after the other, within one of its lives."""
    transport = httpx.ASGITransport(app=shop.app, raise_app_exceptions=False)
    async with (
        shop.app.router.lifespan_context(shop.app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
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
