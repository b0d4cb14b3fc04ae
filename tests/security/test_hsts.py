"""Once a browser has been here over TLS, nobody on its way can lead it back to plain HTTP."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from pathlib import Path

import pytest

import late
from late.api.server import Server
from late.api.settings import ServeSettings
from tests.support import sqlite
from tests.unit.api_kit import served
from tests.unit.test_access import certificate

PATHS = ("/livez", "/ui/login", "/ui/static/none", "/nowhere", "/%ff")


def answers(port: int, folder: Path) -> list[tuple[str | None, str | None]]:
    """The header of each path, and that of what is no request."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    found = []
    for method, path in (*(("GET", path) for path in PATHS), ("GE T", "/livez")):
        link = http.client.HTTPSConnection("localhost", port, context=context, timeout=120)
        link.putrequest(method, path)
        link.endheaders()
        answer = link.getresponse()
        found.append((path, answer.getheader("Strict-Transport-Security")))
        link.close()
    return found


@pytest.mark.parametrize(("name_of_all", "sent"), [(True, "max-age=31536000"), (False, None)])
async def test_every_answer_over_tls_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name_of_all: bool, sent: str | None
) -> None:
    if name_of_all:  # No test listens where other machines come.
        monkeypatch.setattr("late.api.http.uvicorn_server.loopback", lambda _: False)
    certificate(tmp_path, "ca")
    certificate(tmp_path, "localhost", by="ca")
    url = sqlite.database(tmp_path / "q.db")
    files = {f"tls_{kind}": str(tmp_path / f"localhost.{end}") for kind, end in (
        ("cert", "pem"), ("key", "key"))}  # fmt: skip
    server = Server(late.App(url), ServeSettings(http_port=0, auth=True, roles=("web",), **files))
    await server.start()
    try:
        assert server.http is not None
        found = await asyncio.to_thread(answers, server.http.port, tmp_path)
    finally:
        await server.stop()
    assert [header for _, header in found] == [sent] * (len(PATHS) + 1), found


async def test_plain_http_says_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("late.api.http.uvicorn_server.loopback", lambda _: False)
    async with served(tmp_path) as it:
        answer = await it.call("GET", "/livez")
        assert "strict-transport-security" not in answer.headers
