"""The charts of the overview: minutes of the journal, gaps, and what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from late.control import Control
from late.control.audit import acting, shortened
from late.control.status.changes import Change
from late.control.status.usage import Key, UsageRead
from late.errors import StoreUnavailable
from late.model.histogram import bucket
from late.model.task import ENQUEUED, Usage
from late.store import open_store
from late.web.models import last_hour as charts
from late.web.models.history import HOUR_US, MINUTE_US, Slots, merge, slots_of
from late.web.usage import last_hour, shared_read
from late.web.usage.last_hour import LastHour
from tests.conformance.kit import own, worker
from tests.integration.control_kit import execute
from tests.unit.web_kit import page

NOW_US = 500_000 * HOUR_US + 30_000_000
"""Half a minute after a full hour."""
FULL_US = NOW_US // MINUTE_US * MINUTE_US
SHARD: Key = ("default", 0)
DONE = Usage("mail", "send", "local", "done", 3, 3, 3, waiting=((bucket(2_000_000), 3),))


def read(*usages: tuple[int, Usage], **changes: Any) -> UsageRead:
    """A read of usage with times, in minutes before the present one."""
    times = tuple(FULL_US - ago * MINUTE_US for ago, _ in usages)
    given = {"read": {SHARD: 1}, "whole": True} | changes
    return UsageRead(NOW_US, tuple(("default", each) for _, each in usages), times=times, **given)


def drawn(minutes: Slots, **changes: Any) -> list[tuple[Any, ...]]:
    given: dict[str, Any] = {
        "now_us": NOW_US, "known": (0, NOW_US), "oldest_s": None, "sees": lambda queue: True,
    } | changes  # fmt: skip
    found = charts.rows(minutes, **given)
    assert [row[0] for row in found] == [FULL_US // 10**6 - 60 * n for n in range(60, 0, -1)]
    return [row[1:] for row in found]


def test_counts_are_those_of_their_minute_and_the_present_one_is_not_drawn() -> None:
    minutes: Slots = {}
    found = [Usage("mail", "send", "local", ENQUEUED, 7), DONE,
             Usage("mail", "send", "local", "retried", 2, 2),
             Usage("mail", "send", "local", "dead", 1, 1)]  # fmt: skip
    merge(minutes, slots_of(read(*((2, each) for each in found), (0, DONE), (60, DONE)), MINUTE_US))
    rows = drawn(minutes)
    assert rows[-2][:3] == (7, 4, 3)
    assert rows[-2][3] == pytest.approx(2.0, rel=0.04)
    assert rows[-1] == (0, 0, 0, None)
    assert rows[0][1] == 3
    assert drawn(minutes, sees=lambda queue: queue == "shop")[-2] == (0, 0, 0, None)


def test_what_was_not_read_is_a_gap() -> None:
    known = (FULL_US - 30 * MINUTE_US, FULL_US - 10 * MINUTE_US)
    rows = drawn({}, known=known)
    gap = (None,) * 4
    assert [row == gap for row in rows] == [True] * 30 + [False] * 20 + [True] * 10
    rows = charts.rows({}, now_us=NOW_US, known=(0, 0), oldest_s=None, sees=lambda queue: True)
    assert charts.labels(rows)["flow"] == "The journal is being read."


def test_a_queue_in_which_nothing_starts_is_a_line_that_rises() -> None:
    waits = [row[3] for row in drawn({}, oldest_s=150.0)]
    assert waits[-4:] == [None, None, 60.0, 120.0]


def test_changes_are_told_to_those_who_may_see_them() -> None:
    def change(subject: str, **more: Any) -> Change:
        return Change(NOW_US, "change", subject, "queue.set", "olga", **more)

    changes = [
        change("queue:mail", before='{"rate": 50.0, "paused": true}', after='{"rate": 20.0}'),
        change("queue:shop", before="{}", after='{"rate": 5.0}'),
        change("target:bank"),
        *(Change(NOW_US - 1, "join", f"w{n}", "1.2") for n in range(5)),
        Change(NOW_US - 2 * MINUTE_US, "death", "w9", "1.1+placement.3", "shop-7:41"),
    ]
    every = charts.marks(changes, sees_all=True, sees=lambda queue: True)
    assert [mark.text for mark in every] == [
        "queue.set mail: rate 50 → 20, paused on → default, by olga",
        "queue.set shop: rate 5, by olga",
        "queue.set bank, by olga",
        "5 workers joined: w0, w1, w2 and 2 more (version 1.2)",
        "Worker died: w9 at shop-7:41 (version 1.1)",
    ]
    assert every[0].href == "queues/mail"
    ours = charts.marks(changes, sees_all=False, sees=lambda queue: queue == "shop")
    assert [mark.kind for mark in ours] == ["change", "join", "death"]
    assert ours[2].text == "Worker died: w9 (version 1.1)"


def test_the_parts_of_one_command_are_one_line() -> None:
    def part(n: int, second: int, by: str = "olga", **more: Any) -> Change:
        after = msgspec.json.encode({"count": n, "state": "unfinished"} | more).decode()
        at_us = NOW_US + second * 1_000_000
        return Change(at_us, "change", "tasks:default", "tasks.cancel", by, after=after)

    found = charts.marks(
        [
            part(1, 0, ids=["c"]), part(500, -1, by="eve", filter={"queue": "mail"}),
            part(2, -2, ids=["a", "b"]), part(2, -3, ids=["x", "y"]),
            part(7, -4, by="eve", filter={"queue": "mail"}), part(9, -400, ids=["z"]),
            part(1, -500, by="eve", filter={"group": "g", "task_ids": ["t"]}),
            part(3, -501, by="eve", filter={"group": "g", "task_ids": ["p", "q", "r"]}),
        ],
        sees_all=True, sees=lambda queue: True,
    )  # fmt: skip
    cancel = "tasks.cancel default: count"
    assert [mark.text for mark in found] == [
        f"{cancel} 5, state unfinished, ids x, y, a and 2 more, by olga",
        f'{cancel} 507, state unfinished, filter {{"queue":"mail"}}, by eve',
        f'{cancel} 9, state unfinished, ids ["z"], by olga',
        f'{cancel} 4, state unfinished, filter {{"group":"g"}}, ids p, q, r and 1 more, by eve',
    ]
    assert found[0].at_us == NOW_US - 3_000_000, "its begin"


def test_many_ids_of_the_audit_are_shortened_for_people() -> None:
    assert shortened(None) is None
    assert shortened('{"rate":1.0}') == '{"rate":1.0}'
    assert shortened('{"count":5,"ids":["a","b","c","d","e"]}') == (
        '{"count":5,"ids":"a, b, c and 2 more"}'
    )
    assert shortened('{"filter":{"task_ids":["a","b","c","d"]}}') == (
        '{"filter":{"task_ids":"a, b, c and 1 more"}}'
    )


class Journal:
    """Answers with the reads that it is given, one after the other."""

    def __init__(self, *reads: UsageRead) -> None:
        self.reads = list(reads)
        self.asked: list[tuple[int, Mapping[Key, int]]] = []
        self.status = self
        self.away = False

    def now(self) -> int:
        return NOW_US

    def usage_since(self, since_us: int, read: Mapping[Key, int], *, rows: int) -> UsageRead:
        if self.away:
            raise StoreUnavailable("no answer")
        self.asked.append((since_us, read))
        return self.reads.pop(0)

    def changes_since(self, since_us: int) -> tuple[Change, ...]:
        return ()


async def looked(hour: LastHour) -> None:
    hour._due_at = 0.0
    await until_done(hour)


async def until_done(hour: LastHour) -> None:
    """Look once, and wait for what no page waits for."""
    await hour.look()
    assert hour._reading is not None
    await hour._reading


def watched_by(journal: Journal) -> Control:
    return cast(Control, cast(Any, journal))


def watched(journal: Journal) -> LastHour:
    return LastHour(watched_by(journal))


async def test_an_hour_is_read_on_and_known_up_to_the_last_whole_read() -> None:
    later = read((1, DONE), read={SHARD: 9})
    journal = Journal(read((3, DONE), whole=False), read((2, DONE), read={SHARD: 5}), later)
    hour = watched(journal)
    await looked(hour)
    assert (hour.whole, hour.until_us, len(hour.minutes)) == (True, NOW_US, 2)
    assert hour.since_us == FULL_US - HOUR_US
    await looked(hour)
    assert journal.asked[-1] == (hour.since_us, {SHARD: 5})
    assert len(hour.minutes) == 3
    journal.away = True
    hour._due_at = 0.0
    with pytest.raises(StoreUnavailable):
        await until_done(hour)
    assert len(hour.minutes) == 3, "what was read stays"


async def test_sums_of_what_was_read_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    anew = UsageRead(NOW_US, (), {}, whole=False, anew=True)
    hour = watched(Journal(read((3, DONE)), anew, read((3, DONE))))
    await looked(hour)
    await looked(hour)
    assert hour.minutes[FULL_US - 3 * MINUTE_US]["default", "mail", "local"].ended == 3, (
        "counted once"
    )
    # A journal with more than can be read: the newest minutes, and a gap before them.
    monkeypatch.setattr(last_hour, "COUNTS_MAX", 1)
    journal = Journal(read((50, DONE), (49, DONE), whole=False), read((2, DONE)))
    hour = watched(journal)
    await looked(hour)
    assert journal.asked[1] == (FULL_US - last_hour.SHORT_US, {})
    assert (list(hour.minutes), hour.until_us) == ([FULL_US - 2 * MINUTE_US], NOW_US)


async def test_what_was_known_stays_when_there_is_too_much_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_read, "EVERY_S", 0.0)
    monkeypatch.setattr(shared_read, "SHARE", 1e9)
    monkeypatch.setattr(last_hour, "COUNTS_MAX", 1)
    then_us = FULL_US - 20 * MINUTE_US + 30_000_000
    known = msgspec.structs.replace(read((40, DONE), (21, DONE)), now_us=then_us)
    much = read((20, DONE), (19, DONE), whole=False)
    journal = Journal(known, much, read((2, DONE)))
    hour = watched(journal)
    await looked(hour)
    await looked(hour)
    assert journal.asked[2] == (FULL_US - last_hour.SHORT_US, {})
    assert hour.gaps == ((FULL_US - 20 * MINUTE_US, FULL_US - last_hour.SHORT_US),)
    assert sorted(hour.minutes) == [FULL_US - ago * MINUTE_US for ago in (40, 21, 2)]
    rows = drawn(hour.minutes, known=(hour.since_us, hour.until_us), gaps=hour.gaps)
    ended = [row[1] for row in rows]
    assert [60 - place for place, count in enumerate(ended) if count] == [40, 21, 2]
    assert [60 - place for place, count in enumerate(ended) if count is None] == list(
        range(20, 5, -1)
    ), "a gap, between what was known and what is read now"
    hour.take(msgspec.structs.replace(read(), now_us=NOW_US + HOUR_US), {})
    assert hour.gaps == ()


async def test_reading_takes_its_share_of_the_time_alone() -> None:
    journal = Journal(read(), read())
    hour = watched(journal)
    await looked(hour)
    await hour.look()
    assert len(journal.asked) == 1


async def test_nobody_waits_for_a_slow_read_unless_what_is_known_is_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_read, "GLANCE_S", 60.0)
    monkeypatch.setattr(shared_read, "LATER_S", 600.0)
    journal = Journal(read(), read(), read())
    hour = watched(journal)
    await hour.look()
    hour._took_s, hour._due_at = 61.0, 0.0
    await hour.look()
    await asyncio.sleep(0)
    assert hour.reading
    assert len(journal.asked) == 1, "the page is drawn first"
    assert hour._reading is not None
    hour._reading.cancel()
    await asyncio.wait({hour._reading})
    hour._ended -= shared_read.OLD_S
    await hour.look()
    assert len(journal.asked) == 2
    monkeypatch.setattr(shared_read, "LATER_S", 0.0)
    journal.away, newest = True, hour._ended
    hour._took_s, hour._due_at = 61.0, 0.0
    with pytest.raises(StoreUnavailable):
        await until_done(hour)
    assert hour._ended == newest, "a read that fails makes nothing newer"


async def test_the_overview_tells_what_has_changed_and_who_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_read, "GLANCE_S", 60.0)
    async with page(tmp_path) as it:
        store = open_store(it.url)
        await store.open()
        await own(store, 1)
        await store.heartbeat(worker("gone"), 60.0)
        await store.close()
        with acting("olga"):
            it.control.queues.change("queue", "mail", {"rate": 5.0})
            it.control.queues.change("queue", "old", {"rate": 5.0})
        now = it.control.now()
        execute(it.url, "update late_worker set expires_at_us = :at where worker_id = 'gone'",
                at=now - 1)  # fmt: skip
        execute(it.url, "update late_audit set at_us = :at where subject = 'queue:old'",
                at=now - 2 * HOUR_US)  # fmt: skip
        found = it.control.status.changes_since(now - HOUR_US)
        kinds = sorted((each.kind, each.subject) for each in found)
        assert ("change", "queue:mail") in kinds
        assert ("death", "gone") in kinds
        assert ("change", "queue:old") not in kinds
        text = await it.shown("")
        assert "queue.set mail: rate 5, by olga" in text
        assert "died: gone" in text
