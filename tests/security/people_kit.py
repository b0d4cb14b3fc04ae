"""Pages of the tests on people: one deployment with or without a provider and a proxy."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette

from late.api.access.auth import Access
from late.api.access.web_auth import Gate
from late.api.identity.people import People
from late.api.identity.provider import Provider
from late.api.identity.proxy import TrustedProxy
from late.api.identity.roles import RoleMap
from late.api.identity.settings import OidcSettings, ProxySettings
from late.control import Control
from late.web.page_context import PageContext
from late.web.routes import OperatorPage
from tests.security.issuer import CLIENT, Issuer
from tests.unit.web_kit import KEY, Page

RULES = (
    "group:sre=admin", "group:shop=operate:orders,refunds", "user:bob@example.com=view:orders",
    "user:u-1=view:refunds",
)  # fmt: skip
PROXY = ProxySettings(addresses=("10.0.0.7/32",))


class World:
    """Pages of one deployment: processes with one database."""

    def __init__(self, it: Issuer | None, url: str, proxy: ProxySettings | None = None) -> None:
        self.it, self.url, self.proxy = it, url, proxy
        self.ahead_us = 0

    def now_us(self) -> int:
        return time.time_ns() // 1_000 + self.ahead_us

    @asynccontextmanager
    async def page(
        self, *, address: str = "127.0.0.1", rules: tuple[str, ...] = RULES, **options: Any
    ) -> AsyncIterator[Page]:
        control = Control(self.url)
        access = Access(control.tokens.all, now_us=self.now_us)
        access.follow_sessions(control.audit.ended_sessions)
        await access.load()
        roles = RoleMap(rules)
        people = None
        if self.it is not None:
            given = {"issuer": self.it.url, "client_id": CLIENT, "session_s": 3_600.0, **options}
            people = People(OidcSettings(**given), Provider(self.it.url), roles)
            people.serve(KEY, "http://127.0.0.1/ui/")
        proxy = None if self.proxy is None else TrustedProxy(self.proxy, roles)
        gate = Gate(access, people=people, proxy=proxy, control=control)
        secure = people is not None and people.secure
        site = OperatorPage(PageContext(control, gate, key=KEY, changes=True, secure=secure))
        transport = httpx.ASGITransport(Starlette(routes=site.routes()), client=(address, 1))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as web:
                made = Page(web, control, site, self.url)
                made.access = access  # type: ignore[attr-defined]
                yield made
        finally:
            site.drain()
            await site.close()
            control.close()
