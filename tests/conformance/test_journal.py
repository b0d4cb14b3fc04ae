"""Settling: the journal is the fence, and all that hangs on a settlement commits with it."""

from __future__ import annotations

import asyncio
import json

import msgspec

from late.model.ids import new_id
from late.model.task import AttemptError, Cursor, OpenTask, ShardId, TaskId, Usage
from late.store.base import Result, Revival, SettleResult, Step, Store, Tick
from tests.conformance.backends import Raw
from tests.conformance.kit import (
    BEGINNING,
    dead,
    ids,
    open_of,
    own,
    parked,
    read_all,
    record,
    schedule,
    task,
    worker,
)

SETTLED, FENCED = SettleResult.SETTLED, SettleResult.FENCED


def journal(raw: Raw, shard: int = 0, group: str = "default") -> list[tuple]:
    return raw.execute(
        "select seq, epoch, owner, cursor from late_settlement"
        " where consumer_group = ? and shard_id = ? order by seq",
        group,
        shard,
    )


async def test_the_checkpoint_comes_back_with_the_next_lease(store: Store, raw: Raw) -> None:
    raw.insert(*(new := [task() for _ in range(3)]))
    records, cursor = await read_all(store, new)
    owner = await own(store)
    open_tasks = tuple(open_of(r) for r in records[:2])
    assert await owner.settle(cursor=cursor, open=open_tasks) is SETTLED

    again = await own(store)

    assert again.lease.cursor == cursor
    assert again.lease.open == open_tasks
    assert again.lease.seq == owner.seq + 1
    assert again.lease.epoch > owner.lease.epoch
    assert sorted(ids(await store.fetch(ShardId(0), again.lease.open))) == sorted(ids(records[:2]))


async def test_settling_twice_is_quiet_and_happens_once(store: Store, raw: Raw) -> None:
    owner = await own(store)
    settlement = owner.next(
        parked=(parked(7_000_000),),
        usage=(Usage("default", "count", "local", "done", 1, 1, 10, 20, 30),),
    )

    for _ in range(3):
        assert await store.settle([settlement]) == [SETTLED]

    assert len(journal(raw)) == 2
    assert raw.execute("select count(*) from late_timer") == [(1,)]
    owner.accept(settlement)
    assert await owner.settle() is SETTLED
    assert await store.settle([settlement]) == [SETTLED], "also when it is no longer the last"


async def test_a_repeat_and_a_new_one_travel_together(store: Store, raw: Raw) -> None:
    first, second, third = [await own(store, shard) for shard in (0, 1, 2)]
    repeated = first.next()
    await store.settle([repeated])
    stale = second.next()
    (taken,) = await store.acquire("w1", [("default", ShardId(1))])
    fresh = third.next()

    # The results stand in the order of the call, whatever the order of the writes is.
    results = await store.settle([stale, repeated, fresh])

    assert results == [FENCED, SETTLED, SETTLED]
    assert [row[0] for row in journal(raw, 1)] == [1, taken.seq]


async def test_the_journal_has_no_gap_and_no_fork(
    store: Store, other_store: Store, raw: Raw
) -> None:
    owner = await own(store)
    rivals = [owner.next(), owner.next()]

    results = await asyncio.gather(store.settle(rivals[:1]), other_store.settle(rivals[1:]))

    assert sorted(r.value for (r,) in results) == ["fenced", "settled"]
    owner.accept(rivals[0])
    ahead = owner.next()
    owner.accept(ahead)
    assert await owner.settle() is FENCED, "a settlement that would leave a gap is refused"
    rows = journal(raw)
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))


async def test_a_takeover_fences_the_old_owner(store: Store, other_store: Store, raw: Raw) -> None:
    await store.heartbeat(worker("w1"), 60)
    old = await own(store, name="w1")
    await old.settle()
    await store.release([old.lease])
    new = await own(other_store, name="w2")
    rows = journal(raw)
    assert rows[-1][:3] == (new.lease.seq, new.lease.epoch, "w2")

    late = await old.settle(
        parked=(parked(1_000_000),), dead=(dead(),), released_keys=(("k", task().task_id),)
    )

    assert late is FENCED
    assert journal(raw) == rows
    assert raw.execute("select count(*) from late_timer") == [(0,)]
    assert raw.execute("select count(*) from late_dead") == [(0,)]
    assert await new.settle() is SETTLED


