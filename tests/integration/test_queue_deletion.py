"""A queue that nobody uses is deleted, on every store; one that has tasks never is."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from late.control import Control
from late.control.dead_letters.filter import Filter
from late.errors import Conflict
from late.model.task import HELD_US, Usage
from late.store.base import Store
from tests.conformance.kit import dead, open_of, own, parked, read_all, task, worker
from tests.integration.control_kit import insert
from tests.integration.groups_kit import SHARD
from tests.integration.test_control_schedules import NIGHTLY


@pytest.fixture
def control(url: str) -> Iterator[Control]:
    with Control(url) as made:
        yield made


def shown(control: Control) -> list[tuple[str, str]]:
    return [(each.group, each.queue) for each in control.status.read().queues]


async def test_tasks_that_wait_run_or_are_parked_keep_their_queue(
    url: str, store: Store, control: Control
) -> None:
    """Given one task of `old` among others, in each place after the other; force is no help."""
    some = [task(SHARD, queue="new"), task(SHARD, queue="old"), task(SHARD, queue="new")]
    insert(url, *some)
    found = control.queues.delete("old", dry_run=True)
    assert (found.waiting.n, found.running.n, found.parked.n) == (1, 0, 0)
    owner = await own(store, SHARD)
    records, cursor = await read_all(store, some)
    [old] = [each for each in records if each.queue == "old"]
    await owner.settle(cursor=cursor, open=(open_of(old),))
    found = control.queues.delete("old", dry_run=True)
    assert (found.waiting.n, found.running.n, found.parked.n) == (0, 1, 0)
    await owner.settle(cursor=cursor, open=(), parked=(parked(HELD_US, of=old),))
    found = control.queues.delete("old", dry_run=True)
    assert (found.waiting.n, found.running.n, found.parked.n) == (0, 0, 1)
    with pytest.raises(Conflict, match="1 parked"):
        control.queues.delete("old", force=True)
    assert ("default", "old") in shown(control)
    control.queues.delete("new")


async def test_dead_letters_stay_and_a_later_task_brings_the_queue_back(
    url: str, store: Store, control: Control
) -> None:
    control.queues.change("queue", "old", {"rate": 5, "objective_s": 60})
    one = task(SHARD, queue="old")
    insert(url, one)
    owner = await own(store, SHARD)
    (record,), cursor = await read_all(store, [one])
    died = Usage("old", record.name, "local", "dead", 1, 1)
    await owner.settle(cursor=cursor, open=(), dead=(dead(of=record),), usage=(died,))
    assert shown(control) == [("default", "old")]
    done = control.queues.delete("old")
    assert (done.dead.n, done.knobs.rate, done.dry_run) == (1, 5, False)
    assert shown(control) == []
    with Control(url) as anew:  # objectives are kept for half a minute
        assert anew.status.read().objectives == ()
    assert control.queues.settings() == []
    assert [each.dead.n for each in control.status.read(queue="old").queues] == [1]
    [letter] = control.dead_letters.find(Filter(queue="old"))
    assert letter.task_id == one.task_id
    assert control.verify().problems == ()
    later = task(SHARD, queue="old")
    insert(url, later)
    assert shown(control) == [("default", "old")]
    (record,), cursor = await read_all(store, [later], cursor=cursor)
    await owner.settle(cursor=cursor, open=(), dead=(dead(of=record),))
    [back] = control.status.read().queues
    assert (back.depth.n, back.dead.n) == (0, 2), "a dead letter after the deletion is not hidden"


async def test_a_group_that_has_not_read_a_task_keeps_its_queue(
    url: str, store: Store, control: Control
) -> None:
    control.groups.create("slow", start="beginning")
    control.groups.create("others", start="beginning", queues=["new"])
    one = task(SHARD, queue="old")
    insert(url, one)
    owner = await own(store, SHARD)
    _, cursor = await read_all(store, [one])
    await owner.settle(cursor=cursor, open=())
    with pytest.raises(Conflict, match="1 waiting"):
        control.queues.delete("old")
    slow = await own(store, SHARD, group="slow", name="w2")
    await slow.settle(cursor=cursor, open=())
    control.queues.delete("old")


async def test_a_schedule_or_a_live_worker_that_takes_the_queue_keeps_it(
    url: str, store: Store, control: Control
) -> None:
    control.schedules.sync([msgspec.structs.replace(NIGHTLY, queue="old")])
    with pytest.raises(Conflict, match="nightly"):
        control.queues.delete("old", force=True)
    control.schedules.remove("nightly")
    await store.heartbeat(msgspec.structs.replace(worker(), handlers='{"@old":""}'), 600)
    with pytest.raises(Conflict, match="--force"):
        control.queues.delete("old")
    assert control.queues.delete("old", force=True).workers == 1
    await store.heartbeat(msgspec.structs.replace(worker(), handlers='{"send":""}'), 600)
    control.queues.delete("old")  # nothing tells that it is of this queue
    owner = await own(store, SHARD, name="w2")
    await owner.settle(usage=(Usage("old", "send", "local", "done", 1, 1),))
    with pytest.raises(Conflict, match="--force"):
        control.queues.delete("old")


async def test_undoing_a_deletion_gives_the_knobs_back(
    url: str, store: Store, control: Control
) -> None:
    control.queues.change("queue", "old", {"rate": 5})
    one = task(SHARD, queue="old")
    insert(url, one)
    owner = await own(store, SHARD)
    (record,), cursor = await read_all(store, [one])
    await owner.settle(cursor=cursor, open=(), dead=(dead(of=record),))
    done = control.queues.delete("old")
    assert done.audit_id is not None
    control.queues.rollback(done.audit_id)
    assert [each.knobs.rate for each in control.queues.settings()] == [5]
    assert shown(control) == [("default", "old")]
