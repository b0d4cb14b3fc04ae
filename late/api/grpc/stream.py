"""One consumer's stream: credits and answers come in, tasks and receipts go out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from late.api import limits
from late.api.errors import BadRequest
from late.api.grpc import convert
from late.api.grpc.calls import receive
from late.api.pull.deliveries import TakeRequest
from late.api.pull.receipts import StaleReceipt, UnknownReceipt
from late.api.service import Service
from late.concurrency import run_until
from late.handler.classify import Verdict
from late.model.access.rights import Caller
from late.v1 import queue_pb2

BATCH = 64
"""The most tasks of one message."""
WAIT_S = 30.0
REFUSED_FREE = 100
"""Receipts that a stream may have refused, beyond those of the tasks that it was sent."""
REFUSED_S = 0.01
"""Seconds for which a stream is not read, for each receipt beyond. It is not ended: a consumer that
has come back may answer tasks of its last stream, and the tasks of this one must not go to others
for that."""


class Stream:
    """A stream from its `Subscribe` on.

    Args:
        name: unique to this stream. The tasks that it has when it breaks are found by this name.
        context: of gRPC; only its `read` and `write` are used here.
        pause: waits for so many seconds.

    Raises:
        NotFound, Forbidden, BadRequest: the subscription is not possible.
    """

    def __init__(
        self,
        service: Service,
        caller: Caller,
        name: str,
        subscribe: Any,
        context: Any,
        *,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._service = service
        self._caller = caller
        self._name = name
        self._queues = tuple(dict.fromkeys(subscribe.queues))
        self._names = frozenset(subscribe.names) or None
        self._group = service.group(subscribe.group or None)
        self.visibility_s = convert.visibility_of(subscribe, limits.VISIBILITY_S)
        self._context = context
        self._pause = pause
        self._free = REFUSED_FREE
        """Receipts that may be refused until the stream is slowed down."""
        self._credit = 0
        self._credited = asyncio.Event()
        self._writing = asyncio.Lock()
        if len(self._queues) > limits.QUEUES_MAX or len(subscribe.names) > limits.QUEUES_MAX:
            raise BadRequest(f"at most {limits.QUEUES_MAX} queues and names")
        service.check_asked(caller, self._queues, self._names)

    async def run(self, draining: asyncio.Event) -> None:
        """Serve the stream until the client closes its half or is gone.

        Tasks that it has not answered then go to others.
        """
        hello = queue_pb2.Subscribed(consumer=self._name, credit_max=limits.CREDIT_MAX)
        hello.visibility.FromMicroseconds(round(self.visibility_s * 1_000_000))
        try:
            await self._write(subscribed=hello)
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send(draining))
                await self._read()
                sending.cancel()
        except ExceptionGroup as failed:  # `except*` would wrap what is raised here in a group
            refused = failed.subgroup((BadRequest, UnknownReceipt))
            raise refused.exceptions[0] if refused is not None else failed from None
        finally:
            await self._service.drop(self._caller, self._name)

    async def _send(self, draining: asyncio.Event) -> None:
        await run_until(draining.wait(), self._give())
        await self._write(drain=queue_pb2.Drain(reason="this process stops"))

    async def _give(self) -> None:
        """Send tasks as long as there are credits.

        A task uses up its credit when it is taken. If this is cancelled before the task is
        written, the end of the stream gives the task to others.
        """
        while True:
            while not self._credit:
                self._credited.clear()
                await self._credited.wait()
            ask = TakeRequest(
                self._group,
                self._queues,
                limit=min(self._credit, BATCH),
                wait_s=WAIT_S,
                visibility_s=self.visibility_s,
                consumer=self._name,
                names=self._names,
            )
            found = await self._service.take(self._caller, ask)
            if found:
                self._credit -= len(found)
                self._free += len(found)
                made = [convert.delivery_of(delivery) for delivery in found]
                await self._write(deliveries=queue_pb2.Deliveries(deliveries=made))

    async def _read(self) -> None:
        while True:
            message = await receive(self._context, queue_pb2.ConsumeRequest.FromString, None)
            if message is None:
                return  # the client has closed its half
            word = message.WhichOneof("message")
            if word == "credit":
                self._credit = min(limits.CREDIT_MAX, self._credit + message.credit.tasks)
                self._credited.set()
            elif word in ("ack", "nack", "extend"):
                receipts = await self._receipts(word, getattr(message, word))
                await self._write(receipts=receipts)
                await self._slow_down(receipts.results)
            else:
                raise BadRequest("after the first message: credit, ack, nack or extend")

    async def _receipts(self, word: str, message: Any) -> Any:
        items = message.answers if word == "nack" else message.receipts
        if len(items) > limits.ANSWERS_MAX:
            raise BadRequest(f"at most {limits.ANSWERS_MAX} receipts in one message")
        if word == "extend":
            lasting_s = convert.visibility_of(message, self.visibility_s)
            found = [await self._one(text, extend_s=lasting_s) for text in items]
        elif word == "ack":
            found = [await self._one(text, Verdict("done")) for text in items]
        else:
            found = [await self._one(a.receipt, convert.verdict_of(a)) for a in items]
        return queue_pb2.Receipts(results=found)

    async def _slow_down(self, results: Sequence[Any]) -> None:
        """Wait if too many receipts were refused, so that junk costs the server little."""
        accepted = queue_pb2.ReceiptResult.ACCEPTED
        refused = sum(result.status != accepted for result in results)
        beyond = refused - self._free
        self._free = max(0, self._free - refused)
        if beyond > 0:
            await self._pause(beyond * REFUSED_S)

    async def _one(
        self, receipt: str, verdict: Verdict | None = None, extend_s: float = 0.0
    ) -> Any:
        result = queue_pb2.ReceiptResult(receipt=receipt[:1_024])
        try:
            if verdict is not None:
                await self._service.answer(self._caller, receipt, verdict)
            else:
                until_us = await self._service.extend(self._caller, receipt, extend_s)
                result.visible_until.FromMicroseconds(until_us)
            result.status = queue_pb2.ReceiptResult.ACCEPTED
        except StaleReceipt:
            result.status = queue_pb2.ReceiptResult.STALE
        except UnknownReceipt:
            result.status = queue_pb2.ReceiptResult.UNKNOWN
        return result

    async def _write(self, **message: Any) -> None:
        # Answers and tasks are written by two coroutines, and gRPC takes one write at a time. A
        # write goes on in gRPC when its waiter is cancelled. So it goes on here too, and keeps the
        # lock until its end.
        await asyncio.shield(self._written(queue_pb2.ConsumeResponse(**message)))

    async def _written(self, message: Any) -> None:
        async with self._writing:
            await self._context.write(message)
