"""Maintenance: only what every group has settled goes, by the journal and never by age."""

from __future__ import annotations

from typing import Any

from late.model.task import Cursor, Record
from late.store.base import Store, cursor_within
from tests.conformance.backends import Backend, Raw
from tests.conformance.kit import BEGINNING, ids, open_of, own, read_all, task, until, worker


def add_group(raw: Raw, name: str) -> None:
    raw.execute("insert into late_group (name, created_at_us) values (?, 1)", name)


def left(raw: Raw, shard: int = 0) -> set[str]:
    rows = raw.execute("select task_id from late_task where shard_id = ?", shard)
    return {str(task_id) for (task_id,) in rows}


async def page_of(store: Store, records: list[Record], number: int) -> Cursor:
    """The cursor that covers the first `number` of `records`, as read from the beginning."""
    shard = records[0].shard_id
    (page,) = await store.read({shard: BEGINNING}, 1000)  # type: ignore[dict-item]
    return cursor_within(page.window, page.records[number - 1])


async def filled(store: Store, raw: Raw, count: int = 6) -> tuple[list[Record], Cursor]:
    raw.insert(*(new := [task() for _ in range(count)]))
    return await read_all(store, new)


async def check(store: Store, raw: Raw, backend: Backend, *, needed: Any, settled: Any) -> None:
    await store.prune(journal_keep_s=3600)
    remaining = left(raw)
    assert remaining >= set(needed), "a task that some group still needs is gone"
    if backend.prunes_rows:
        assert not remaining & set(settled)


async def test_what_is_settled_goes_and_the_rest_stays(
    store: Store, raw: Raw, backend: Backend
) -> None:
    records, cursor = await filled(store, raw)
    owner = await own(store)
    await check(store, raw, backend, needed=ids(records), settled=[])

    await owner.settle(cursor=await page_of(store, records, 4), open=(open_of(records[1]),))
    settled = ids([records[0], *records[2:4]])
    await check(store, raw, backend, needed=ids([records[1], *records[4:]]), settled=settled)

    assert ids(await store.fetch(0, [open_of(records[1])])) == ids(records[1:2])
    await owner.settle(cursor=cursor, open=())
    await check(store, raw, backend, needed=[], settled=ids(records))
    new = task()
    raw.insert(new)
    found, _ = await read_all(store, [new], cursor=cursor)
    assert ids(found) == ids([new]), "an emptied log does not start again below the cursors"


async def test_every_group_counts(store: Store, raw: Raw, backend: Backend) -> None:
    records, cursor = await filled(store, raw)
    add_group(raw, "audit")
    default = await own(store)
    await default.settle(cursor=cursor)
    await check(store, raw, backend, needed=ids(records), settled=[])

    audit = await own(store, group="audit")
    await check(store, raw, backend, needed=ids(records), settled=[])
    await audit.settle(cursor=await page_of(store, records, 3), open=(open_of(records[0]),))
    await check(
        store,
        raw,
        backend,
        needed=ids([records[0], *records[3:]]),
        settled=ids(records[1:3]),
    )

    await audit.settle(cursor=cursor, open=())
    await check(store, raw, backend, needed=[], settled=ids(records))


async def test_a_group_without_a_journal_holds_everything(
    store: Store, raw: Raw, backend: Backend
) -> None:
    records, cursor = await filled(store, raw)
    add_group(raw, "replay")
    await (await own(store)).settle(cursor=cursor)

    await check(store, raw, backend, needed=ids(records), settled=[])


async def test_an_unread_shard_is_untouched(store: Store, raw: Raw, backend: Backend) -> None:
    elsewhere = [task(1) for _ in range(3)]
    raw.insert(*elsewhere)
    _, cursor = await filled(store, raw)
    await (await own(store)).settle(cursor=cursor)

    await store.prune(journal_keep_s=0)

    assert left(raw, 1) == set(ids(elsewhere))


async def test_shards_that_are_ahead_go_further(store: Store, raw: Raw, backend: Backend) -> None:
    """Rows of three shards lie mixed: one is settled to its end, one halfway, one not at all."""
    new = [task(shard) for _ in range(6) for shard in (0, 1, 2)]
    raw.insert(*new)
    by_shard = {s: [t for t in new if t.shard_id == s] for s in (0, 1, 2)}
    records = {s: (await read_all(store, by_shard[s]))[0] for s in (0, 1, 2)}
    for shard, settled in ((0, 6), (1, 3)):
        cursor = await page_of(store, records[shard], settled)
        await (await own(store, shard)).settle(cursor=cursor, open=(open_of(records[shard][1]),))

    await store.prune(journal_keep_s=3600)

    needed = {0: records[0][1:2], 1: [records[1][1], *records[1][3:]], 2: records[2]}
    for shard, kept in needed.items():
        assert left(raw, shard) >= set(ids(kept))
        if backend.prunes_rows:
            assert left(raw, shard) == set(ids(kept))

    await (await own(store, 2)).settle(cursor=await page_of(store, records[2], 6))
    await store.prune(journal_keep_s=3600)
    assert left(raw, 1) >= set(ids(needed[1]))
    if backend.prunes_rows:
        assert [left(raw, s) for s in (0, 1, 2)] == [set(ids(needed[s])) for s in (0, 1)] + [set()]


