"""The sum of the day that all who watch share: for how much of it nobody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from late.control import Control
from late.control.status.usage import Key, UsageRead
from late.errors import StoreUnavailable
from late.model.task import Usage
from late.web.models.cost import DAY_US
from late.web.usage import shared_read, today
from late.web.usage.today import Today
from tests.unit.web_kit import page

SHARD: Key = ("default", 0)


class Journal:
    """Has so many settlements in one shard; answers at once, unless it is held or away."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.now_us = 5 * DAY_US + 1
        self.answers = threading.Event()
        self.answers.set()
        self.away = False
        self.asked = 0
        self.status = self

    def now(self) -> int:
        return self.now_us

    def usage_since(self, since_us: int, read: Mapping[Key, int], *, rows: int) -> UsageRead:
        self.asked += 1
        assert self.answers.wait(120)
        if self.away:
            raise StoreUnavailable("no answer")
        begun = read.get(SHARD, 0)
        count = min(rows, self.last - begun)
        usage = ("default", Usage("mail", "send", "local", "done", 1, 1, 1))
        return UsageRead(self.now_us, (usage,) * count, {SHARD: begun + count}, count < rows)


def watched(journal: Journal) -> Today:
    return Today(cast(Control, cast(Any, journal)))


def ended(seen: Today) -> int:
    return sum(share.ended for share in seen.shares.values())


async def behind(seen: Today) -> None:
    """Wait for what no page waits for."""
    assert seen._reading is not None
    await asyncio.wait({seen._reading})


async def test_a_day_that_takes_long_is_read_behind_the_page() -> None:
    journal = Journal(today.ROWS - 1)
    seen = watched(journal)
    journal.answers.clear()
    await seen.look()
    assert (seen.reading, seen.whole, ended(seen)) == (True, False, 0)
    assert seen.since_us == 5 * DAY_US, "what the page says is known"
    journal.answers.set()
    await behind(seen)
    assert (seen.whole, ended(seen)) == (True, today.ROWS - 1)
    await seen.look()
    assert ended(seen) == today.ROWS - 1, "nothing is read twice"


async def test_a_visit_reads_its_share_and_no_more() -> None:
    seen = watched(Journal(3 * today.ROWS))
    for visits in (1, 2):
        await seen.look()
        await behind(seen)
        assert (seen.whole, ended(seen)) == (False, visits * today.ROWS)


async def test_only_the_first_visit_of_a_long_day_waits_and_the_one_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_read, "GLANCE_S", 60.0)
    monkeypatch.setattr(shared_read, "LATER_S", 0.0)
    journal = Journal(3 * today.ROWS)
    seen = watched(journal)
    await seen.look()
    assert ended(seen) == today.ROWS
    await seen.look()
    assert (seen.reading, ended(seen)) == (True, today.ROWS), "the page is drawn before the read"
    journal.away = True
    await behind(seen)
    assert not seen.reading
    with pytest.raises(StoreUnavailable):
        await seen.look()


async def test_what_went_wrong_is_said_and_what_was_read_stays() -> None:
    journal = Journal(3)
    seen = watched(journal)
    await seen.look()
    assert journal.asked == 1, "it had all of it"
    journal.away = True
    with pytest.raises(StoreUnavailable):
        await seen.look()
    assert ended(seen) == 3
    journal.away, journal.now_us = False, journal.now_us + DAY_US
    await seen.look()
    assert (seen.since_us, ended(seen)) == (6 * DAY_US, 3), "midnight: it begins anew"


async def test_a_stop_waits_for_no_more_than_a_step() -> None:
    journal = Journal(today.ROWS)
    seen = watched(journal)
    journal.answers.clear()
    await seen.look()
    closing = asyncio.create_task(seen.close())
    await asyncio.sleep(0)
    journal.answers.set()
    await closing
    assert (seen.reading, ended(seen)) == (False, today.ROWS // shared_read.STEPS)


async def test_a_long_day_holds_up_no_page_and_comes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with page(tmp_path) as it:
        answers, ask = threading.Event(), it.control.status.usage_since

        def held(*args: Any, **kwargs: Any) -> Any:
            assert answers.wait(120)
            return ask(*args, **kwargs)

        monkeypatch.setattr(it.control.status, "usage_since", held)
        text = await it.shown("cost")
        assert "The day is still being read." in text
        assert 'hx-get="/ui/cost" hx-trigger="load delay' in text
        answers.set()
        monkeypatch.setattr(shared_read, "GLANCE_S", 60.0)
        text = await it.shown("cost")
        assert ("Nothing has been settled today." in text, "being read" in text) == (True, False)


async def test_a_journal_that_was_compacted_is_counted_from_the_beginning() -> None:
    journal = Journal(3)
    seen = watched(journal)
    await seen.look()
    assert ended(seen) == 3
    seen.take(UsageRead(journal.now_us, (), {}, whole=False, anew=True))
    assert (ended(seen), seen.whole) == (0, False)
    await seen.look()
    assert ended(seen) == 3
