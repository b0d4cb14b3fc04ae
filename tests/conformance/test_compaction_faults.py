"""Compaction when things go wrong: old rows, kills, two at once, owners whose term is over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest

from late.model.task import Usage
from late.store.base import SettleResult, Store
from late.store.common import compaction, open_tasks
from tests.conformance.backends import Raw
from tests.conformance.journal_kit import (
    HOUR_US,
    Killed,
    Steps,
    compact,
    compactor_of,
    rows,
    sound,
    sums,
    three_terms,
    usage,
)
from tests.conformance.kit import open_of, own, read_all, task
from tests.conformance.victim import kill, start


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, store: Store) -> Steps:
    monkeypatch.setattr(compaction, "BATCH", 5)
    return Steps(monkeypatch, store)


# --- a kill at each step -------------------------------------------------------------------------


async def test_a_kill_after_each_step_is_gone_on_with_by_another_worker(
    store: Store, other_store: Store, raw: Raw, url: str, steps: Steps
) -> None:
    await three_terms(store, other_store, raw)
    counted, before = sums(raw), rows(raw)
    await compact(store)
    whole, after = steps.taken, rows(raw)
    assert whole > 8
    left = []
    for step in range(1, whole):
        begin_again(raw, before, store, other_store)
        steps.die_after(step)
        with pytest.raises(Killed):
            await compact(store)
        sound(url, raw, counted)
        left.append(len(rows(raw)))

        await compact(other_store)
        sound(url, raw, counted)
        assert rows(raw) == after
    assert len(set(left)) > 3, "what was done before the kill stays done"
    assert left == sorted(left, reverse=True)


def begin_again(raw: Raw, kept: list[tuple[Any, ...]], *stores: Any) -> None:
    """Write the journal of shard 0 as it was, and let the stores be those of new processes."""
    for store in stores:
        compactor = compactor_of(store)
        compactor._reached.clear()
        compactor._done.clear()
    there = {row[0] for row in rows(raw)}
    for seq, first_seq, epoch, owner, text, settled_at_us, cursor, settlement_id in kept:
        if seq in there:
            raw.execute(
                "update late_settlement set first_seq = ?, usage = ?"
                " where consumer_group = 'default' and shard_id = 0 and seq = ?",
                first_seq, text, seq,
            )  # fmt: skip
        else:
            raw.execute(
                "insert into late_settlement (consumer_group, shard_id, seq, first_seq, epoch,"
                " owner, usage, settled_at_us, cursor, settlement_id, open)"
                " values ('default', 0, ?, ?, ?, ?, ?, ?, ?, ?, '[]')",
                seq, first_seq, epoch, owner, text, settled_at_us, cursor, settlement_id,
            )  # fmt: skip


async def test_a_process_killed_within_a_transaction_leaves_a_whole_journal(
    store: Store, other_store: Store, raw: Raw, url: str
) -> None:
    owner = await three_terms(store, other_store, raw)
    counted, before = sums(raw), len(rows(raw))

    kill(await asyncio.to_thread(start, "compact", url))

    assert len(rows(raw)) < before
    sound(url, raw, counted)
    await compact(store)
    sound(url, raw, counted)
    assert await owner.settle() is SettleResult.SETTLED


# --- several at once -----------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1, 3])
async def test_two_compactions_in_turns(
    store: Store, other_store: Store, raw: Raw, url: str, steps: Steps, share: int
) -> None:
    """Between two steps of one the other takes some, or all: what it looked at has changed."""
    await three_terms(store, other_store, raw)
    counted = sums(raw)
    others = Steps(steps.monkeypatch, other_store)

    async def a_turn() -> None:
        others.die_after(share if steps.taken % 4 else 99)
        with contextlib.suppress(Killed):
            await compact(other_store)
        sound(url, raw, counted)

    steps.before = a_turn
    await compact(store)
    sound(url, raw, counted)
    steps.before = others.after = None
    await compact(store)
    assert (await compact(other_store)).compacted == 0
    sound(url, raw, counted)


async def test_a_shard_changes_hands_while_its_former_owner_compacts(
    store: Store, other_store: Store, raw: Raw, url: str, steps: Steps
) -> None:
    former = await three_terms(store, other_store, raw)
    late_one = former.next(usage=usage(random.Random(5)))
    counted: tuple[Usage, ...] = sums(raw)
    owners = [former]

    async def takes_over() -> None:
        nonlocal counted
        if steps.taken == 3:
            await store.release([former.lease])
            owners.append(await own(other_store, name="w3"))
        if steps.taken > 3:
            assert await owners[-1].settle(usage=usage(random.Random(steps.taken)))
            assert await store.settle([late_one]) == [SettleResult.FENCED]
            await compact(other_store)
        counted = sums(raw)
        sound(url, raw, counted)

    steps.after = takes_over
    await compact(store, journal_detail_s=0)
    assert len(owners) == 2
    sound(url, raw, counted)
    assert await store.settle([late_one]) == [SettleResult.FENCED]
    assert await owners[-1].settle() is SettleResult.SETTLED


# --- a worker of the version before --------------------------------------------------------------


async def test_the_first_row_of_a_term_stays(
    store: Store, other_store: Store, raw: Raw, steps: Steps
) -> None:
    """On Spanner a worker of the version before settles where its next `seq` is free and the one
    before is there. However long its term has been over, the first may not be free."""
    await three_terms(store, other_store, raw)
    began = {row[2]: row[0] for row in reversed(rows(raw))}
    assert len(began) == 3
    ended = {row[2]: row[0] for row in rows(raw)}

    for ages in ({}, {"journal_detail_s": 0.0}, {"journal_detail_s": 0.0, "journal_minute_s": 0.0}):
        await compact(store, **ages)
        kept = {row[0] for row in rows(raw)}
        assert kept >= {*began.values(), *ended.values()}
    assert len(kept) < 20


async def test_rows_of_the_version_before_between_new_ones(
    store: Store, other_store: Store, raw: Raw, url: str
) -> None:
    """Old workers and new ones have settled the same shard in turns: `open` in both forms, and no
    `first_seq` where the past is not compacted yet."""
    raw.insert(*(new := [task() for _ in range(8)]))
    records, cursor = await read_all(store, new)
    opened = tuple(open_of(each) for each in records[2:5])
    ended = (Usage("default", "count", "", "done", 1),)
    arrived = (
        Usage("default", "count", "", "enqueued", 8),
        Usage("default", "count", "", "done", 5),
    )
    owner = await own(store, name="old")
    await owner.settle(cursor=cursor, open=opened, usage=arrived)
    for number, (name, at) in enumerate(
        (("new", other_store), ("old", store), ("new", other_store))
    ):
        await owner.settle(open=opened[number:], usage=ended if number else ())
        if owner.lease.owner == "old":
            as_before(raw)
        await owner.store.release([owner.lease])
        owner = await own(at, name=name)
        assert owner.lease.open == opened[number:], "as the other one has written it"
        assert owner.lease.cursor == cursor
    raw.execute("update late_settlement set settled_at_us = ?", await store.now() - 5 * HOUR_US)
    assert await owner.settle() is SettleResult.SETTLED
    counted = sums(raw)
    assert {row[0][:2] for row in raw.execute("select open from late_settlement")} >= {"[[", "1:"}

    for ages in ({}, {"journal_minute_s": 3_600.0}):
        await compact(store, **ages)
        sound(url, raw, counted)
    await owner.store.release([owner.lease])
    owner = await own(store, name="newer")
    assert owner.lease.open == opened[2:]
    assert await owner.settle(open=(), usage=ended) is SettleResult.SETTLED
    sound(url, raw, sums(raw))


def as_before(raw: Raw) -> None:
    """Write the last row's open tasks as the version before did."""
    for seq, text in raw.execute("select seq, open from late_settlement order by seq desc limit 1"):
        tasks = [[each.position, each.task_id] for each in open_tasks.open_of(text)]
        raw.execute(
            "update late_settlement set open = ?"
            " where consumer_group = 'default' and shard_id = 0 and seq = ?",
            json.dumps(tasks, separators=(",", ":")), seq,
        )  # fmt: skip
