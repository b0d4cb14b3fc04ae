"""A stream that sends receipts of nothing: it is slowed down, and its own tasks are not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from late.api.grpc.stream import REFUSED_FREE, REFUSED_S, Stream
from late.model.access.rights import ANYBODY
from late.v1 import queue_pb2
from tests.unit.api_kit import Served, served
from tests.unit.dispatcher_kit import attempt


class Client:
    """A context of gRPC: it sends what it is given, and closes its half then."""

    def __init__(self, sent: list[Any]) -> None:
        self.sent = sent
        self.delivered = asyncio.Event()
        self.receipts: list[str] = []
        self.results: list[Any] = []

    async def read(self) -> Any:
        if not self.sent:
            return None
        message = self.sent.pop(0)
        whole = await message() if callable(message) else message
        return whole.SerializeToString()

    async def write(self, message: Any) -> None:
        word = message.WhichOneof("message")
        if word == "deliveries":
            self.receipts += [each.receipt for each in message.deliveries.deliveries]
            self.delivered.set()
        elif word == "receipts":
            self.results += message.receipts.results


def ack(*receipts: str) -> Any:
    return queue_pb2.ConsumeRequest(ack=queue_pb2.Ack(receipts=receipts))


async def waits(it: Served, client: Client) -> list[float]:
    """Serve the client to its end; return for how long it was not read, each time."""
    found: list[float] = []

    async def pause(seconds: float) -> None:
        found.append(seconds)

    subscribe = queue_pb2.Subscribe(queues=["payments"])
    stream = Stream(it.service, ANYBODY, "c#1", subscribe, client, pause=pause)
    async with asyncio.timeout(120):
        await stream.run(asyncio.Event())
    return [round(seconds, 6) for seconds in found]


async def test_junk_is_slowed_down_however_it_is_sent(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        whole = Client([ack(*["junk"] * 1_000) for _ in range(3)])
        free = REFUSED_FREE * REFUSED_S
        assert await waits(it, whole) == [10 - free, 10, 10]
        assert len(whole.results) == 3_000, "each is answered still"
        single = Client([ack("junk") for _ in range(REFUSED_FREE + 3)])
        assert await waits(it, single) == [REFUSED_S] * 3
        other = Client([ack("junk") for _ in range(REFUSED_FREE)])
        assert await waits(it, other) == [], "it has a bound of its own"
        kinds: list[Any] = [
            queue_pb2.ConsumeRequest(extend=queue_pb2.Extend(receipts=["x"] * 1_000)),
            queue_pb2.ConsumeRequest(
                nack=queue_pb2.Nack(answers=[queue_pb2.Answer(receipt="x")] * 1_000)
            ),
        ]
        assert await waits(it, Client(kinds)) == [10 - free, 10]


async def test_a_consumer_that_answers_its_tasks_is_not(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        it.rig.pool.submit([attempt()])
        client = Client([])

        async def answer() -> Any:
            await client.delivered.wait()
            return ack(*client.receipts)

        async def again() -> Any:
            return ack(*client.receipts)

        credit = queue_pb2.ConsumeRequest(credit=queue_pb2.Credit(tasks=1))
        # Its own answer a second time is stale, once for each task without any wait.
        client.sent = [credit, answer, ack(*["junk"] * REFUSED_FREE), again, again]
        assert await waits(it, client) == [REFUSED_S]
        statuses = [result.status for result in client.results]
        assert statuses.count(queue_pb2.ReceiptResult.ACCEPTED) == 1
