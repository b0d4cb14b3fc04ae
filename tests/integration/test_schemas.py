"""Several deployments in one database of PostgreSQL, each in a schema of its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import late
from late.control import Control
from late.outbox import connect
from late.schema import migrate
from late.store.postgres.wake_ups import PostgresWakeUps
from late.testing import drain
from tests.integration.waking_kit import INSERT, database, listening, nothing_heard, producer

NAMES = ("shop", "mail")


@pytest.fixture
def urls() -> Iterator[dict[str, str]]:
    """Two deployments, in a database that has one in its first schema too."""
    with database() as made:
        with closing(producer(made)) as service:
            for name in NAMES:
                service.execute(f"create schema {name}")
        mark = "&" if "?" in made else "?"
        found = {name: f"{made}{mark}options=-csearch_path%3D{name}" for name in NAMES}
        for url in found.values():
            assert len(migrate.upgrade(url)) > 1, "nothing of another schema counts"
        yield found


def test_each_has_its_own_tasks_and_workers(urls: dict[str, str]) -> None:
    ran: list[tuple[str, int]] = []
    apps = {name: late.App(url) for name, url in urls.items()}
    calls = {}
    for name, app in apps.items():

        @app.task(name="note")
        def note(n: int, name: str = name) -> None:
            ran.append((name, n))

        calls[name] = note
    for count, (name, app) in enumerate(apps.items(), 1):
        with connect(urls[name]) as tx:
            app.enqueue_many(tx, [calls[name].call(n) for n in range(10 * count)])
    assert drain(apps["shop"]) == {"done": 10}
    assert sorted(ran) == [("shop", n) for n in range(10)]
    with Control(urls["mail"]) as control:
        [queue] = control.status.read().queues
        assert queue.depth.n == 20
    assert drain(apps["mail"]) == {"done": 20}
    assert len(ran) == 30


@pytest.mark.parametrize("committed", [True, False])
def test_one_transaction_may_enqueue_in_both(urls: dict[str, str], committed: bool) -> None:
    """As a service does whose background is a deployment of its own."""
    app = late.App(urls["shop"])

    @app.task
    def note(n: int) -> None: ...

    @app.task
    def resize(photo: str) -> None: ...

    guide = (Path(__file__).resolve().parents[2] / "docs" / "knobs.md").read_text()
    [block] = re.findall(r"^```python\n(note.enqueue.*?)^```", guide, re.M | re.S)
    block = block.replace("background_late", "mail").replace("app", "shop")
    with connect(urls["shop"]) as tx:
        exec(block, {"tx": tx, "note": note, "resize": resize, "photo": "a.jpg"})
        note.enqueue(tx, 2)
        if not committed:
            tx.rollback()
    found = []
    for name in NAMES:
        with Control(urls[name]) as control:
            found.append(sum(queue.depth.n for queue in control.status.read().queues))
    assert found == ([2, 1] if committed else [0, 0])


async def test_each_is_told_of_its_own_commits(urls: dict[str, str]) -> None:
    shop, mail = (PostgresWakeUps(urls[name], prepared=True) for name in NAMES)
    async with listening(shop) as of_shop, listening(mail) as of_mail, asyncio.timeout(120):
        assert await shop.announce()
        assert await mail.announce()
        with closing(producer(urls["shop"])) as service:
            service.execute(INSERT)
        await of_shop.get()
        assert await nothing_heard(of_mail, mail)