async def test_an_old_owner_prunes_nothing_more(
    store: Store, other_store: Store, raw: Raw, backend: Backend
) -> None:
    records, cursor = await filled(store, raw)
    old = await own(store, name="w1")
    await store.release([old.lease])
    await own(other_store, name="w2")
    await old.settle(cursor=cursor)  # fenced: the journal never heard of it

    await check(store, raw, backend, needed=ids(records), settled=[])


async def test_age_decides_nothing(store: Store, raw: Raw, backend: Backend) -> None:
    records, _ = await filled(store, raw, 2)
    backend.make_old(raw)
    await (await own(store)).settle(cursor=BEGINNING)

    await check(store, raw, backend, needed=ids(records), settled=[])


async def test_more_than_a_batch_goes_in_one_round(
    store: Store, other_store: Store, raw: Raw, backend: Backend
) -> None:
    raw.begin()
    raw.insert(*(new := [task() for _ in range(4500)]))
    raw.commit()
    records, cursor = await read_all(store, new, limit=1000)
    kept = [records[0], records[2100], records[4499]]
    # Another process than the one that read them, which some stores let delete on the spot.
    owner = await own(other_store)
    await owner.settle(cursor=cursor, open=tuple(open_of(r) for r in kept))

    report = await store.prune(journal_keep_s=3600)

    assert left(raw) >= set(ids(kept))
    if backend.prunes_rows:
        assert left(raw) == set(ids(kept))
        assert report.tasks == 4497
        assert (await store.prune(journal_keep_s=3600)).tasks == 0


async def test_tasks_of_many_commits_go_too(store: Store, raw: Raw, backend: Backend) -> None:
    new = [task() for _ in range(12)]
    for start in (0, 3, 4, 5, 9):
        raw.begin()
        raw.insert(*new[start : {0: 3, 5: 9, 9: 12}.get(start, start + 1)])
        raw.commit()
    records, cursor = await read_all(store, new, limit=5)
    kept = [records[1], records[4], records[10]]
    await (await own(store)).settle(cursor=cursor, open=tuple(open_of(r) for r in kept))

    await check(store, raw, backend, needed=ids(kept), settled=set(ids(records)) - set(ids(kept)))


async def test_the_journal_keeps_its_last_row_and_the_young_ones(store: Store, raw: Raw) -> None:
    first, second = await own(store, 0), await own(store, 1)
    for owner in (first, second):
        for _ in range(4):
            await owner.settle()
    raw.execute("update late_settlement set settled_at_us = 1 where seq < 4 and shard_id = 0")

    kept = await store.prune(journal_keep_s=3600)
    assert raw.execute("select seq from late_settlement where shard_id = 0 order by seq") == [
        (4,),
        (5,),
    ]
    assert raw.execute("select count(*) from late_settlement where shard_id = 1") == [(5,)]
    assert kept.settlements == 3

    await until(store, await store.now())
    gone = await store.prune(journal_keep_s=0)
    assert raw.execute("select shard_id, seq from late_settlement order by shard_id") == [
        (0, 5),
        (1, 5),
    ]
    assert gone.settlements == 5
    assert (await own(store)).lease.seq == first.seq + 1


async def test_a_clock_that_jumped_back_tears_no_hole(store: Store, raw: Raw) -> None:
    """A hole below a kept row would be a free `seq` for a zombie."""
    owner = await own(store)
    for _ in range(4):
        await owner.settle()
    raw.execute("update late_settlement set settled_at_us = 1 where seq = 3")

    await store.prune(journal_keep_s=3600)

    assert raw.execute("select seq from late_settlement order by seq") == [
        (n,) for n in range(1, 6)
    ]

    raw.execute("update late_settlement set settled_at_us = 1 where seq = 1")
    await store.prune(journal_keep_s=3600)
    assert raw.execute("select seq from late_settlement order by seq") == [
        (n,) for n in range(2, 6)
    ]


async def test_workers_long_gone_are_forgotten(store: Store, raw: Raw) -> None:
    await store.heartbeat(worker("gone"), 60)
    await store.heartbeat(worker("alive"), 60)
    raw.execute("update late_worker set expires_at_us = 1 where worker_id = 'gone'")

    report = await store.prune(journal_keep_s=3600)

    assert report.workers == 1
    assert raw.execute("select worker_id from late_worker") == [("alive",)]


async def test_pruning_an_empty_database_is_fine(store: Store) -> None:
    report = await store.prune(journal_keep_s=0)

    assert (report.tasks, report.settlements, report.workers) == (0, 0, 0)
