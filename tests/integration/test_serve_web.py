"""`late serve` with the page: alone, and beside everything else."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

import late
from late import config, events
from late.api.server import Server
from late.api.settings import ServeSettings
from late.errors import ConfigError
from tests.conformance.kit import task
from tests.integration.control_kit import insert
from tests.integration.serve_kit import PAYMENTS, serving
from tests.support import sqlite
from tests.unit.api_kit import Client


async def test_the_page_alone_has_no_worker_and_no_api(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "page.db")
    server = Server(late.App(url), ServeSettings(http_port=0, roles=("web",)))
    told: list[str] = []
    unfollow = events.default.subscribe(
        lambda _, values: told.append(str(values["url"])), [events.PAGE_SERVED]
    )
    await server.start()
    unfollow()
    try:
        assert (server.worker, server.grpc) == (None, None)
        assert server.http is not None
        call = Client(server.http.port)
        assert told == [f"http://127.0.0.1:{server.http.port}/ui/"], "it is said where it is"
        page = await call("GET", "/ui/")
        assert (page.status, b"No worker is alive" in page.body) == (200, True)
        assert (await call("GET", "/")).headers["location"] == "/ui/"
        assert (await call("GET", "/readyz")).json["ready"]
        assert (await call("GET", "/v1/queues")).status == 404
    finally:
        await server.stop()


async def test_the_page_alone_has_a_health_port_that_tells_of_a_blocked_loop(
    tmp_path: Path,
) -> None:
    url = sqlite.database(tmp_path / "page.db")
    settings = config.load({}, health_port=0, stall_s=0.4)
    told: list[int] = []
    unfollow = events.default.subscribe(
        lambda _, values: told.append(values["port"]), [events.HEALTH_SERVED]
    )
    server = Server(late.App(url), ServeSettings(http_port=0, roles=("web",)), settings=settings)
    await server.start()
    unfollow()
    try:
        call = Client(told[0])

        async def until_live() -> None:
            """The start itself may have blocked this loop for longer than `stall_s`."""
            async with asyncio.timeout(60):
                while (await call("GET", "/livez")).status != 200:
                    pass

        await until_live()
        assert b"late_trust_lost_total" in (await call("GET", "/metrics")).body

        def until_stalled() -> None:
            """Block this loop, which is the page's."""
            while call.now("GET", "/livez").status != 503:
                pass
            assert call.now("GET", "/readyz").json["reason"] == "it stalls"

        until_stalled()
        await until_live()
        async with asyncio.timeout(60):
            while not (await call("GET", "/readyz")).json["ready"]:
                pass
    finally:
        await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await call("GET", "/livez")


async def test_the_page_says_that_a_group_lags_by_the_setting_of_the_alarm(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "page.db")
    insert(url, task(0))
    settings = config.load({}, lag_alarm_s=0.000001)
    server = Server(late.App(url), ServeSettings(http_port=0, roles=("web",)), settings=settings)
    await server.start()
    try:
        assert server.http is not None
        page = await Client(server.http.port)("GET", "/ui/")
        assert b"Group default lags" in page.body
    finally:
        await server.stop()


async def test_the_page_is_beside_the_api_and_sees_what_it_does(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "page.db")
    async with serving(url) as it:
        task_id = await it.put(payload={"trip": 7})
        assert (await it.call("GET", PAYMENTS)).status == 200
        page = await it.call("GET", f"/ui/tasks/{task_id}")
        assert (page.status, b"Enqueued" in page.body) == (200, True)
        assert b"payments" in (await it.call("GET", "/ui/queues")).body
        assert b"No worker is alive" not in (await it.call("GET", "/ui/")).body
        assert (await it.call("GET", "/ui/dead")).headers["cache-control"] == "no-store"


async def test_a_stream_follows_and_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "page.db")
    server = Server(late.App(url), ServeSettings(http_port=0, roles=("web",)))
    await server.start()
    try:
        assert server.http is not None
        assert server.page is not None
        streams = server.page._streams
        for leaves in (True, False):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.http.port)
            writer.write(b"GET /ui/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await reader.readuntil(b"retry: 3000")
            assert streams.open == 1
            if not leaves:
                break
            writer.close()
            async with asyncio.timeout(20):
                while streams.open:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        stopping = asyncio.create_task(server.stop())
        assert b"event: end" in await reader.read()
        await stopping
        writer.close()
        assert streams.open == 0
    finally:
        if not server.stopped:
            await server.stop()


def test_the_page_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="over HTTP"):
        ServeSettings(http_port=None, roles=("web",)).checked()


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        (ServeSettings(), "http://127.0.0.1:7280/ui/"),
        (ServeSettings(host="::1"), "http://[::1]:7280/ui/"),
        (
            ServeSettings(tls_cert="c", tls_key="k", advertise="queue:1"),
            "https://127.0.0.1:7280/ui/",
        ),
        (ServeSettings(host="0.0.0.0"), f"http://{socket.gethostname()}:7280/ui/"),
    ],
)
def test_the_address_of_the_page_is_one_that_a_browser_takes(
    listen: ServeSettings, address: str
) -> None:
    assert listen.page_at(7280, "/ui/") == address