async def test_a_zombie_that_outslept_the_journal_is_fenced(
    store: Store, other_store: Store, raw: Raw
) -> None:
    """Retention removes the very row that would have collided with the zombie's next one."""
    zombie = await own(store, name="w1")
    await store.release([zombie.lease])
    successor = await own(other_store, name="w2")
    for _ in range(3):
        await successor.settle()
    # What was settled in this step of the clock is not older than nothing yet.
    await asyncio.sleep(2 * store.features.time_resolution_s)
    await other_store.prune(journal_keep_s=0)
    assert [row[0] for row in journal(raw)] == [successor.seq]

    assert await zombie.settle(parked=(parked(1_000_000),)) is FENCED

    assert [row[0] for row in journal(raw)] == [successor.seq]
    assert raw.execute("select count(*) from late_timer") == [(0,)]
    assert await successor.settle() is SETTLED


async def test_many_shards_settle_in_one_call_in_order(store: Store, raw: Raw) -> None:
    owners = [await own(store, shard) for shard in range(8)]
    settlements = [owner.next(cursor=Cursor(owner.cursor)) for owner in owners]

    assert await store.settle(settlements) == [SETTLED] * 8
    assert await store.settle([]) == []

    assert all(len(journal(raw, shard)) == 2 for shard in range(8))


async def test_what_is_parked_comes_back_whole(store: Store) -> None:
    owner = await own(store)
    carried = parked(
        1_700_000_000_123_457,
        of=record(
            position=41,
            sequence=77,
            queue="q",
            name="n",
            payload=b"\x00\xff",
            headers='{"a":"b"}',
            options='{"priority":3}',
            created_at_us=1_700_000_000_000_123,
        ),
        reason="retry",
        attempts=2,
        deaths=1,
        held_key="trip-7",
        errors=(AttemptError(1, 5, "w1", "boom ü"), AttemptError(2, 6, "w1", "bang")),
    )
    plain = parked(1_700_000_000_123_458)
    await owner.settle(parked=(plain, carried))

    due = await store.due("default", ShardId(0), until_us=2**61, limit=10)

    assert due == [carried, plain]


async def test_unparking_comes_before_parking(store: Store) -> None:
    owner = await own(store)
    first = parked(5_000_000)
    gone = (6_000_000, task().task_id)
    await owner.settle(parked=(first,))
    later = parked(9_000_000, of=first.record, reason="retry", attempts=1)
    same = parked(5_000_000, of=first.record, reason="snooze", attempts=1)

    result = await owner.settle(
        unparked=((first.due_at_us, first.record.task_id), gone), parked=(same, later)
    )

    assert result is SETTLED, "a timer that is gone is fine"
    assert await store.due("default", ShardId(0), until_us=2**61, limit=10) == [same, later]


async def test_dead_letters_commit_with_the_settlement(store: Store, raw: Raw) -> None:
    owner = await own(store)
    before_us = await store.now()
    letter = dead(record(payload=b"\x80"), errors=(AttemptError(3, 1, "w", "x"),), deaths=2)
    await owner.settle(dead=(letter,))

    ((at_us, task_id, reason, payload, attempts, deaths, errors),) = raw.execute(
        "select dead_at_us, task_id, reason, payload, attempts, deaths, errors from late_dead"
        " where consumer_group = 'default' and shard_id = 0"
    )

    assert before_us <= at_us <= await store.now()
    assert (str(task_id), reason, bytes(payload)) == (letter.record.task_id, "failed", b"\x80")
    assert (attempts, deaths) == (3, 2)
    assert json.loads(errors)[0]["error"] == "x"


async def test_usage_is_written_exactly_once(store: Store, raw: Raw) -> None:
    owner = await own(store)
    usage = (
        Usage("q", "n", "local", "done", 3, 4, 50, 60, 70),
        Usage("q", "n", "local", "retried", 1, 1, 5, 6, 7),
    )
    settlement = owner.next(usage=usage)
    await store.settle([settlement])
    await store.settle([settlement])

    rows = raw.execute("select usage from late_settlement where usage is not null")

    (text,) = (row[0] for row in rows)
    assert msgspec.json.decode(text, type=tuple[Usage, ...]) == usage


