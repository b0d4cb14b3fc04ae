"""A worker that offers its queues, on every store: tasks are fetched, answered for and recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

import late
from late import config
from late.api.pull.receipts import unseal
from late.control import Control
from late.model.ids import shard_of
from late.v1 import queue_pb2, queue_pb2_grpc
from tests.conformance.kit import task
from tests.integration.control_kit import insert, rows
from tests.integration.serve_kit import PAYMENTS, fleet, serving, until
from tests.support import sqlite

LAYOUTS = pytest.mark.parametrize("layout", [serving, fleet], ids=["one", "fleet"])


@LAYOUTS
async def test_a_task_goes_from_put_to_settled(url: str, layout: Any) -> None:
    async with layout(url) as it:
        task_id = await it.put(payload={"trip": 7}, headers={"traceparent": "00-1"})
        (task,) = await it.receive()
        assert (task["task_id"], task["payload"], task["attempt"]) == (task_id, {"trip": 7}, 1)
        assert task["headers"] == {"traceparent": "00-1"}
        assert await it.state(task_id) in ("logged", "open")
        answer = await it.call("POST", "/v1/ack", {"receipt": task["receipt"]})
        assert answer.status == 204

        await until(lambda: it.is_settled(task_id))
        assert await it.receive(wait_s=0.3) == []


@LAYOUTS
async def test_silence_is_a_failed_attempt_and_a_failure_for_good_a_dead_letter(
    url: str, layout: Any
) -> None:
    async with layout(url) as it:
        task_id = await it.put(delay_s=0.2)
        (first,) = await it.receive(visibility_s=1, consumer="sleepy")
        (second,) = await it.receive()
        assert (second["task_id"], second["attempt"]) == (task_id, 2)
        answer = await it.call("POST", "/v1/ack", {"receipt": first["receipt"]})
        assert (answer.status, answer.json["error"]) == (409, "stale_receipt")
        word = {"receipt": second["receipt"], "outcome": "fail", "reason": "card expired"}
        assert (await it.call("POST", "/v1/nack", word)).status == 204

        async def dead() -> bool:
            return await it.state(task_id) == "dead"

        await until(dead)
        with Control(url) as control:
            (letter,) = control.dead_letters.find()
        assert letter.attempts == 2
        assert [error.error for error in letter.errors] == [
            "no answer from anybody/sleepy within 1 s",
            "card expired",
        ]


Consuming = tuple[late.Consumer, asyncio.Task[None]]


async def finish(consumers: list[Consuming], everything: asyncio.Event) -> None:
    """Wait until everything has come, and stop the consumers."""
    async with asyncio.timeout(120):
        await everything.wait()
    for made, serve in consumers:
        made.stop()
        await serve


@LAYOUTS
async def test_several_consumers_share_a_queue_and_nothing_runs_twice(
    url: str, layout: Any
) -> None:
    async with layout(url) as it:
        done: Counter[int] = Counter()
        by: Counter[str] = Counter()
        everything = asyncio.Event()

        def consumer(name: str) -> Consuming:
            async def work(task: late.PulledTask) -> None:
                done[task.payload["n"]] += 1
                by[name] += 1
                await asyncio.sleep(0.005)
                if len(done) == 120:
                    everything.set()

            made = late.Consumer(it.at, queues=["payments"], concurrency=4, name=name)
            return made, asyncio.create_task(made.serve(work))

        consumers = [consumer("one"), consumer("two")]
        for start in range(0, 120, 40):
            tasks = [
                {"queue": "payments", "name": "charge", "payload": {"n": n}}
                for n in range(start, start + 40)
            ]
            assert (await it.call("POST", "/v1/tasks", {"tasks": tasks})).status == 201
        await finish(consumers, everything)
        assert set(by) == {"one", "two"}
        assert set(done.values()) == {1}

        async def quiet() -> bool:
            stats = (await it.call("GET", "/v1/queues/payments")).json
            return (stats["ready"], stats["running"], stats["parked"]) == (0, 0, 0)

        await until(quiet)


async def test_what_one_consumer_cannot_run_another_gets_soon(url: str) -> None:
    """As its first attempt; a minute's wait each time would be beyond the time-out."""
    async with serving(url) as it:
        attempts: dict[int, int] = {}
        refused: Counter[int] = Counter()
        everything = asyncio.Event()

        async def without_gpu(task: late.PulledTask) -> None:
            refused[task.payload["n"]] += 1
            raise late.Nack("no GPU")

        async def with_gpu(task: late.PulledTask) -> None:
            attempts[task.payload["n"]] = task.attempt
            await asyncio.sleep(0.05)
            if len(attempts) == 40:
                everything.set()

        consumers = []
        for name, work in (("a", without_gpu), ("b", with_gpu)):
            made = late.Consumer(it.at, queues=["payments"], concurrency=4, name=name)
            consumers.append((made, asyncio.create_task(made.serve(work))))
        tasks = [{"queue": "payments", "name": "charge", "payload": {"n": n}} for n in range(40)]
        assert (await it.call("POST", "/v1/tasks", {"tasks": tasks})).status == 201
        await finish(consumers, everything)
        assert refused
        assert set(attempts.values()) == {1}


