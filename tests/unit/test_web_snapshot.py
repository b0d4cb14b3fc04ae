"""The look that all who watch share: for which one nobody waits, and how old it may be."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from late.cli.top import bars
from late.control.status.locks import Sessions
from late.control.views import Status
from late.model.queue_settings import QueueSettings
from late.web import snapshot as look
from late.web.snapshot import SnapshotReader

PATIENCE_S = 120.0


class Database:
    """Answers at once, unless it is held; and numbers its answers."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0
        self.status = self.groups = self.queues = self.reports = self

    def detailed(self, *, limit: int, **_: Any) -> Any:
        self.asked += 1
        number = self.asked
        assert self.answers.wait(PATIENCE_S)
        return Status(number, 1, "here", (), (), ()), {}, {}

    def all(self, *, seen: Status | None = None) -> list[Any]:
        return []

    def sessions(self) -> Sessions:
        return Sessions()

    def all_and_deaths(self) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    def disk(self) -> None:
        return None

    def write_locked(self) -> bool:
        return False

    def live(self) -> Any:
        class Live:
            queues: dict[str, QueueSettings] = {}  # noqa: RUF012
            targets: dict[str, QueueSettings] = {}  # noqa: RUF012
            groups: dict[str, Any] = {}  # noqa: RUF012

        return Live


@pytest.fixture
def database() -> Iterator[Database]:
    made = Database()
    yield made
    made.answers.set()


async def number(watched: SnapshotReader) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return (await watched.seen()).status.now_us


async def test_nobody_waits_for_a_look_of_some_seconds_ago_to_be_a_newer_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "GLANCE_S", 0.0)
    monkeypatch.setattr(look, "PATIENCE_S", 2 * PATIENCE_S)
    watched = SnapshotReader(database, every_s=0.0)  # type: ignore[arg-type]
    assert await number(watched) == 1
    database.answers.clear()
    watched._took_s = 0.0  # so the next one is due
    assert await number(watched) == 1, "it is shown while the next one is under way"
    assert watched.trouble == ""
    assert watched._looking is not None
    assert not watched._looking.done()
    watched._at = time.monotonic() - look.NEWS_S - 1
    assert watched.trouble == "A newer look is under way."
    watched._at = time.monotonic() - look.OLD_S - 1
    assert watched.trouble == "The database is slow to answer."
    waiting = asyncio.create_task(number(watched))
    while database.asked < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    database.answers.set()
    assert await waiting >= 2, "an old one is waited for"
    assert watched.trouble == ""
    await watched.close()


async def test_a_slow_look_lets_the_page_be_drawn_first(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "GLANCE_S", 2 * PATIENCE_S)
    monkeypatch.setattr(look, "PATIENCE_S", 2 * PATIENCE_S)
    monkeypatch.setattr(look, "LATER_S", 2 * PATIENCE_S)
    monkeypatch.setattr(look, "SHARE", 1e9)  # so the next one is due
    watched = SnapshotReader(database, every_s=0.0)  # type: ignore[arg-type]
    first = await number(watched)
    watched._took_s = look.GLANCE_S + 1
    assert await number(watched) == first, "nobody waits for the next one"
    await asyncio.sleep(0)
    assert database.asked == first, "and it does not begin yet"
    watched.forget()
    assert await number(watched) > first, "who waits for it lets it begin"
    await watched.close()


async def test_what_is_made_of_a_look_is_made_once() -> None:
    made: list[Any] = []
    kept = look.kept(made.append)
    first, second = object(), object()
    for seen in (first, first, second, first):
        kept(seen)  # type: ignore[arg-type]
    assert made == [first, second, first]


async def test_who_changes_something_sees_what_came_of_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "GLANCE_S", 0.0)
    monkeypatch.setattr(look, "PATIENCE_S", 2 * PATIENCE_S)
    watched = SnapshotReader(database, every_s=1e9)  # type: ignore[arg-type]
    assert [await number(watched), await number(watched)] == [1, 1]
    watched.forget()
    assert await number(watched) == 2
    await watched.close()


def test_what_nobody_has_seen_is_a_gap_in_the_chart(database: Database) -> None:
    watched = SnapshotReader(database)  # type: ignore[arg-type]
    for second, backlog in ((0.0, 5), (2.0, 6), (2.0 + look.GAP_S, 7), (100.0, 8), (102.0, 9)):
        watched._add((second, backlog, 1.0))
    assert [(second, backlog) for second, backlog, _ in watched.points] == [
        (0.0, 5), (2.0, 6), (17.0, 7), (58.5, None), (100.0, 8), (102.0, 9),
    ]  # fmt: skip
    assert bars([1.0, None, 2.0])[1] == " "
