"""Operators over gRPC: a server with its worker, and a task from its wait to its dead letter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.databases import PRESENT
from tests.integration.serve_kit import serving
from tests.unit.operator_rpc_kit import rpc

# What the operations read and write is tested on every store, below them.
STORES = [each for each in PRESENT if each.name in ("sqlite", "postgres")]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(200):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("backend", STORES, ids=lambda each: each.name)
async def test_an_operator_looks_and_changes(url: str) -> None:
    async with serving(url) as it, rpc(it.at) as call:
        waits = await it.put(payload={"trip": 7}, delay_s=3_600)

        async def state(task_id: str, word: str) -> bool:
            return {each.state for each in (await call("ShowTask", task_id=task_id)).groups} == {
                word
            }

        async def parked() -> bool:
            return await state(waits, "parked")

        async def one_dead() -> bool:
            return len((await call("ListDead", queue="payments")).dead) == 1

        await until(parked)
        shown = await call("ShowTask", task_id=waits, payload=True)
        assert (shown.queue, shown.name, shown.payload) == ("payments", "charge", '{"trip":7}')

        # What is due now is fetched, and its failure for good is a dead letter.
        assert (await call("RescheduleTask", task_id=waits, delay_s=0)).command
        (task,) = await it.receive()
        assert task["task_id"] == waits
        word = {"receipt": task["receipt"], "outcome": "fail", "reason": "card expired"}
        assert (await it.call("POST", "/v1/nack", word)).status == 204
        await until(one_dead)
        (letter,) = (await call("ListDead", queue="payments")).dead
        assert (letter.reason, [each.error for each in letter.errors]) == (
            "gave_up", ["card expired"],
        )  # fmt: skip

        # It is sent back with other arguments, and done: the group has settled all up to it.
        assert (await call("EditTask", task_id=waits, payload='{"trip":8}')).commands
        waited = asyncio.create_task(
            call("WaitForGroup", group="default", until=waits, wait_s=60, timeout_s=120)
        )
        (task,) = await it.receive()
        assert task["payload"] == {"trip": 8}
        ack = await it.call("POST", "/v1/ack", {"receipt": task["receipt"]})
        assert ack.status == 204
        assert (await waited).state in ("settled", "gone")

        await cancelled(it, call)
        await knobs_and_groups(call)


async def cancelled(it: Any, call: Any) -> None:
    later = await it.put(delay_s=3_600)
    assert (await call("CancelTask", task_id=later)).command

    await until(lambda: it.is_settled(later))


async def knobs_and_groups(call: Any) -> None:
    turned = await call("SetQueueKnobs", queue="payments", knobs={"concurrency": 7, "rate": 0.5})
    assert (turned.after.concurrency.number_value, turned.after.rate) == (7, 0.5)
    undone = await call("UndoQueueChange", queue="payments", change=turned.audit_id)
    assert not undone.after.HasField("rate")
    made = await call("CreateGroup", name="audit", place="now", queues=["payments"])
    assert list(made.queues) == ["payments"]
    reset = await call("ResetGroup", group="audit", at="2026-01-01T00:00:00Z", dry_run=True)
    assert (reset.group, reset.dry_run) == ("audit", True)
    assert (await call("DeleteGroup", group="audit")).deleted == "audit"
    assert not (await call("ListSchedules")).schedules
    status = await call("ShowStatus")
    assert len(status.workers) == 1
    assert {each.owner for each in status.shards} == {status.workers[0].worker_id}
    then = await call("ShowStatus", as_of="0s")
    assert (then.now_us, then.as_of.at_us >= status.now_us) == (then.as_of.at_us, True)
    owners = await call("ShowOwners")
    assert {each.owner for each in owners.shards} == {status.workers[0].worker_id}
    actions = {each.action for each in (await call("ListChanges")).changes}
    assert actions >= {"task.cancel", "task.reschedule", "queue.set", "group.create"}
