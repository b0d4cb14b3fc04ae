"""All floods at once, from a process of its own.

`python -m tests.attack.floods TARGET SECONDS [KIND...]`. Strangers come from 127.0.0.2 and the next
addresses, so that the bounds of an address are theirs and not those of honest clients. Prints how
often each flood did what it does, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from late.v1 import queue_pb2
from tests.attack.http_corpus import HIDDEN, corpus
from tests.attack.piles import PILES
from tests.attack.rpc_fuzz import PREFACE, bomb, prefixed
from tests.security.http2 import DATA, END_HEADERS, HEADERS, RST_STREAM, SETTINGS, frame, header

ADDRESSES = 4
MIB = 1024 * 1024
POST = (
    b"POST /v1/queues/odd/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
PAUSE_S = 0.02
"""Between two connections of one attacker, who shares two processors with all others here."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Flood:
    """The attackers, and what they have done."""

    def __init__(self, http: int, rpc: int, health: int, tokens: dict[str, str]) -> None:
        self.http, self.rpc, self.health, self.tokens = http, rpc, health, tokens
        self.done: Counter[str] = Counter()
        self._turn = 0

    async def open(self, port: int) -> Streams:
        self._turn += 1
        address = f"127.0.0.{2 + self._turn % ADDRESSES}"
        return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))

    def call(self, stream: int, *, token: str = "", **more: str) -> bytes:
        """The head of a gRPC call."""
        path = more.pop("path", "/late.v1.Queue/Enqueue")
        told = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        told |= {"content-type": "application/grpc", "te": "trailers"}
        if token:
            told["authorization"] = f"Bearer {token}"
        block = b"".join(header(*pair) for pair in (told | more).items())
        return frame(HEADERS, END_HEADERS, stream, block)

    # Each of these is one attack by one connection, again and again.

    async def trailers(self, streams: Streams) -> None:
        _, writer = streams
        writer.write(CHUNKED + b"0\r\n")
        while True:
            writer.write(b"x-trailer: aaaaaaaa\r\n" * 3_000)
            await writer.drain()
            await asyncio.sleep(0)  # a turn for others: without a full buffer there is none

    async def dripped_body(self, streams: Streams) -> None:
        _, writer = streams
        token = self.tokens["narrow"].encode()
        writer.write(
            POST + b"Authorization: Bearer " + token + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        while True:
            writer.write(b"1\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0.5)

    async def half_head(self, streams: Streams) -> None:
        reader, writer = streams
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        while not reader.at_eof():
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(1)

    async def kept(self, streams: Streams) -> None:
        reader, writer = streams
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.read()

    async def silent(self, streams: Streams) -> None:
        await streams[0].read()

    async def stranger_messages(self, streams: Streams) -> None:
        _, writer = streams
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        begun = b"\0" + (8 * MIB).to_bytes(4, "big") + b"\x0a" * 16_000
        for number in range(100):
            stream = 2 * number + 1
            writer.write(self.call(stream) + frame(DATA, 0, stream, begun))
            await writer.drain()
        await asyncio.sleep(2)

    async def resets(self, streams: Streams) -> None:
        _, writer = streams
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        for number in range(2_000):
            stream = 2 * number + 1
            writer.write(self.call(stream) + frame(RST_STREAM, 0, stream, (8).to_bytes(4, "big")))
            await writer.drain()
            if number % 50 == 0:
                await asyncio.sleep(PAUSE_S)

    async def bombs(self, streams: Streams) -> None:
        _, writer = streams
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        message, more = prefixed(bomb(64), flag=1), {"grpc-encoding": "gzip"}
        writer.write(self.call(1, token=self.tokens["narrow"], **more))
        for at in range(0, len(message), 16_000):
            writer.write(frame(DATA, 0, 1, message[at : at + 16_000]))
        await writer.drain()
        await asyncio.sleep(1)

    async def junk_receipts(self, streams: Streams) -> None:
        _, writer = streams
        first = queue_pb2.ConsumeRequest(subscribe=queue_pb2.Subscribe(queues=["other"]))
        junk = queue_pb2.ConsumeRequest(ack=queue_pb2.Ack(receipts=["junk"] * 500))
        writer.write(PREFACE + frame(SETTINGS, 0, 0))
        head = self.call(1, token=self.tokens["narrow"], path="/late.v1.Queue/Consume")
        writer.write(head + frame(DATA, 0, 1, prefixed(first.SerializeToString())))
        for _ in range(15):
            writer.write(frame(DATA, 0, 1, prefixed(junk.SerializeToString())))
            await writer.drain()
            await asyncio.sleep(0.2)

    async def sign_ins(self, streams: Streams) -> None:
        reader, writer = streams
        head = b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\n"
        one = head + b"Authorization: Bearer late.all.x\r\n\r\n"
        while not reader.at_eof():
            writer.write(one * 10)
            await writer.drain()
            await reader.readexactly(500)
            await asyncio.sleep(PAUSE_S)

    async def piles(self, streams: Streams) -> None:
        reader, writer = streams
        self._turn += 1
        sent = list(PILES.values())[self._turn // ADDRESSES % len(PILES)]
        while not reader.at_eof():
            writer.write(sent)
            await writer.drain()
            await asyncio.sleep(PAUSE_S)

    async def malformed(self, streams: Streams) -> None:
        reader, writer = streams
        every = [sent for _, sent in corpus()]
        self._turn += 1
        writer.write(every[self._turn % len(every)] + HIDDEN)
        await reader.read()

    async def repeat(
        self, name: str, attack: Callable[[Streams], Awaitable[None]], port: int
    ) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                streams = await self.open(port)
                self.done[name] += 1
                try:
                    async with asyncio.timeout(30):
                        await attack(streams)
                except TimeoutError:
                    self.done[f"{name}, not ended"] += 1
                finally:
                    streams[1].transport.abort()
            await asyncio.sleep(PAUSE_S)

    async def run(self, seconds: float, only: Sequence[str] = ()) -> None:
        """Run so many attackers of each kind, or of the kinds in `only`, for the time."""
        http, rpc = self.http, self.rpc
        many: list[tuple[int, str, Callable[[Streams], Awaitable[None]], int]] = [
            (8, "endless trailers", self.trailers, http),
            (60, "dripped bodies", self.dripped_body, http),
            (300, "half heads", self.half_head, http), (700, "kept connections", self.kept, http),
            (4, "wrong tokens", self.sign_ins, http),
            (4, "piled requests and lines", self.piles, http),
            (4, "malformed requests", self.malformed, http),
            (700, "silent connections to gRPC", self.silent, rpc),
            (2, "unfinished messages of strangers", self.stranger_messages, rpc),
            (1, "rapid resets", self.resets, rpc),
            (1, "gzip bombs", self.bombs, rpc), (2, "junk receipts", self.junk_receipts, rpc),
            (150, "half requests to the health port", self.half_head, self.health),
        ]  # fmt: skip
        tasks = [
            asyncio.create_task(self.repeat(name, attack, port))
            for count, name, attack, port in many
            if not only or name in only
            for _ in range(count)
        ]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:  # an attacker with a defect attacks nobody
            if not task.cancelled() and (error := task.exception()):
                raise error


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of every connection cut off
    flood = Flood(*json.loads(sys.argv[1]))
    asyncio.run(flood.run(float(sys.argv[2]), sys.argv[3:]))
    print(json.dumps(flood.done))
