"""People who come to the page behind a proxy that names them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from late import events
from late.api.identity.proxy import TrustedProxy
from late.api.identity.roles import RoleMap
from late.api.identity.settings import ProxySettings
from late.errors import ConfigError
from tests.security.people_kit import PROXY, RULES, World
from tests.support import sqlite


@pytest.fixture(name="behind")
def _behind(tmp_path: Path) -> World:
    url = sqlite.database(tmp_path / "q.db")
    return World(None, url, PROXY)


ALICE = {"X-Forwarded-User": "alice", "X-Forwarded-Groups": "staff, shop"}


async def test_a_proxy_names_a_person(behind: World) -> None:
    rules = (*RULES, "user:root=admin")
    async with behind.page(address="10.0.0.7", rules=rules) as page:
        page.client.headers.update(ALICE)
        assert "proxy:alice" in await page.shown("")
        assert (await page.get("queues/orders")).status_code == 200
        assert (await page.get("queues/secret")).status_code == 404
        root = {"X-Forwarded-User": "root", "X-Forwarded-Groups": ""}
        page.client.headers.update(root)
        assert (await page.post("groups/default/pause")).status_code == 303
        assert page.control.audit.entries(limit=1)[0].actor == "proxy:root"
        page.client.headers.update({"X-Forwarded-User": "eve", "X-Forwarded-Groups": "guests"})
        answer = await page.get("")
        assert (answer.status_code, "you are eve" in answer.text) == (403, True)
        assert not any(word in answer.text for word in ("sre", "orders"))
        # What a browser sends itself does not count beside it.
        page.client.headers["Authorization"] = "Bearer something"
        assert (await page.get("")).status_code == 403


@pytest.mark.parametrize(
    "address", ["10.0.0.8", "127.0.0.1", "::1", "", "unix", "10.0.0.70", "::ffff:10.0.0.8"]
)
async def test_a_stranger_s_header_is_ignored_and_told_once(behind: World, address: str) -> None:
    told: list[Any] = []
    unfollow = events.default.subscribe(
        lambda event, values: told.append(dict(values)), [events.HEADER_IGNORED]
    )
    try:
        async with behind.page(address=address) as page:
            forged = {**ALICE, "X-Forwarded-For": "10.0.0.7", "X-Real-IP": "10.0.0.7",
                      "Forwarded": "for=10.0.0.7"}  # fmt: skip
            for _ in range(3):
                assert (await page.get("", headers=forged)).status_code == 303
            assert [each["address"] for each in told] == [address]
    finally:
        unfollow()


async def test_a_proxy_over_ipv6_in_the_form_of_ipv4_is_that_proxy(behind: World) -> None:
    async with behind.page(address="::ffff:10.0.0.7") as page:
        assert (await page.get("", headers=ALICE)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Forwarded-User", "alice"), ("X-Forwarded-User", "root")],
        [("X-Forwarded-User", "alice"), ("x-forwarded-user", "alice")],
        [("X-Forwarded-User", "alice"), ("X_Forwarded_User", "root")],
        [("X_Forwarded_User", "root")],
        [("X-Forwarded_User", "root")],
        [("X-Forwarded-User", "root, alice")],
        [("X-Forwarded-User", "")],
        [("X-Forwarded-User", "a\tb")],
        [("X-Forwarded-User", "x" * 300)],
        [("X-Forwarded-User", b"\xff")],
        [("X-Forwarded-User", "alice"), ("X-Forwarded-Groups", "a"), ("X-Forwarded-Groups", "sre")],
        [("X-Forwarded-User", "alice"), ("X_FORWARDED_GROUPS", "sre")],
    ],
)
async def test_a_header_that_can_be_read_in_two_ways_is_refused(
    behind: World, headers: list[tuple[str, Any]]
) -> None:
    rules = ("group:sre=admin", "user:root=admin", "user:alice=admin")
    async with behind.page(address="10.0.0.7", rules=rules) as page:
        answer = await page.client.get("/ui/", headers=headers)
        assert answer.status_code == 400


async def test_groups_alone_are_nobody_and_a_token_still_counts(behind: World) -> None:
    async with behind.page(address="10.0.0.7") as page:
        text, _ = page.control.tokens.create("ci", scopes=["view"], queues=["*"])
        await page.access.load()  # type: ignore[attr-defined]
        assert (await page.get("", headers={"X-Forwarded-Groups": "sre"})).status_code == 303
        assert (await page.get("", headers={"Authorization": f"Bearer {text}"})).status_code == 200


async def test_what_is_open_behind_a_proxy_comes_again_within_a_minute(behind: World) -> None:
    async with behind.page(address="10.0.0.7") as page:
        gate = page.site._context.gate
        raw = [(name.lower().encode(), value.encode()) for name, value in ALICE.items()]
        caller = gate.admit(None, None, (), address="10.0.0.7", headers=raw)
        waiting = asyncio.create_task(gate.over(caller))
        await asyncio.sleep(0)
        behind.ahead_us = 61_000_000
        await page.access.end()  # type: ignore[attr-defined]
        async with asyncio.timeout(120):
            await waiting


@pytest.mark.parametrize("address", ["", "0.0.0.0/0", "::/0", "proxy.example", "10.0.0.7/8", "*"])
def test_a_proxy_is_an_address(address: str) -> None:
    with pytest.raises(ConfigError):
        TrustedProxy(ProxySettings(addresses=(address,)), RoleMap(RULES))
    with pytest.raises(ConfigError):
        TrustedProxy(ProxySettings(addresses=()), RoleMap(RULES))
    with pytest.raises(ConfigError):
        TrustedProxy(ProxySettings(addresses=("10.0.0.7",), user_header="X_User"), RoleMap(RULES))
