"""The gRPC API and `late.Consumer`, before a queue that is fed by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

import late
from late.api.grpc.stream import Stream
from late.consumer.session import Session
from late.control import Control
from late.model.access.rights import ANYBODY
from late.testing import drain
from late.v1 import queue_pb2, queue_pb2_grpc
from tests.unit.api_kit import Served, served
from tests.unit.dispatcher_kit import attempt


@asynccontextmanager
async def stub(it: Served) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{it.rpc.port}") as channel:
        yield queue_pb2_grpc.QueueStub(channel)


def new(**fields: Any) -> Any:
    return queue_pb2.NewTask(**{"queue": "payments", "name": "charge"} | fields)


async def test_tasks_are_enqueued_and_counted(tmp_path: Path) -> None:
    async with served(tmp_path) as it, stub(it) as queue:
        delayed = new(payload=b'{"trip":7}', headers={"a": "b"}, delay=Duration(seconds=60))
        answer = await queue.Enqueue(queue_pb2.EnqueueRequest(tasks=[new(), delayed]))
        assert len(set(answer.task_ids)) == 2
        stats = await queue.Stats(queue_pb2.StatsRequest(queues=["payments", "empty"]))
        assert [(each.queue, each.ready) for each in stats.queues] == [
            ("payments", 2),
            ("empty", 0),
        ]


async def test_an_enqueue_gives_a_token_to_wait_for(tmp_path: Path) -> None:
    app = late.App(f"sqlite:///{tmp_path}/served.db")
    app.task(lambda: None, name="charge", queue="payments")
    first, second = new(unique_key="a"), new(unique_key="b")
    async with served(tmp_path, app=app) as it, stub(it) as queue:

        async def token(*tasks: Any) -> tuple[str, list[str]]:
            found = await queue.Enqueue(queue_pb2.EnqueueRequest(tasks=tasks))
            return found.token, list(found.task_ids)

        async def left(until: str) -> tuple[str, int]:
            with Control(it.url) as control:
                found = await asyncio.to_thread(control.groups.wait, "default", until, timeout_s=0)
            return found.state, found.left.n

        assert await token() == ("", [])
        both, ids = await token(first, second)
        assert both == ids[1]
        assert await token(first, second) == (both, ids)  # both were there
        newer, more = await token(new(), first)
        assert newer == more[0]
        puts = [{"name": "charge", "queue": "payments"}] * 2
        answer = (await it.call("POST", "/v1/tasks", {"tasks": puts})).json
        assert answer["token"] == answer["tasks"][1]["task_id"]
        tokens = both, newer, answer["token"]
        assert [await left(each) for each in tokens] == [
            ("waiting", 2), ("waiting", 3), ("waiting", 5),
        ]  # fmt: skip
        assert await asyncio.to_thread(drain, app) == {"done": 5}
        assert {(await left(each))[1] for each in tokens} == {0}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"payload": b"{" + b" " * 1024 * 1024 + b"}"}, "RESOURCE_EXHAUSTED"),
        ({"payload": b"nonsense"}, "INVALID_ARGUMENT"),
        ({"payload": b"[]"}, "INVALID_ARGUMENT"),
        ({"payload": b'{"a":' + b"[" * 70 + b"]" * 70 + b"}"}, "INVALID_ARGUMENT"),
        ({"payload": b'{"a":NaN}'}, "INVALID_ARGUMENT"),
        ({"payload": b'{"a":"\\u0000"}'}, "INVALID_ARGUMENT"),
        ({"payload": b"\xff"}, "INVALID_ARGUMENT"),
        ({"name": ""}, "INVALID_ARGUMENT"),
        ({"name": "late.cancel"}, "INVALID_ARGUMENT"),
        ({"queue": "no good"}, "INVALID_ARGUMENT"),
        ({"queue": "late.control"}, "INVALID_ARGUMENT"),
        ({"queue": "mail"}, "NOT_FOUND"),
        ({"priority": 101}, "INVALID_ARGUMENT"),
        ({"unique_key": "x" * 129}, "INVALID_ARGUMENT"),
        ({"on_conflict": queue_pb2.NewTask.REJECT}, "INVALID_ARGUMENT"),
        ({"unique_key": "k", "on_conflict": 7}, "INVALID_ARGUMENT"),
        ({"unique_key": "k", "unique_for": Duration(seconds=-1)}, "INVALID_ARGUMENT"),
        ({"delay": Duration(seconds=367 * 86_400)}, "INVALID_ARGUMENT"),
        ({"at": Timestamp(seconds=253_402_300_799)}, "INVALID_ARGUMENT"),
        ({"at": Timestamp(seconds=2**62)}, "INVALID_ARGUMENT"),
        ({"expires_in": Duration(seconds=0)}, "INVALID_ARGUMENT"),
        ({"headers": {"a": "b" * 9_000}}, "RESOURCE_EXHAUSTED"),
    ],
)
async def test_a_bad_enqueue(tmp_path: Path, fields: dict[str, Any], code: str) -> None:
    app = late.App(f"sqlite:///{tmp_path}/served.db")
    async with served(tmp_path, app=app) as it, stub(it) as queue:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await queue.Enqueue(queue_pb2.EnqueueRequest(tasks=[new(), new(**fields)]))
        assert refused.value.code().name == code, refused.value.details()
        assert len(refused.value.details() or "") < 600
        assert (refused.value.details() or "").startswith("tasks[1]: ")
        stats = await queue.Stats(queue_pb2.StatsRequest())
        assert list(stats.queues) == []


async def test_batches_and_messages_have_bounds(tmp_path: Path) -> None:
    async with served(tmp_path) as it, stub(it) as queue:
        for tasks in ([new()] * 1_001, [new(payload=b'{"a":"' + b"a" * 10**6 + b'"}')] * 10):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await queue.Enqueue(queue_pb2.EnqueueRequest(tasks=tasks))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_repeat_and_a_conflict(tmp_path: Path) -> None:
    async with served(tmp_path) as it, stub(it) as queue:

        async def put(**fields: Any) -> str:
            task = new(unique_key="order-1", **fields)
            (task_id,) = (await queue.Enqueue(queue_pb2.EnqueueRequest(tasks=[task]))).task_ids
            return str(task_id)

        first = await put(unique_for=Duration(seconds=60))
        assert await put() == first
        for other in ({"payload": b'{"a":1}'}, {"on_conflict": queue_pb2.NewTask.REJECT}):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await put(**other)
            assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert await put(on_conflict=queue_pb2.NewTask.REPLACE) != first


class Talk:
    """One `Consume` stream, spoken by hand."""

    def __init__(self, queue: Any, **options: Any) -> None:
        self.call = queue.Consume(**options)

    async def say(self, **message: Any) -> None:
        await self.call.write(queue_pb2.ConsumeRequest(**message))

    async def hear(self, word: str) -> Any:
        async with asyncio.timeout(120):
            message = await self.call.read()
        assert message is not grpc.aio.EOF, (await self.call.code(), await self.call.details())
        assert message.WhichOneof("message") == word
        return getattr(message, word)

    async def begin(self, credit: int = 1, **options: Any) -> None:
        asked = queue_pb2.Subscribe(**{"queues": ["payments"], "consumer": "c"} | options)
        await self.say(subscribe=asked)
        assert (await self.hear("subscribed")).credit_max == 1_000
        await self.say(credit=queue_pb2.Credit(tasks=credit))


async def test_no_more_tasks_than_credits(tmp_path: Path) -> None:
    async with served(tmp_path) as it, stub(it) as queue:
        talk = Talk(queue)
        await talk.begin(credit=2)
        await it.rig.room(2)
        it.rig.pool.submit([attempt(), attempt()])
        got = (await talk.hear("deliveries")).deliveries
        assert len(got) == 2
        assert it.rig.pool.room == 0  # both credits are used up: nothing more is asked for
        await talk.say(ack=queue_pb2.Ack(receipts=[got[0].receipt]))
        (result,) = (await talk.hear("receipts")).results
        assert result.status == queue_pb2.ReceiptResult.ACCEPTED
        assert it.rig.pool.room == 0  # an answer gives no credit back
        await talk.say(credit=queue_pb2.Credit(tasks=1))
        await it.rig.room(1)


async def test_every_answer_and_what_becomes_of_receipts(tmp_path: Path) -> None:
    async with served(tmp_path) as it, stub(it) as queue:
        talk = Talk(queue)
        await talk.begin(credit=4)
        await it.rig.room(4)
        it.rig.pool.submit([attempt(trip=n) for n in range(4)])
        got = [each.receipt for each in (await talk.hear("deliveries")).deliveries]
        until = it.rig.now
        await talk.say(extend=queue_pb2.Extend(receipts=[got[0]], visibility=Duration(seconds=90)))
        (extended,) = (await talk.hear("receipts")).results
        assert extended.visible_until.ToMicroseconds() > 0
        it.rig.now = until + 60
        answers = [
            queue_pb2.Answer(receipt=got[0], fail={"reason": "no"}),
            queue_pb2.Answer(receipt=got[1]),
            queue_pb2.Answer(receipt="forged"),
        ]
        await talk.say(nack=queue_pb2.Nack(answers=answers))
        results = (await talk.hear("receipts")).results
        # The second was not extended, and its time was over.
        words = [queue_pb2.ReceiptResult.Status.Name(each.status) for each in results]
        assert words == ["ACCEPTED", "STALE", "UNKNOWN"]
        outcomes = await it.rig.ended(4)
        assert sorted(outcome.retryable for outcome in outcomes) == [False, True, True, True]


async def test_a_stream_that_breaks_gives_its_tasks_back_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as it, stub(it) as queue:
        talk = Talk(queue)
        await talk.begin(credit=2)
        await it.rig.room(2)
        it.rig.pool.submit([attempt()])
        await talk.hear("deliveries")
        talk.call.cancel()
        (outcome,) = await it.rig.ended(1)
        assert outcome.kind == "interrupted"


async def test_a_drained_server_takes_answers_and_gives_no_tasks(tmp_path: Path) -> None:
    async with served(tmp_path) as it, stub(it) as queue:
        talk = Talk(queue)
        await talk.begin(credit=2)
        await it.rig.room(2)
        it.rig.pool.submit([attempt()])
        (got,) = (await talk.hear("deliveries")).deliveries
        it.rpc.drain()
        await talk.hear("drain")
        assert it.rig.pool.room == 0
        await talk.say(ack=queue_pb2.Ack(receipts=[got.receipt]))
        (result,) = (await talk.hear("receipts")).results
        assert result.status == queue_pb2.ReceiptResult.ACCEPTED


@pytest.mark.parametrize(
    ("subscribe", "code"),
    [
        ({"queues": []}, "INVALID_ARGUMENT"),
        ({"queues": ["other"]}, "NOT_FOUND"),
        ({"queues": ["no good"]}, "INVALID_ARGUMENT"),
        ({"group": "none"}, "NOT_FOUND"),
        ({"visibility": Duration(nanos=1)}, "INVALID_ARGUMENT"),
        ({"visibility": Duration(seconds=10**6)}, "INVALID_ARGUMENT"),
        (None, "INVALID_ARGUMENT"),
    ],
)
async def test_a_bad_subscription(tmp_path: Path, subscribe: Any, code: str) -> None:
    async with served(tmp_path) as it, stub(it) as queue:
        talk = Talk(queue)
        if subscribe is None:
            await talk.say(credit=queue_pb2.Credit(tasks=1))
        else:
            asked = queue_pb2.Subscribe(**{"queues": ["payments"]} | subscribe)
            await talk.say(subscribe=asked)
        async with asyncio.timeout(120):
            assert (await talk.call.code()).name == code


async def test_a_consumer_without_its_token_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path, auth=True) as it:
        enqueuer = it.token("web", "enqueue")
        await it.service.access.load()
        for token, word in ((None, "UNAUTHENTICATED"), (enqueuer, "PERMISSION_DENIED")):
            at = f"127.0.0.1:{it.rpc.port}"
            consumer = late.Consumer(at, queues=["payments"], token=token)
            with pytest.raises(late.ConsumerRefused, match=word):
                async with asyncio.timeout(120):
                    await consumer.serve(lambda task: None)


async def test_the_client_runs_functions_and_coroutines(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        at = f"127.0.0.1:{it.rpc.port}"
        seen: list[tuple[str, Any, int]] = []

        def work(task: late.PulledTask) -> None:
            seen.append((task.name, task.payload, threading.get_ident()))
            match task.payload["do"]:
                case "snooze":
                    raise late.Snooze(5)
                case "retry":
                    raise late.Retry(after_s=7)
                case "discard":
                    raise late.Discard("over")
                case "nack":
                    raise late.Nack(not_capable=True)
                case "fail":
                    raise ValueError("broken")

        consumer = late.Consumer(at, queues=["payments"], concurrency=8, name="billing")
        serving = asyncio.create_task(consumer.serve(work))
        await it.rig.room(8)
        words = ["", "snooze", "retry", "discard", "nack", "fail"]
        it.rig.pool.submit([attempt(do=word) for word in words])
        await it.rig.ended(5)
        it.rig.now += 2.0  # nobody else has come for what it cannot do
        outcomes = await it.rig.ended(6)
        found = {seen_of(outcome): (outcome.kind, outcome.after_us) for outcome in outcomes}
        assert found == {
            "": ("done", None),
            "snooze": ("snooze", 5_000_000),
            "retry": ("failed", 7_000_000),
            "discard": ("discard", None),
            "nack": ("not_capable", None),
            "fail": ("failed", None),
        }
        assert threading.get_ident() not in {thread for _, _, thread in seen}
        await it.rig.room()  # the credits are back
        consumer.stop()
        async with asyncio.timeout(120):
            await serving


async def test_the_client_gives_the_results_that_are_wanted(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "value": {"total": 3}, "none": None, "large": "x" * 300_000, "odd": object(),
        "signal": late.Discard("over"),
    }  # fmt: skip
    async with served(tmp_path) as it:
        consumer = late.Consumer(f"127.0.0.1:{it.rpc.port}", queues=["payments"], concurrency=5)
        serving = asyncio.create_task(consumer.serve(lambda task: values[task.payload["do"]]))
        for count, keeps in ((5, True), (10, False)):
            await it.rig.room()
            sent = [attempt(do=word) for word in values]
            it.rig.pool.submit([msgspec.structs.replace(each, keeps_result=keeps) for each in sent])
            await it.rig.ended(count)
        found = [(seen_of(o), o.kind, o.retryable, o.result) for o in it.rig.outcomes]
        assert sorted(found[:5]) == [
            ("large", "failed", False, None),
            ("none", "done", True, None),
            ("odd", "failed", False, None),
            ("signal", "discard", True, None),
            ("value", "done", True, b'{"total":3}'),
        ]
        assert {word: kind for word, kind, _, _ in found[5:]} == {
            "large": "done", "none": "done", "odd": "done", "signal": "discard", "value": "done",
        }  # fmt: skip
        assert {result for *_, result in found[5:]} == {None}
        consumer.stop()
        async with asyncio.timeout(120):
            await serving


def seen_of(outcome: Any) -> str:
    import json

    return str(json.loads(outcome.attempt.record.payload)["do"])


async def test_the_client_prolongs_and_comes_back_after_a_cut(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        at = f"127.0.0.1:{it.rpc.port}"
        began, go_on = asyncio.Event(), asyncio.Event()

        async def work(task: late.PulledTask) -> None:
            began.set()
            await go_on.wait()

        consumer = late.Consumer(at, queues=["payments"], concurrency=1, visibility_s=1.0)
        serving = asyncio.create_task(consumer.serve(work))
        await it.rig.room()
        asked = attempt()
        it.rig.pool.submit([asked])
        async with asyncio.timeout(120):
            await began.wait()
            (hold,) = it.rig.pool._out.values()
            first = hold.until
            it.rig.now += 0.9
            while hold.until == first:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await it.rpc._server.stop(0)  # the cut
        (outcome,) = await it.rig.ended(1)
        assert outcome.kind == "interrupted"
        began.clear()
        again = type(it.rpc)(it.service, "127.0.0.1", it.rpc.port)
        await again.start()
        await it.rig.room()
        it.rig.pool.submit([asked])
        async with asyncio.timeout(120):
            await began.wait()
        go_on.set()
        assert (await it.rig.ended(2))[1].kind == "done"
        assert consumer.connected == 2
        consumer.stop()
        async with asyncio.timeout(120):
            await serving
        await again.stop()


async def test_a_write_on_a_stream_that_has_ended_means_its_status() -> None:
    class Ended:
        """As grpc has it when the end is known and nobody has read it yet."""

        def done(self) -> bool:
            return True

        async def read(self) -> Any:
            if self.written:
                await asyncio.Event().wait()
            return queue_pb2.ConsumeResponse(subscribed=queue_pb2.Subscribed())

        async def write(self, message: Any) -> None:
            self.written = True
            raise asyncio.InvalidStateError("RPC already finished.")

        async def code(self) -> Any:
            return grpc.StatusCode.UNAVAILABLE

        async def details(self) -> str:
            return "away"

        async def metadata(self) -> None: ...

        initial_metadata = trailing_metadata = metadata
        written = False

        def cancel(self) -> None: ...

    with ThreadPoolExecutor(1) as threads:
        session = Session(Ended(), lambda task: None, threads, 30.0)
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            await session.run(1, lambda: None, asyncio.Event())


class OneWrite:
    """What grpc is to a stream: one write at a time, which goes on when its waiter is cancelled."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.written: list[str] = []
        self._writing = False
        credit = queue_pb2.ConsumeRequest(credit=queue_pb2.Credit(tasks=1))
        self._credits = [credit.SerializeToString()]

    async def read(self) -> Any:
        if not self._credits:
            await asyncio.Event().wait()
        return self._credits.pop()

    async def write(self, message: Any) -> None:
        if self._writing:
            raise RuntimeError("GRPC_CALL_ERROR_TOO_MANY_OPERATIONS")
        self._writing = True
        self.begun.set()
        await asyncio.shield(self._end(message.WhichOneof("message")))

    async def _end(self, word: str) -> None:
        if word == "deliveries":
            await self.go_on.wait()
        self._writing = False
        self.written.append(word)