async def test_what_was_put_off_while_nobody_asked_is_handed_out_at_once(url: str) -> None:
    count = 150
    insert(url, *(msgspec.structs.replace(task(), queue="payments") for _ in range(count)))
    async with serving(url, window=200, page_size=100, grace_s=0.0) as it:

        def put_off() -> dict[str, int]:
            found = rows(
                url, "select task_id, due_at_us from late_timer where reason = 'unfetched'"
            )
            return {str(task_id): due_us for task_id, due_us in found}

        async def is_put_off() -> bool:
            return len(await asyncio.to_thread(put_off)) >= 100

        await until(is_put_off)
        due_us = await asyncio.to_thread(put_off)
        got: set[str] = set()
        with Control(url) as control:
            while len(got) < count:
                got |= {each["task_id"] for each in await it.receive(limit=50)}
                now_us = await asyncio.to_thread(control.now)
                if any(due_us.get(each, 0) > now_us for each in got):
                    break  # before the time at which it would have been looked at again
            else:
                raise AssertionError("each was due by itself")


async def test_a_stop_still_takes_answers_and_gives_back_what_nobody_has(url: str) -> None:
    async with serving(url, grace_s=20) as it:
        task_id = await it.put()
        (task,) = await it.receive(visibility_s=60)
        rest = await it.put()
        stopping = asyncio.create_task(it.server.stop())
        await asyncio.sleep(0.2)
        assert not stopping.done()
        assert await it.receive(wait_s=0.1) == []
        assert (await it.call("GET", "/readyz")).status == 503
        answer = await it.call("POST", "/v1/ack", {"receipt": task["receipt"]})
        assert answer.status == 204
        await stopping
        assert await it.is_settled(task_id)
        assert await it.state(rest) == "logged"


async def test_a_consumer_gets_the_tasks_of_every_process_and_keeps_on_when_one_stops(
    url: str,
) -> None:
    async with fleet(url) as it:
        holders: set[str] = set()

        async def drain(count: int) -> None:
            for n in range(count):
                await it.put(payload={"n": n})
            for _ in range(count):
                (task,) = await it.receive(visibility_s=60)
                holders.add(unseal([await receipt_key(url)], str(task["receipt"])).worker)
                answer = await it.call("POST", "/v1/ack", {"receipt": task["receipt"]})
                assert answer.status == 204

        await drain(24)
        assert len(holders) == 2
        (held,) = [await it.put()]
        (task,) = await it.receive(visibility_s=60)
        assert task["task_id"] == held
        receipt = str(task["receipt"])
        owner = unseal([await receipt_key(url)], receipt).worker
        gone = next(o for o in it.owners if o.worker is not None and o.worker.id == owner)
        gone.worker.settings = config.load(grace_s=0)
        await gone.stop()
        # It was given back at the stop, and nobody answers for the process that had it.
        for path in ("ack", "extend"):
            answer = await it.call("POST", f"/v1/{path}", {"receipt": receipt})
            assert answer.status in (409, 503), answer.body
        (again,) = await it.receive(visibility_s=60)
        assert (again["task_id"], again["attempt"]) == (held, 1)
        assert (await it.call("POST", "/v1/ack", {"receipt": again["receipt"]})).status == 204
        await drain(4)


async def receipt_key(url: str) -> bytes:
    def read() -> bytes:
        with Control(url) as control:
            return control.tokens.peer_keys()[0].value

    return await asyncio.to_thread(read)


async def test_closed_and_full_queues_take_nothing_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first request on, on both interfaces, and no longer than the knob says."""
    monkeypatch.setattr("late.api.producer.FOLLOW_EVERY_S", 0.05)
    url = sqlite.database(tmp_path / "queue.db")
    with Control(url) as control:
        control.queues.change("queue", "payments", {"closed": True})
        async with serving(url) as it, grpc.aio.insecure_channel(it.at) as channel:

            async def put() -> tuple[int, str]:
                answer = await it.call("POST", f"{PAYMENTS}/tasks", {"name": "charge"})
                if answer.status == 429:
                    assert int(answer.headers["retry-after"]) >= 1
                task = queue_pb2.NewTask(queue="payments", name="charge")
                asked = queue_pb2.EnqueueRequest(tasks=[task])
                try:
                    await queue_pb2_grpc.QueueStub(channel).Enqueue(asked)
                    code = "OK"
                except grpc.aio.AioRpcError as error:
                    code = error.code().name
                return answer.status, code

            async def turn(wanted: tuple[int, str], **changes: Any) -> None:
                await asyncio.to_thread(control.queues.change, "queue", "payments", changes)

                async def as_wanted() -> bool:
                    return await put() == wanted

                await until(as_wanted)

            assert await put() == (429, "RESOURCE_EXHAUSTED")
            assert (await it.call("GET", PAYMENTS)).json["ready"] == 0
            await turn((201, "OK"), closed=None)
            await turn((429, "RESOURCE_EXHAUSTED"), max_backlog=2)
            await turn((201, "OK"), max_backlog=None)


async def test_a_lane_is_named_over_http_and_grpc(tmp_path: Path) -> None:
    url = sqlite.database(tmp_path / "queue.db")
    # Nobody answers for what is received, and a stop waits that long.
    async with serving(url, grace_s=0.0) as it, grpc.aio.insecure_channel(it.at) as channel:
        refused = await it.call("POST", f"{PAYMENTS}/tasks", {"name": "charge", "lane": "bulk"})
        assert (refused.status, "no lane 'bulk'" in str(refused.json)) == (400, True)
        with Control(url) as control:
            first = control.lanes.create("bulk", 1).first_shard
        over_http = await it.put(lane="bulk")
        task = queue_pb2.NewTask(queue="payments", name="charge", lane="bulk")
        asked = queue_pb2.EnqueueRequest(tasks=[task])
        answer = await queue_pb2_grpc.QueueStub(channel).Enqueue(asked)
        assert [shard_of(each) for each in (over_http, *answer.task_ids)] == [first, first]
        assert len(await it.receive(limit=2)) > 0, "a worker owns the new shard"
