"""Reading the log: complete, sound, ordered, bounded, resumable."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from late.model.task import ShardId, TaskId
from late.store.base import Store, cursor_within
from tests.conformance.backends import Backend, Raw
from tests.conformance.kit import BEGINNING, PATIENCE_S, ids, open_of, read_all, record, task

MIB = 2**20


async def test_a_record_comes_back_as_it_was_inserted(store: Store, raw: Raw) -> None:
    given = task(3, b'{"a": 1}', queue="payments", name="charge", headers='{"h":"1"}',
                 options='{"priority":5}')  # fmt: skip
    before_us = await store.now()
    raw.insert(given)
    after_us = await store.now()

    (found,), _ = await read_all(store, [given])

    assert found.shard_id == 3
    assert found.task_id == given.task_id
    assert (found.queue, found.name, found.payload) == ("payments", "charge", b'{"a": 1}')
    assert (found.headers, found.options) == ('{"h":"1"}', '{"priority":5}')
    step_us = round(store.features.time_resolution_s * 1_000_000)
    assert before_us - step_us <= found.created_at_us <= after_us + step_us


async def test_an_append_is_visible_if_and_only_if_it_was_committed(
    store: Store, raw: Raw, connect: Callable[[], Raw]
) -> None:
    committed, rolled_back, open_still, last = (task() for _ in range(4))
    raw.begin()
    raw.insert(committed)
    raw.commit()
    raw.begin()
    raw.insert(rolled_back)
    raw.rollback()
    raw.insert(last)
    found, cursor = await read_all(store, [committed, last])
    assert ids(found) == ids([committed, last])

    raw.begin()
    raw.insert(open_still)
    assert [page for page in await store.read({ShardId(0): cursor}, 10) if page.records] == []
    raw.commit()
    found, _ = await read_all(store, [open_still], cursor=cursor)
    assert ids(found) == ids([open_still])


async def test_a_shard_that_was_read_to_its_end_hides_none_after_it(store: Store, raw: Raw) -> None:
    first, second = task(0), task(1)
    raw.insert(first, second)
    _, end = await read_all(store, [first])
    for _ in range(2):  # until nothing is left to look for
        for page in await store.read({ShardId(0): end}, 10):
            end = page.cursor

    found: list[TaskId] = []
    cursors = {ShardId(0): end, ShardId(1): BEGINNING}
    async with asyncio.timeout(PATIENCE_S):
        while not found:
            found = [id for page in await store.read(cursors, 10) for id in ids(page.records)]

    assert found == ids([second])


async def test_business_writes_and_tasks_share_their_fate(store: Store, raw: Raw) -> None:
    raw.execute("create table trips (id integer primary key)")
    kept, dropped = task(), task()
    for number, (new, end) in enumerate([(kept, raw.commit), (dropped, raw.rollback)]):
        raw.begin()
        raw.execute("insert into trips (id) values (?)", number)
        raw.insert(new)
        end()

    found, _ = await read_all(store, [kept])

    assert ids(found) == ids([kept])
    assert raw.execute("select id from trips") == [(0,)]


async def test_a_savepoint_rolled_back_takes_only_its_own_tasks(
    store: Store, raw: Raw, backend: Backend
) -> None:
    if not backend.savepoints:
        pytest.skip("this database has no savepoints")
    first, inside, last = task(), task(), task()
    raw.begin()
    raw.insert(first)
    raw.execute("savepoint s")
    raw.insert(inside)
    raw.execute("rollback to s")
    raw.insert(last)
    raw.commit()

    found, _ = await read_all(store, [first, last])

    assert set(ids(found)) == set(ids([first, last]))


async def test_the_earlier_position_committing_last_is_not_lost(
    store: Store, connect: Callable[[], Raw]
) -> None:
    slow, fast = connect(), connect()
    early, late = task(), task()
    slow.begin()
    slow.insert(early)

    def overtake() -> None:
        fast.begin()
        fast.insert(late)
        fast.commit()

    racing = threading.Thread(target=overtake)
    racing.start()
    seen, cursor = [], BEGINNING
    if not store.features.commit_order:
        # Where a second writer can pass the first, the tail passes with it.
        racing.join()
        seen, cursor = await read_all(store, [late])
        assert ids(seen) == ids([late])
    slow.commit()
    racing.join()

    wanted = [t for t in (early, late) if t.task_id not in ids(seen)]
    rest, _ = await read_all(store, wanted, cursor=cursor)

    assert sorted(ids(seen + rest)) == sorted(ids([early, late]))


async def test_pages_are_ordered_bounded_and_resumable(store: Store, raw: Raw) -> None:
    batches = [[task() for _ in range(5)] for _ in range(5)]
    for batch in batches:
        raw.begin()
        raw.insert(*batch)
        raw.commit()
    wanted = [t for batch in batches for t in batch]

    by_three, _ = await read_all(store, wanted, limit=3)
    at_once, _ = await read_all(store, wanted, limit=1000)

    assert len(by_three) == len(wanted)
    assert by_three == at_once
    keys = [(r.position, r.task_id) for r in at_once]
    assert keys == sorted(keys)


async def test_a_full_page_says_that_there_is_more(store: Store, raw: Raw) -> None:
    wanted = [task() for _ in range(4)]
    raw.insert(*wanted)
    await read_all(store, wanted)

    (full,) = await store.read({ShardId(0): BEGINNING}, 3)
    (rest,) = await store.read({ShardId(0): full.cursor}, 3)

    assert (len(full.records), full.more) == (3, True)
    assert len(rest.records) == 1
    cursor, more = rest.cursor, rest.more
    while more:
        pages = await store.read({ShardId(0): cursor}, 3)
        assert [page for page in pages if page.records] == []
        cursor, more = (pages[0].cursor, pages[0].more) if pages else (cursor, False)


@pytest.mark.parametrize("limit", [4, 100])
async def test_reading_resumes_in_the_middle_of_a_page(store: Store, raw: Raw, limit: int) -> None:
    wanted = [task() for _ in range(6)]
    raw.begin()
    raw.insert(*wanted[:3])
    raw.commit()
    raw.insert(*wanted[3:])
    in_order, _ = await read_all(store, wanted)

    (page,) = await store.read({ShardId(0): BEGINNING}, limit)
    by_id = {t.task_id: t for t in wanted}
    for number, last in enumerate(page.records[:5], start=1):
        missing = [by_id[task_id] for task_id in ids(in_order[number:])]
        rest, _ = await read_all(store, missing, cursor=cursor_within(page.window, last))
        assert rest == in_order[number:], f"resumed after record {number}"


async def test_a_cursor_inside_a_page_survives_later_commits(
    store: Store, connect: Callable[[], Raw]
) -> None:
    producer, slow = connect(), connect()
    before = [task() for _ in range(4)]
    overtaken, after = task(), task()
    if not store.features.commit_order:
        slow.begin()
        slow.insert(overtaken)
    producer.insert(*before)
    in_order, _ = await read_all(store, before)
    (page,) = await store.read({ShardId(0): BEGINNING}, 100)
    middle = cursor_within(page.window, page.records[1])
    if store.features.commit_order:
        slow.begin()
        slow.insert(overtaken)
    slow.commit()
    producer.insert(after)

    wanted = [*before[2:], overtaken, after]
    found, _ = await read_all(store, wanted, cursor=middle, limit=2)

    assert sorted(ids(found)) == sorted([*ids(in_order[2:]), *ids([overtaken, after])])


async def test_the_cursor_never_moves_back(store: Store, raw: Raw) -> None:
    wanted = [task() for _ in range(3)]
    raw.insert(*wanted)
    _, cursor = await read_all(store, wanted)

    for _ in range(3):
        for page in await store.read({ShardId(0): cursor}, 10):
            assert page.records == [] or not page.records
            cursor = page.cursor
    last = task()
    raw.insert(last)
    found, _ = await read_all(store, [last], cursor=cursor)

    assert ids(found) == ids([last]), "nothing that was covered came again"


async def test_shards_are_read_together_and_apart(store: Store, raw: Raw) -> None:
    wanted = [task(shard) for shard in (0, 1, 2) for _ in range(2)]
    raw.insert(*wanted)
    for shard in (0, 1, 2):
        await read_all(store, [t for t in wanted if t.shard_id == shard])

    pages = await store.read({ShardId(s): BEGINNING for s in (0, 1, 2, 7)}, 10)

    found = {page.shard_id: ids(page.records) for page in pages if page.records}
    assert {s: sorted(i) for s, i in found.items()} == {
        s: sorted(ids([t for t in wanted if t.shard_id == s])) for s in (0, 1, 2)
    }
    now_us = await store.now()
    assert all(0 <= now_us - page.now_us < 60_000_000 for page in pages)


async def test_an_idle_tail_sees_what_comes_later(store: Store, raw: Raw) -> None:
    cursors = {ShardId(0): BEGINNING, ShardId(1): BEGINNING}
    for number in range(6):
        idle = await store.read(cursors, 10)
        assert [page for page in idle if page.records] == []
        shard = ShardId(number % 2)
        new = task(shard)
        raw.insert(new)
        found, cursors[shard] = await read_all(store, [new], cursor=cursors[shard])
        assert ids(found) == ids([new])


async def test_the_clock_has_the_declared_resolution(store: Store) -> None:
    step_us = round(store.features.time_resolution_s * 1_000_000)
    moments = [await store.now() for _ in range(40)]

    assert moments == sorted(moments)
    assert all(moment % step_us == 0 for moment in moments)
    assert any(moment % (10 * step_us) for moment in moments), "coarser than it says"


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x00", b"a\x00b", b"\xff\xfe\x80", b"\xed\xa0\x80", random.Random(7).randbytes(MIB)],
    ids=["empty", "nul", "nul inside", "not utf-8", "surrogate", "one MiB"],
)
async def test_payloads_are_bytes_and_survive(store: Store, raw: Raw, payload: bytes) -> None:
    given = task(0, payload)
    raw.insert(given)

    (found,), _ = await read_all(store, [given])

    assert found.payload == payload
    assert type(found.payload) is bytes


async def test_text_of_every_alphabet_survives(store: Store, raw: Raw) -> None:
    given = task(queue="Ünïcode-队列-🚕", headers='{"k":"\u2028\u0001é"}')
    raw.insert(given)

    (found,), _ = await read_all(store, [given])

    assert (found.queue, found.headers) == (given.queue, given.headers)


async def test_fetch_finds_what_is_still_there(store: Store, raw: Raw) -> None:
    wanted = [task() for _ in range(5)]
    raw.insert(*wanted)
    found, _ = await read_all(store, wanted)
    keys = [open_of(r) for r in found]
    gone = open_of(record(position=found[-1].position + 1000))
    elsewhere = open_of(record(position=found[0].position))

    again = await store.fetch(ShardId(0), [*keys[1:4], gone, elsewhere])

    assert sorted(again, key=lambda r: r.task_id) == sorted(found[1:4], key=lambda r: r.task_id)
    assert await store.fetch(ShardId(1), keys) == []
    assert await store.fetch(ShardId(0), []) == []


async def test_racing_writers_lose_and_repeat_nothing(
    store: Store, connect: Callable[[], Raw]
) -> None:
    """Four writers, a fifth of the transactions rolled back, pages of seven read meanwhile."""
    plans = []
    for seed in range(4):
        random_ = random.Random(seed)
        plan = [
            ([task() for _ in range(random_.randint(1, 3))], random_.random() < 0.8)
            for _ in range(25)
        ]
        plans.append((connect(), plan))
    wanted = [t for _, plan in plans for new, commits in plan if commits for t in new]

    def write(raw: Raw, plan: list[tuple[list, bool]]) -> None:
        for new, commits in plan:
            raw.begin()
            raw.insert(*new)
            raw.commit() if commits else raw.rollback()

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, *each) for each in plans]
        found, _ = await read_all(store, wanted, limit=7)
        for each in writing:
            each.result()

    assert sorted(ids(found)) == sorted(ids(wanted))