async def test_unique_keys_are_freed_for_their_own_task_only(store: Store, raw: Raw) -> None:
    mine, foreign = task(), task()
    for key, holder in (("a", mine), ("b", foreign)):
        raw.execute(
            "insert into late_unique (unique_key, task_id, digest, created_at_us)"
            " values (?, ?, 'd', 1)",
            key,
            holder.task_id,
        )
    owner = await own(store)

    result = await owner.settle(
        released_keys=(("a", mine.task_id), ("b", mine.task_id), ("unknown", mine.task_id))
    )

    assert result is SETTLED
    assert raw.execute("select unique_key from late_unique") == [("b",)]


async def test_a_key_with_a_period_stays_and_says_that_its_task_has_ended(
    store: Store, raw: Raw
) -> None:
    mine = task()
    raw.execute(
        "insert into late_unique (unique_key, task_id, digest, created_at_us, expires_at_us)"
        " values ('a', ?, 'd', 1, -77), ('b', ?, 'd', 1, -78), ('c', ?, 'd', 1, 79)",
        mine.task_id,
        task().task_id,
        mine.task_id,
    )
    owner = await own(store)

    assert await owner.settle(released_keys=tuple((k, mine.task_id) for k in "abc")) is SETTLED

    found = raw.execute("select unique_key, expires_at_us from late_unique order by unique_key")
    assert [tuple(row) for row in found] == [("a", 77), ("b", -78), ("c", 79)]


# --- recurring -----------------------------------------------------------------------------------


def schedule_row(raw: Raw, name: str) -> tuple[int | None, str | None]:
    ((due, open_id),) = raw.execute(
        "select next_due_at_us, open_task_id from late_schedule where name = ?", name
    )
    return due, None if open_id is None else str(open_id)


async def test_a_tick_moves_its_schedule_and_inserts_its_tasks(store: Store, raw: Raw) -> None:
    schedule(raw, "nightly", 60)
    owner = await own(store)
    idle, cursor = [], BEGINNING
    assert [p for p in await store.read({ShardId(0): cursor}, 10) if p.records] == idle
    new = [task(), task()]
    settlement = owner.next(ticks=(Tick("nightly", 60, 120, tuple(new)),))

    for _ in range(2):
        assert await store.settle([settlement]) == [SETTLED]

    found, _ = await read_all(store, new)
    assert sorted(ids(found)) == sorted(ids(new)), "once, and seen by the store that wrote it"
    assert schedule_row(raw, "nightly") == (120, new[-1].task_id)


async def test_a_task_of_a_tick_waits_until_its_unique_key_is_free(store: Store, raw: Raw) -> None:
    schedule(raw, "nightly", 60)
    owner = await own(store)
    first, second, third = (task(unique_key="k") for _ in range(3))
    other = task()
    await owner.settle(ticks=(Tick("nightly", 60, 120, (first,)),))
    await owner.settle(ticks=(Tick("nightly", 120, 180, (second, other)),))
    released = (("k", first.task_id),)
    await owner.settle(ticks=(Tick("nightly", 180, 240, ()),), released_keys=released)
    await owner.settle(ticks=(Tick("nightly", 240, 300, (third,)),))

    found, _ = await read_all(store, [first, other, third])
    assert sorted(ids(found)) == sorted(ids([first, other, third]))
    ((holder,),) = raw.execute("select task_id from late_unique where unique_key = 'k'")
    assert str(holder) == third.task_id


async def test_results_are_kept_from_their_settlement_on(store: Store, raw: Raw) -> None:
    owner = await own(store)
    first, second = new_id(0), new_id(0)
    results = (Result(first, b"1", 60_000_000), Result(second, b"2", 7_000_000))
    await owner.settle(results=results)
    await owner.settle(results=(Result(first, b"3", 5_000_000),))

    now_us = await store.now()
    found = raw.execute("select task_id, value, expires_at_us from late_result order by value")
    assert [(str(task_id), bytes(value)) for task_id, value, _ in found] == [
        (second, b"2"),
        (first, b"3"),
    ]
    ends_us = [expires_at_us - now_us for _, _, expires_at_us in found]
    assert ends_us[0] <= 7_000_000
    assert ends_us[1] <= 5_000_000, "a later one takes the place of the first"


async def test_a_tick_that_was_fired_already_inserts_nothing(store: Store, raw: Raw) -> None:
    schedule(raw, "nightly", 120)
    schedule(raw, "other", 60)
    owner = await own(store)
    stale, unknown, good = task(), task(), task()

    result = await owner.settle(
        ticks=(
            Tick("nightly", 60, 120, (stale,)),
            Tick("missing", 60, 120, (unknown,)),
            Tick("other", 60, None, (good,)),
        )
    )

    assert result is SETTLED, "the settlement stands without the tick"
    found, _ = await read_all(store, [good])
    assert ids(found) == ids([good])
    assert schedule_row(raw, "nightly") == (120, None)
    assert schedule_row(raw, "other") == (None, good.task_id)


