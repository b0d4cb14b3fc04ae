"""A restored or copied database: refused until an operator adopts it, and then nothing is lost."""

from __future__ import annotations

import pytest

from late.errors import StoreError, StoreRefused
from late.model.task import ShardId
from late.store import open_store
from late.store.base import SettleResult, Store, cursor_within
from tests.conformance.backends import Raw
from tests.conformance.kit import BEGINNING, ids, open_of, own, parked, read_all, task, worker


def move_elsewhere(raw: Raw) -> None:
    """Make the database look like a copy: what identifies it is another one's."""
    raw.execute("update late_meta set value = 'elsewhere' where key = 'identity'")


async def test_a_copy_is_refused_with_the_remedy(store: Store, url: str, raw: Raw) -> None:
    move_elsewhere(raw)
    copy = open_store(url)

    for _ in range(2):
        with pytest.raises(StoreRefused, match="late rebase"):
            await copy.open()

    await copy.close()


async def test_the_guards_cannot_be_walked_around(store: Store, url: str, raw: Raw) -> None:
    move_elsewhere(raw)
    copy = open_store(url)

    with pytest.raises(StoreError):
        await copy.acquire("w1", [("default", ShardId(0))])

    await copy.close()
    assert raw.execute("select count(*) from late_lease") == [(0,)]


async def test_the_first_opening_claims_the_database(url: str, raw: Raw) -> None:
    assert raw.execute("select value from late_meta where key = 'identity'") == []
    for _ in range(2):
        store = open_store(url)
        await store.open()
        await store.close()

    assert len(raw.execute("select value from late_meta where key = 'identity'")) == 1


async def test_rebase_runs_the_unsettled_and_only_those(store: Store, url: str, raw: Raw) -> None:
    raw.insert(*(new := [task() for _ in range(6)]))
    records, _ = await read_all(store, new)
    (page,) = await store.read({ShardId(0): BEGINNING}, 100)
    owner = await own(store)
    waiting = parked(5)
    await owner.settle(
        cursor=cursor_within(page.window, page.records[3]),
        open=(open_of(records[1]),),
        parked=(waiting,),
    )
    move_elsewhere(raw)

    adopted = open_store(url)
    await adopted.rebase()
    await adopted.rebase()
    await adopted.open()

    assert await owner.settle() is SettleResult.FENCED, "who ran before cannot settle any more"
    seen = await adopted.heartbeat(worker("w2"), 60)
    assert [(view.owner, view.epoch > owner.lease.epoch) for view in seen.leases] == [(None, True)]
    assert seen.workers == (worker("w2"),)
    new_owner = await own(adopted, name="w2")
    assert await adopted.due("default", ShardId(0), until_us=9, limit=9) == [waiting]
    again = await adopted.fetch(ShardId(0), new_owner.open)
    late = task()
    raw.insert(late)
    rest, _ = await read_all(
        adopted, [*(t for t in new if t.task_id in ids(records[4:])), late], cursor=new_owner.cursor
    )
    assert sorted(ids(again) + ids(rest)) == sorted(ids([records[1], *records[4:], late]))
    await adopted.close()


async def test_a_copy_that_has_lost_its_leases_fences_their_owners_too(
    store: Store, url: str, raw: Raw
) -> None:
    owner = await own(store)
    assert await owner.settle() is SettleResult.SETTLED
    raw.execute("delete from late_lease where shard_id = 0")
    move_elsewhere(raw)

    adopted = open_store(url)
    await adopted.rebase()
    await adopted.open()
    assert await owner.settle() is SettleResult.FENCED
    seen = await adopted.heartbeat(worker("w2"), 60)
    assert all(view.epoch > owner.lease.epoch for view in seen.leases)
    assert (await own(adopted, name="w2")).lease.epoch > owner.lease.epoch
    await adopted.close()


async def test_a_copy_whose_lease_is_ahead_of_its_journal_fences_its_owner_too(
    store: Store, url: str, raw: Raw
) -> None:
    owner = await own(store)
    assert await owner.settle() is SettleResult.SETTLED
    ahead = owner.lease.epoch + 7
    raw.execute(f"update late_lease set epoch = {ahead} where shard_id = 0")
    move_elsewhere(raw)

    adopted = open_store(url)
    await adopted.rebase()
    await adopted.open()
    seen = await adopted.heartbeat(worker("w2"), 60)
    assert [view.epoch > ahead for view in seen.leases] == [True]
    await adopted.close()


async def test_each_journal_of_a_copy_is_fenced_by_its_own_last_row(
    store: Store, url: str, raw: Raw
) -> None:
    owners = [await own(store), await own(store, 1), await own(store, group="audit")]
    for times, owner in enumerate(owners):
        for _ in range(times + 1):
            assert await owner.settle() is SettleResult.SETTLED
    move_elsewhere(raw)

    adopted = open_store(url)
    await adopted.rebase()
    await adopted.open()
    assert [await owner.settle() for owner in owners] == [SettleResult.FENCED] * 3
    await adopted.close()