async def test_a_drain_waits_for_the_tasks_that_are_being_written(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        context, draining = OneWrite(), asyncio.Event()
        subscribe = queue_pb2.Subscribe(queues=["payments"])
        stream = Stream(it.service, ANYBODY, "c#1", subscribe, context)
        running = asyncio.create_task(stream.run(draining))
        await it.rig.room(1)
        context.begun.clear()
        it.rig.pool.submit([attempt()])
        async with asyncio.timeout(120):
            await context.begun.wait()
            draining.set()
            for _ in range(100):  # the drain has its chances to come in between
                await asyncio.sleep(0)
            context.go_on.set()
            while context.written != ["subscribed", "deliveries", "drain"]:
                assert not running.done(), running
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running})


async def test_a_consumer_writes_one_message_at_a_time() -> None:
    class Slow(OneWrite):
        async def _end(self, word: str) -> None:
            await asyncio.sleep(0.01)
            self._writing = False
            self.written.append(word)

    call = Slow()
    with ThreadPoolExecutor(1) as threads:
        session = Session(call, lambda task: None, threads, 30.0)
        await asyncio.gather(
            session._send(credit=queue_pb2.Credit(tasks=1)),
            session._send(extend=queue_pb2.Extend(receipts=["r"])),
        )
    assert call.written == ["credit", "extend"]
