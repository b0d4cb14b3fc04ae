"""The page for operators in this process, over a database that is filled by hand."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from late.api.access.auth import Access
from late.api.access.web_auth import Gate
from late.control import Control
from late.model.access.tokens import Token
from late.model.task import AttemptError, Record, Usage
from late.schema.tables import schedule
from late.store import open_store
from late.store.base import cursor_within
from late.web.page_context import PageContext
from late.web.routes import OperatorPage
from late.web.usage.cost_report import Reports
from tests.conformance.kit import dead, open_of, own, parked, read_all, task
from tests.integration.control_kit import insert, transaction
from tests.support import sqlite

KEY = b"k" * 32
NOW_US = 1_000
HOSTILE = "<script>alert(1)</script>'\"&{{'oops' * 3}}\u202e"
"""What must come back as a text wherever a text is shown."""


class Page:
    """A browser without scripts."""

    def __init__(
        self, client: httpx.AsyncClient, control: Control, site: OperatorPage, url: str
    ) -> None:
        self.client = client
        self.control = control
        self.site = site
        self.url = url

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(f"/ui/{path}", **options)

    async def shown(self, path: str) -> str:
        """A page that must be there, with every text as a reader sees it."""
        answer = await self.get(path)
        assert answer.status_code == 200, answer.text
        return html.unescape(answer.text)

    async def post(
        self, path: str, fields: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """A form with the token of this browser's session, unless another is given."""
        token = options.pop("token", None) or await self.token()
        data = {"token": token, **(fields or {})}
        return await self.client.post(f"/ui/{path}", data=data, **options)

    async def token(self) -> str:
        return fields_of((await self.get("queues/any")).text)["token"]


def fields_of(form: str) -> dict[str, str]:
    """The hidden fields of a page's forms; the last of a name counts."""
    pairs = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in pairs}


@asynccontextmanager
async def page(
    folder: Path,
    *,
    changes: bool = True,
    secure: bool = False,
    tokens: list[Token] | None = None,
    reports: Path | None = None,
    url: str | None = None,
) -> AsyncIterator[Page]:
    """The page on the database at `url`, or a fresh one; with `tokens`, for their holders only."""
    if url is None:
        url = sqlite.database(folder / "page.db")
    control = Control(url)
    access = Access(None if tokens is None else lambda: tokens, now_us=lambda: NOW_US)
    await access.load()
    shown = None if reports is None else Reports(reports)
    gate = Gate(access)
    site = OperatorPage(
        PageContext(control, gate, key=KEY, changes=changes, secure=secure, reports=shown)
    )
    transport = httpx.ASGITransport(Starlette(routes=site.routes()))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield Page(client, control, site, url)
    finally:
        site.drain()
        await site.close()
        control.close()


def add_schedule(url: str) -> None:
    """Add the schedule `nightly` of the queue `mail`."""
    with transaction(url) as connection:
        row = {"name": "nightly", "shard_id": 1, "rule": "0 3 * * *", "zone": "UTC",
               "catch_up": "latest", "catch_up_max": 1, "overlap": "skip", "queue": "mail",
               "task_name": "report", "payload": b"{}", "anchor_us": 0,
               "next_due_at_us": 10**15, "updated_at_us": 1}  # fmt: skip
        connection.execute(schedule.insert().values(**row))


async def fill(url: str) -> list[Record]:
    """Write five tasks of the queue `mail` in shard 3: settled, open, parked, dead, waiting."""
    sent = [task(3, queue="mail", headers='{"a":"b"}') for _ in range(5)]
    insert(url, *sent)
    store = open_store(url)
    await store.open()
    try:
        owner = await own(store, 3)
        records, _ = await read_all(store, sent)
        (read,) = await store.read({3: ""}, 100)
        now = await store.now()
        error = AttemptError(3, now, "w1", f"ValueError: {HOSTILE}")
        await owner.settle(
            cursor=cursor_within(read.window, read.records[3]),
            open=(open_of(records[1]),),
            parked=(parked(now + 10**9, of=records[2], reason="retry"),),
            dead=(dead(of=records[3], errors=(error,)),),
            usage=(Usage("mail", "count", "local", "done", 1, 1, 5_000_000),),
        )
    finally:
        await store.close()
    return records