async def test_a_skipped_tick_keeps_the_open_task(store: Store, raw: Raw) -> None:
    running = task()
    schedule(raw, "nightly", 60, running.task_id)
    owner = await own(store)

    await owner.settle(ticks=(Tick("nightly", 60, 120, ()),))
    assert schedule_row(raw, "nightly") == (120, running.task_id)

    await owner.settle(ended_ticks=(("nightly", task().task_id),))
    assert schedule_row(raw, "nightly") == (120, running.task_id)
    await owner.settle(ended_ticks=(("missing", running.task_id),))
    assert schedule_row(raw, "nightly") == (120, running.task_id)
    await owner.settle(ended_ticks=(("nightly", running.task_id),))
    assert schedule_row(raw, "nightly") == (120, None)


async def test_a_fenced_settlement_leaves_no_trace(store: Store, raw: Raw) -> None:
    schedule(raw, "nightly", 60)
    owner = await own(store)
    waiting = parked(3_000_000)
    await owner.settle(parked=(waiting,))
    held = task()
    raw.execute(
        "insert into late_unique (unique_key, task_id, digest, created_at_us)"
        " values ('k', ?, 'd', 1)",
        held.task_id,
    )
    await own(store)  # a new epoch: the first owner is fenced

    result = await owner.settle(
        unparked=((waiting.due_at_us, waiting.record.task_id),),
        parked=(parked(4_000_000),),
        dead=(dead(),),
        ticks=(Tick("nightly", 60, 120, (task(),)),),
        ended_ticks=(("nightly", held.task_id),),
        released_keys=(("k", held.task_id),),
    )

    assert result is FENCED
    assert await store.due("default", ShardId(0), until_us=2**61, limit=9) == [waiting]
    assert raw.execute("select count(*) from late_dead") == [(0,)]
    assert raw.execute("select count(*) from late_task") == [(0,)]
    assert raw.execute("select count(*) from late_unique") == [(1,)]
    assert schedule_row(raw, "nightly") == (60, None)


async def test_a_wide_checkpoint_survives(store: Store) -> None:
    owner = await own(store)
    many = tuple(OpenTask(n, task().task_id) for n in range(1, 2001))
    assert await owner.settle(open=many) is SETTLED

    assert (await own(store)).lease.open == many


async def test_steps_are_numbered_by_group_and_task(store: Store, raw: Raw) -> None:
    one, another = (new_id(ShardId(0)) for _ in range(2))

    def steps(task_id: TaskId, *events: str) -> tuple[Step, ...]:
        return tuple(Step(task_id, 1, event) for event in events)

    owner = await own(store)
    first = (*steps(one, "delayed", "retried"), *steps(another, "retried"))
    assert await owner.settle(history=first) is SETTLED
    audit = await own(store, group="audit")
    assert await audit.settle(history=steps(one, "done")) is SETTLED
    last = (*steps(another, "done"), *steps(one, "retried", "done"))
    assert await owner.settle(history=last) is SETTLED

    kept = raw.execute("select consumer_group, task_id, number, event from late_history")
    assert sorted((group, str(task_id), *step) for group, task_id, *step in kept) == sorted(
        [
            *(
                ("default", one, n, e)
                for n, e in enumerate(("delayed", "retried", "retried", "done"), 1)
            ),
            *(("default", another, n, e) for n, e in enumerate(("retried", "done"), 1)),
            ("audit", one, 1, "done"),
        ]
    )


async def test_a_dead_letter_that_goes_back_has_a_step_where_a_history_is_kept(
    store: Store, raw: Raw
) -> None:
    owner = await own(store)
    kept, silent = dead(), dead()
    step = Step(kept.record.task_id, 1, "dead")
    assert await owner.settle(dead=(kept, silent), history=(step,)) is SETTLED
    back = (Revival(kept.record.task_id, 30), Revival(silent.record.task_id, 40))
    assert await owner.settle(revived=back) is SETTLED

    steps = raw.execute("select task_id, number, event from late_history")
    assert sorted((str(task_id), *rest) for task_id, *rest in steps) == [
        (kept.record.task_id, 1, "dead"),
        (kept.record.task_id, 2, "redriven"),
    ]
