"""200 honest clients, in a process of their own: `python -m tests.attack.honest TARGET SECONDS`.

Producers enqueue with a unique key and repeat what is put off; consumers take and acknowledge; some
look at the page. Prints as JSON how often each outcome came, what was wrong, and the ids of the
tasks that were accepted and done.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import aiohttp
import grpc

from late.v1 import queue_pb2

COUNTS = {"producer": 80, "consumer": 60, "grpc producer": 20, "grpc consumer": 20, "page": 20}
ADDRESSES = 10
EVERY_S = 1.0
PATIENCE_S = 60.0
VISIBILITY_S = 300.0
SCREENS = ("", "queues", "queues/honest", "shards", "tasks", "workers", "groups", "live")
OWN = [("grpc.use_local_subchannel_pool", 1)]


class Clients:
    """What all of them have seen together."""

    def __init__(self, http: int, rpc: int, health: int, tokens: dict[str, str]) -> None:
        self.base, self.at = f"http://127.0.0.1:{http}", f"127.0.0.1:{rpc}"
        self.tokens = tokens
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.accepted: set[str] = set()
        self.done: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.stopping = asyncio.Event()
        self.drained = asyncio.Event()

    async def ask(
        self, session: aiohttp.ClientSession, method: str, path: str, value: Any = None
    ) -> tuple[int, Any]:
        """Ask until there is an answer that is neither 429 nor 503."""
        while True:
            began = time.monotonic()
            try:
                async with session.request(method, self.base + path, json=value) as reply:
                    body = await reply.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                self.outcomes[f"HTTP {type(error).__name__}"] += 1
                self.wrong.append(f"{method} {path}: {type(error).__name__} {error}")
                await asyncio.sleep(EVERY_S)
                continue
            waited = float(value.get("wait_s", 0)) if isinstance(value, dict) else 0.0
            self.slowest_s = max(self.slowest_s, time.monotonic() - began - waited)
            self.outcomes[f"HTTP {reply.status}"] += 1
            if reply.status in (429, 503):
                after = reply.headers.get("Retry-After")
                if after is None:
                    self.wrong.append(f"{method} {path}: {reply.status} without Retry-After")
                await asyncio.sleep(float(after or 1) * random.uniform(1, 1.5))
                continue
            if reply.status not in (200, 201, 204):
                self.wrong.append(f"{method} {path}: {reply.status} {body[:200]!r}")
            kind = reply.headers.get("Content-Type", "")
            return reply.status, json.loads(body) if kind == "application/json" else None

    def session(self, number: int, role: str) -> aiohttp.ClientSession:
        address = (f"127.0.1.{1 + number % ADDRESSES}", 0)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=2, local_addr=address, keepalive_timeout=60),
            headers={"Authorization": f"Bearer {self.tokens[role]}"},
            timeout=aiohttp.ClientTimeout(total=PATIENCE_S),
        )

    async def producer(self, number: int) -> None:
        count = 0
        async with self.session(number, "enqueue") as session:
            while not self.stopping.is_set():
                put = {"name": "work", "unique_key": f"h-{number}-{count}", "payload": {"n": count}}
                status, found = await self.ask(session, "POST", "/v1/queues/honest/tasks", put)
                if status in (200, 201):
                    self.accepted.add(found["task_id"])
                count += 1
                await asyncio.sleep(EVERY_S * random.uniform(0.5, 1.5))

    async def consumer(self, number: int) -> None:
        asked = {"limit": 5, "wait_s": 2, "visibility_s": VISIBILITY_S}
        async with self.session(number, "consume") as session:
            while not self.drained.is_set():
                _, found = await self.ask(session, "POST", "/v1/queues/honest/receive", asked)
                for task in (found or {}).get("tasks", ()):
                    sent = {"receipt": task["receipt"]}
                    status, _ = await self.ask(session, "POST", "/v1/ack", sent)
                    if status == 204:
                        self.done[task["task_id"]] += 1

    async def page(self, number: int) -> None:
        async with self.session(number, "view") as session:
            while not self.stopping.is_set():
                screen = random.choice(SCREENS)
                if screen == "live":
                    try:
                        async with asyncio.timeout(5), session.get(f"{self.base}/ui/live") as reply:
                            self.outcomes[f"live {reply.status}"] += 1
                            await reply.read()
                    except TimeoutError:
                        pass
                    except aiohttp.ClientError as error:
                        self.wrong.append(f"live: {error!r}")
                else:
                    await self.ask(session, "GET", f"/ui/{screen}")
                await asyncio.sleep(EVERY_S * random.uniform(1, 3))

    def metadata(self, role: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.tokens[role]}"),)

    async def grpc_producer(self, number: int) -> None:
        count = 0
        while not self.stopping.is_set():
            async with grpc.aio.insecure_channel(self.at, options=OWN) as channel:
                enqueue = channel.unary_unary(
                    "/late.v1.Queue/Enqueue",
                    queue_pb2.EnqueueRequest.SerializeToString,
                    queue_pb2.EnqueueResponse.FromString,
                )
                for _ in range(10):  # and then over a new connection
                    new = queue_pb2.NewTask(
                        queue="honest", name="work", payload=b"{}", unique_key=f"g-{number}-{count}"
                    )
                    try:
                        answer = await enqueue(
                            queue_pb2.EnqueueRequest(tasks=[new]),
                            metadata=self.metadata("enqueue"),
                            timeout=PATIENCE_S,
                            wait_for_ready=True,
                        )  # fmt: skip
                        self.accepted.update(answer.task_ids)
                        self.outcomes["gRPC OK"] += 1
                        count += 1
                    except grpc.aio.AioRpcError as error:
                        await self._put_off(error)
                    await asyncio.sleep(EVERY_S * random.uniform(0.5, 1.5))
                    if self.stopping.is_set():
                        break

    async def _put_off(self, error: grpc.aio.AioRpcError) -> None:
        self.outcomes[f"gRPC {error.code().name}"] += 1
        after = dict(error.trailing_metadata() or ()).get("retry-after")
        if after is None:
            self.wrong.append(f"gRPC: {error.code().name} {error.details()}")
        await asyncio.sleep(float(after or 1))

    async def grpc_consumer(self, number: int) -> None:
        ids: dict[str, str] = {}
        async with grpc.aio.insecure_channel(self.at, options=OWN) as channel:
            stream = channel.stream_stream(
                "/late.v1.Queue/Consume",
                queue_pb2.ConsumeRequest.SerializeToString,
                queue_pb2.ConsumeResponse.FromString,
            )(metadata=self.metadata("consume"), wait_for_ready=True)
            subscribe = queue_pb2.Subscribe(queues=["honest"])
            subscribe.visibility.FromSeconds(int(VISIBILITY_S))
            await stream.write(queue_pb2.ConsumeRequest(subscribe=subscribe))
            await stream.write(queue_pb2.ConsumeRequest(credit=queue_pb2.Credit(tasks=5)))
            ending = asyncio.create_task(self.drained.wait())
            ending.add_done_callback(lambda _: stream.cancel())
            try:
                async for message in stream:
                    word = message.WhichOneof("message")
                    if word == "deliveries":
                        given = message.deliveries.deliveries
                        ids |= {each.receipt: each.task.task_id for each in given}
                        ack = queue_pb2.Ack(receipts=[each.receipt for each in given])
                        credit = queue_pb2.Credit(tasks=len(given))
                        await stream.write(queue_pb2.ConsumeRequest(ack=ack))
                        await stream.write(queue_pb2.ConsumeRequest(credit=credit))
                    elif word == "receipts":
                        for each in message.receipts.results:
                            if each.status == queue_pb2.ReceiptResult.ACCEPTED:
                                self.done[ids.pop(each.receipt)] += 1
                            self.outcomes[f"gRPC receipt {each.status}"] += 1
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                if not self.drained.is_set():
                    self.wrong.append(f"a gRPC stream ended: {error!r}"[:300])

    async def run(self, seconds: float) -> None:
        kinds = {
            "producer": self.producer, "consumer": self.consumer, "page": self.page,
            "grpc producer": self.grpc_producer, "grpc consumer": self.grpc_consumer,
        }  # fmt: skip
        takers: list[asyncio.Task[None]] = []
        others: list[asyncio.Task[None]] = []
        for kind, count in COUNTS.items():
            mine = takers if "consumer" in kind else others
            mine += [asyncio.create_task(kinds[kind](number)) for number in range(count)]
        await asyncio.sleep(3)
        print("ready", flush=True)
        await asyncio.sleep(seconds)
        self.stopping.set()
        await asyncio.gather(*others)
        ends = time.monotonic() + PATIENCE_S
        while self.accepted - self.done.keys() and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        self.drained.set()
        await asyncio.gather(*takers)


if __name__ == "__main__":
    clients = Clients(*json.loads(sys.argv[1]))
    asyncio.run(clients.run(float(sys.argv[2])))
    seen = {name: getattr(clients, name) for name in ("outcomes", "wrong", "done", "slowest_s")}
    print(json.dumps({**seen, "accepted": sorted(clients.accepted)}))
