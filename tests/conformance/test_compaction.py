"""Compaction of the journal: fewer rows, the same sums, the same fence."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from late.control import Control
from late.model.task import Usage
from late.store.base import SettleResult, Store
from late.store.common import compaction
from tests.conformance.backends import Backend, Raw
from tests.conformance.journal_kit import (
    HOUR_US,
    KEEP_S,
    MINUTE_US,
    PLANNERS,
    Steps,
    compact,
    past,
    rows,
    settled_at,
    sums,
    tiles,
    usage,
)
from tests.conformance.kit import open_of, own, read_all, task


@pytest.mark.parametrize("seed", range(4))
async def test_sums_are_the_same_in_fewer_rows(
    store: Store, raw: Raw, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(compaction, "ROW_MIN", 1)
    owner = await own(store)
    await past(owner, raw, 60, ago_us=2 * HOUR_US, apart_us=7_000_000, seed=seed)
    await owner.settle()  # the last one, of now
    before, counted = rows(raw), sums(raw)

    report = await compact(store)

    after = rows(raw)
    assert sums(raw) == counted
    assert tiles(raw)
    assert report.compacted == len(before) - len(after)
    # The takeover, 60 in 8 or 9 minutes, then the last.
    assert len(after) <= 11
    old = {row[0]: row for row in before}
    assert all(row[5:] == old[row[0]][5:] for row in after), "a row is the last of its minute"
    assert (await compact(store)).compacted == 0


@pytest.mark.parametrize(("row_min", "most"), [(30, 5), (compaction.ROW_MIN, 4)])
async def test_a_row_of_a_quiet_shard_goes_on_within_its_hour(
    store: Store, raw: Raw, monkeypatch: pytest.MonkeyPatch, row_min: int, most: int
) -> None:
    monkeypatch.setattr(compaction, "ROW_MIN", row_min)
    owner = await own(store)
    for minutes in (9, 6, 3):  # what comes later joins what was put together before
        await past(owner, raw, 20, ago_us=2 * HOUR_US + minutes * MINUTE_US, apart_us=7_000_000)
        await owner.settle()  # the last one, of now
        settled_at(raw, owner, owner.seq, await store.now() - 2 * HOUR_US - minutes * MINUTE_US)
        counted = sums(raw)
        await compact(store)
        assert sums(raw) == counted
        assert tiles(raw)
    # The takeover, the others, perhaps of two hours, the last.
    assert len(rows(raw)) <= most
    assert (await compact(store)).compacted == 0


async def test_a_day_later_an_hour_is_one_row(
    store: Store, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "ROW_MIN", 1)
    owner = await own(store)
    await past(owner, raw, 90, ago_us=26 * HOUR_US, apart_us=2 * MINUTE_US)
    await owner.settle()
    counted = sums(raw)

    await compact(store, journal_minute_s=60 * 3_600.0)
    assert len(rows(raw)) == 92, "minutes, with one row each"
    await compact(store)

    assert sums(raw) == counted
    assert tiles(raw)
    assert len(rows(raw)) <= 7
    hours = [row[5] // HOUR_US for row in rows(raw)][1:-1]
    assert len(set(hours)) == len(hours)


async def test_the_fence_is_as_before(
    store: Store, other_store: Store, raw: Raw, backend: Backend
) -> None:
    old = await own(store, name="w1")
    await past(old, raw, 9, ago_us=3 * HOUR_US, apart_us=1_000)
    late_one = old.next()
    await store.release([old.lease])
    new = await own(other_store, name="w2")
    await past(new, raw, 9, ago_us=2 * HOUR_US, apart_us=1_000)
    last = rows(raw)[-1]

    assert (await compact(other_store)).compacted
    assert rows(raw)[-1] == last, "the last row is not touched, old as it is"
    assert await store.settle([late_one]) == [SettleResult.FENCED], "its seq is free again"
    for seq in range(1, new.seq + 1):
        stale = msgspec.structs.replace(late_one, seq=seq, settlement_id=f"zombie-{seq}")
        assert await store.settle([stale]) == [SettleResult.FENCED]
    assert await new.settle() is SettleResult.SETTLED
    # A repeat after an unknown outcome finds its row.
    again = new.next()
    assert await other_store.settle([again]) == [SettleResult.SETTLED]
    await compact(store, journal_detail_s=0)
    assert await other_store.settle([again]) == [SettleResult.SETTLED]


async def test_a_takeover_goes_on_from_the_last_checkpoint(
    store: Store, other_store: Store, raw: Raw
) -> None:
    raw.insert(*(new := [task() for _ in range(4)]))
    records, cursor = await read_all(store, new)
    owner = await own(store)
    await past(owner, raw, 5, ago_us=3 * HOUR_US, apart_us=1_000)
    await owner.settle(cursor=cursor, open=(open_of(records[2]),))
    settled_at(raw, owner, owner.seq, await store.now() - 3 * HOUR_US)
    await compact(store)
    await store.release([owner.lease])

    successor = await own(other_store, name="w2")

    assert successor.lease.seq == owner.seq + 1
    assert successor.lease.cursor == cursor
    assert successor.lease.open == (open_of(records[2]),)
    assert await successor.settle() is SettleResult.SETTLED


async def test_terms_stay_apart(store: Store, other_store: Store, raw: Raw, url: str) -> None:
    """An owner's rows never become another's, and `late verify` finds all in order."""
    at_us = (await store.now() - 5 * HOUR_US) // MINUTE_US * MINUTE_US
    for name in ("w1", "w2", "w1"):
        owner = await own(store if name == "w1" else other_store, name=name)
        for _ in range(3):
            await owner.settle(usage=usage(random.Random(7)))
        await owner.store.release([owner.lease])
    raw.execute("update late_settlement set settled_at_us = ?", at_us)
    terms = {(row[2], row[3]) for row in rows(raw)}

    await compact(store)

    # The first of each term, its last, and before the last row of all one of the same term.
    assert [(row[0], row[1]) for row in rows(raw)] == [
        (1, None), (4, 2), (5, None), (8, 6), (9, None), (11, 10), (12, None)]  # fmt: skip
    assert {(row[2], row[3]) for row in rows(raw)} == terms
    with Control(url) as control:
        assert control.verify().problems == ()
        assert all(check.result == "ok" for check in control.doctor() if check.name == "journal")


async def test_a_hole_stays_a_hole(store: Store, raw: Raw, url: str) -> None:
    owner = await own(store)
    await past(owner, raw, 8, ago_us=3 * HOUR_US, apart_us=1)
    raw.execute("delete from late_settlement where seq = 5")

    await compact(store)

    assert [(row[0], row[1]) for row in rows(raw)] == [(1, None), (4, 2), (8, 6), (9, None)]
    with Control(url) as control:
        kinds = {problem.kind for problem in control.verify().problems}
    assert kinds == {"journal_hole"}


async def test_a_clock_that_went_back_ends_the_stretch(store: Store, raw: Raw) -> None:
    owner = await own(store)
    await past(owner, raw, 8, ago_us=2 * HOUR_US, apart_us=1)
    counted = sums(raw)
    settled_at(raw, owner, 5, await store.now())
    await compact(store)
    assert 5 in [row[0] for row in rows(raw)]
    assert [row[0] for row in rows(raw)][-5:] == [5, 6, 7, 8, 9], "what is behind a young one stays"
    assert sums(raw) == counted
    assert tiles(raw)


async def test_rows_of_older_versions_are_added_up(store: Store, raw: Raw) -> None:
    owner = await own(store)
    await past(owner, raw, 5, ago_us=3 * HOUR_US, apart_us=1)
    for seq, text in (
        (2, None),
        (3, '[["default","count","","done",2]]'),
        (4, '[["default","count","","done",3,3,40,50,60,1]]'),
    ):
        raw.execute("update late_settlement set usage = ? where seq = ?", text, seq)
    raw.execute("update late_settlement set usage = null where seq in (5, 6)")

    await compact(store)

    assert [(row[0], row[1]) for row in rows(raw)] == [(1, None), (5, 2), (6, None)]
    assert sums(raw) == (Usage("default", "count", "", "done", 5, 3, 40, 50, 60, 1),)


async def test_usage_that_cannot_be_read_stays_as_it_is(store: Store, raw: Raw) -> None:
    owner = await own(store)
    await past(owner, raw, 5, ago_us=3 * HOUR_US, apart_us=1)
    raw.execute("update late_settlement set usage = '{' where seq = 4")
    before = rows(raw)
    await compact(store)
    assert rows(raw) == before


async def test_many_batches_and_many_shards(
    store: Store, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "BATCH", 7)
    for shard in range(3):
        owner = await own(store, shard)
        await past(owner, raw, 40, ago_us=2 * HOUR_US, apart_us=(shard + 1) * 3_000_000)
    counted = [sums(raw, shard) for shard in range(3)]

    await compact(store)

    for shard in range(3):
        assert sums(raw, shard) == counted[shard]
        assert tiles(raw, shard)
        minutes = [row[5] // MINUTE_US for row in rows(raw, shard)][1:-1]
        assert len(set(minutes)) == len(minutes)


async def test_compactions_at_once_count_nothing_twice(
    store: Store, other_store: Store, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "BATCH", 5)
    owner = await own(store)
    await past(owner, raw, 60, ago_us=26 * HOUR_US, apart_us=20_000_000)
    counted = sums(raw)

    reports = await asyncio.gather(
        compact(store),
        compact(other_store, journal_minute_s=KEEP_S),
        compact(store),
        compact(other_store),
    )
    assert sums(raw) == counted
    assert tiles(raw)
    more = await compact(store)
    assert sums(raw) == counted
    assert sum(each.compacted for each in reports) + more.compacted == 61 - len(rows(raw))


async def test_what_comes_later_joins_its_minute(store: Store, raw: Raw) -> None:
    """The last row of a shard that was idle for long becomes one like others."""
    owner = await own(store)
    at_us = (await store.now() - 2 * HOUR_US) // MINUTE_US * MINUTE_US
    for _ in range(4):
        await owner.settle(usage=usage(random.Random(3)))
    raw.execute("update late_settlement set settled_at_us = ?", at_us)
    await compact(store)
    assert [(row[0], row[1]) for row in rows(raw)] == [(1, None), (4, 2), (5, None)]
    await owner.settle()
    await compact(store)
    assert [(row[0], row[1]) for row in rows(raw)] == [(1, None), (5, 2), (6, None)]


async def test_the_sum_of_a_day_begins_again(store: Store, raw: Raw, url: str) -> None:
    """Of a reader that has counted a part of what is one row by now."""
    owner = await own(store)
    at_us = (await store.now() - 2 * HOUR_US) // MINUTE_US * MINUTE_US
    one = (Usage("default", "count", "", "done", 1),)
    for _ in range(5):
        await owner.settle(usage=one)
    raw.execute("update late_settlement set settled_at_us = ?", at_us)
    with Control(url) as control:
        first = control.status.usage_since(at_us, {}, rows=3)
        assert [each.count for _, each in first.usage] == [1, 1]
        await compact(store)

        again = control.status.usage_since(at_us, first.read, rows=3)
        assert (again.anew, again.usage, again.whole) == (True, (), False)
        whole = control.status.usage_since(at_us, again.read, rows=4)
        assert sorted(each.count for _, each in whole.usage) == [1, 4]
        assert whole.whole
        (shard,) = control.status.owners(only=("default", 0)).shards
        assert [tenure.settlements for tenure in shard.history] == [6]


@pytest.mark.parametrize("ends", ["between two writes", "anywhere"])
async def test_a_compaction_that_ends_is_gone_on_with(
    store: Store, raw: Raw, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(compaction, "BATCH", 5)
    owner = await own(store)
    await past(owner, raw, 30, ago_us=26 * HOUR_US, apart_us=30_000_000)
    counted = sums(raw)
    plan, left = compaction.plan_sums, 0

    def dies(*given: Any) -> compaction.Compacted:
        """The delete of the n-th sum is written, and its update is none that a database takes."""
        nonlocal left
        done = plan(*given)
        left -= len(done.sums)
        if not done.sums or left >= 0:
            return done
        broken: Any = object()
        last = msgspec.structs.replace(done.sums[-1], usage=broken)
        return msgspec.structs.replace(done, sums=(*done.sums[:-1], last))

    for round_ in range(10):
        with monkeypatch.context() as patched:
            pruning = asyncio.ensure_future(compact(store))
            if ends == "anywhere":
                for _ in range(round_ * 3):
                    await asyncio.sleep(0.001)
                pruning.cancel()
            else:
                left = round_ % 3
                for module in PLANNERS:
                    patched.setattr(module, "plan_sums", dies)
            (ended,) = await asyncio.gather(pruning, return_exceptions=True)
            assert round_ or isinstance(ended, BaseException)
        assert sums(raw) == counted
        assert tiles(raw)

    await compact(store)
    assert sums(raw) == counted
    assert tiles(raw)
    assert len(rows(raw)) <= 4


async def test_an_idle_journal_is_looked_at_once_in_a_width(
    store: Store, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, store)
    owner = await own(store)
    await past(owner, raw, 20, ago_us=3 * HOUR_US, apart_us=7_000_000)
    ages = {"journal_detail_s": 100 * 86_400.0}
    await compact(store, **ages)
    for again in range(3):
        looks = steps.taken
        # A minute and an hour may end meanwhile, once each.
        await compact(store, **ages)
        await compact(store, **ages)
        assert steps.taken <= looks + 2, again
        # With a new row each width is looked at.
        await owner.settle()
        looks = steps.taken
        await compact(store, **ages)
        assert steps.taken >= looks + 2
    assert (await compact(store)).compacted > 10
